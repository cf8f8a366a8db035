r"""What a geometry is.

A geometry keeps one or more statistics of the gradients seen so far, and turns them into a metric H. This is a positive
definite map on tensors, and steps are measured in its norm. The metric determines the step, the Bregman divergence, the
projection onto a domain and the regret bound.

.. math::
    V_t = V_{t-1} + \mathrm{measure}(G_t), \qquad H_t = \mathrm{metric}(V_t) + \epsilon, \qquad
    X_{t+1} = X_t - \eta\, H_t^{-1} G_t

Most metrics are diagonal: they hold one positive number per entry (`Diagonal`). Most diagonal metrics share that number
among the entries of a block (`Partition`).
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, NoReturn

import torch
from torch import Tensor

from matrix_adagrad.geometry.squares import sum_squares, wide_dtype

if TYPE_CHECKING:
    from matrix_adagrad.geometry.partitions import Partition

__all__ = ["Diagonal", "Geometry", "Shape", "Unscaled", "quotient", "root", "shared_dims"]

Shape = Sequence[int]


@dataclass(frozen=True)
class Geometry(ABC):
    """How a tensor is measured.

    Geometries are values: they compare by content, are hashable, pickle, and never change. A subclass is a frozen
    dataclass.

    A geometry for matrices need not define vectors and scalars: the optimizers scale those entry by entry (see `on`).
    """

    @property
    def statistics(self) -> tuple[str, ...]:
        """The names of the statistics, which end the state keys: ``"sum"``, or ``"sum_row"``."""
        return ("",)

    @abstractmethod
    def statistic_shapes(self, shape: Shape) -> tuple[tuple[int, ...], ...]:
        """The shape of each statistic of a tensor of this shape."""

    @abstractmethod
    def measure(self, g: Tensor) -> tuple[Tensor, ...]:
        """What a gradient adds to each statistic: real, float32 or wider."""

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """The partitions whose sums of squares are the statistics, in their order; none if they are something else."""
        return ()

    def measure_part(self, g: Tensor, *statistics: Tensor) -> tuple[Tensor, ...]:
        """`measure` for a gradient in the shape `cut`, or for one rank's part of it, with the statistics that it joins.

        >>> import torch
        >>> from matrix_adagrad import Blocks
        >>> Blocks(rows=2).measure_part(torch.ones(2, 3, 5), torch.zeros(2, 1, 1))[0].flatten()
        tensor([15., 15.])
        """
        return self.measure(g)

    def cut(self, shape: Shape) -> tuple[int, ...]:
        """The shape that a tensor of this shape is viewed in for its statistics to broadcast against it."""
        return tuple(shape)

    def viewed(self, shape: Shape) -> Geometry:
        """The same geometry for a tensor of this shape that is viewed in the shape `cut` already."""
        return self

    @property
    def every(self) -> int:
        """After how many steps `derive` is called again. At 1, what it returns is not kept."""
        return 1

    @property
    def derived(self) -> tuple[str, ...]:
        """The names of what is derived from the statistics every few steps, and kept in between."""
        return ()

    def derived_shapes(self, shape: Shape) -> tuple[tuple[int, ...], ...]:
        """The shape of each derived tensor."""
        return ()

    def derive(self, *statistics: Tensor) -> tuple[Tensor, ...]:
        """What is expensive to compute and need not be up to date in every step, such as a root."""
        return ()

    @abstractmethod
    def precondition(self, direction: Tensor, lr: float | Tensor, eps: float, *statistics: Tensor) -> Tensor:
        """The step: lr · H⁻¹ · direction, where H is the metric of these statistics plus eps."""

    @abstractmethod
    def weigh(self, x: Tensor, eps: float, *statistics: Tensor) -> Tensor:
        """H · x, the gradient of the proximal function ψ(X) = ½⟨X, HX⟩."""

    @property
    def is_diagonal(self) -> bool:
        """Whether the metric multiplies each entry by a number, its `scale`."""
        return False

    @property
    def has_root_scale(self) -> bool:
        """Whether the scale is the root of the sum of squares over each block of a partition."""
        return False

    def scale(self, *statistics: Tensor) -> Tensor:
        """The scale s of each entry, at least 0, in a shape that broadcasts against the tensor."""
        self._lacks("diagonal metric")

    def spread(self, scale: Tensor, shape: Shape) -> Tensor:
        """The result of `scale`, in a shape that broadcasts against a tensor of this shape."""
        return scale

    def has_scales_by_row(self, shape: Shape) -> bool:
        """Whether every row ``x[i]`` has scales of its own, which its own statistics determine."""
        return False

    @property
    def transpose(self) -> Geometry:
        """The geometry that treats ``x.T`` the way this one treats the matrix ``x``."""
        self._lacks("transpose")

    def on(self, shape: Shape) -> Geometry:
        """The geometry of a tensor of this shape: this one for matrices, one scale per entry for vectors."""
        from matrix_adagrad.geometry.partitions import Entry

        return self if len(shape) > 1 else Entry()

    def entries(self, shape: Shape) -> tuple[int, ...]:
        """How many entries each number in a statistic sums over. ``reduction="mean"`` divides by it."""
        return tuple(math.prod(shape) // max(1, math.prod(own)) for own in self.statistic_shapes(shape))

    def scales(self, shape: Shape) -> int:
        """How many numbers the statistics of a tensor of this shape hold: the optimizer's state.

        >>> from matrix_adagrad import Column, Entry, Row, Whole
        >>> [geometry.scales((50_000, 64)) for geometry in (Row(), Column(), Entry(), Whole())]
        [50000, 64, 3200000, 1]
        """
        return sum(math.prod(own) for own in self.statistic_shapes(shape))

    def sharded_as(self, shape: Shape) -> tuple[Partition, ...]:
        """The partition that each statistic is laid out as if a tensor of this shape is sharded.

        None at all, the default, means that the full gradient is needed: parameters are gathered for their step.
        """
        return ()

    def independent_blocks(self, shape: Shape) -> Partition:
        """The blocks whose steps do not depend on each other: the whole tensor, unless the geometry says more."""
        from matrix_adagrad.geometry.partitions import Whole

        return Whole()

    def check_fits(self, name: str, shape: Shape, dtype: torch.dtype = torch.float32) -> None:
        """Raise an error that names the tensor if one of this shape and dtype cannot be measured.

        The methods are tried on a meta tensor, so that a mistake in one shows before anything moves.
        """
        own = self.on(shape)
        if own is not self:
            own.check_fits(name, shape, dtype)
            return
        try:
            self._try(tuple(shape), wide_dtype(dtype))
        except NotImplementedError:  # by torch, for meta tensors
            return
        except Exception as error:
            raise ValueError(f"{name}, of shape {tuple(shape)}, does not fit its geometry: {error}") from error

    def _try(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        names, own = self.statistics, type(self).__name__
        if not isinstance(names, tuple) or len(set(names)) != len(names):
            raise TypeError(
                f"{own}.statistics must be a tuple of different names, such as ('row', 'column'), got {names!r}"
            )
        shapes, g = self.statistic_shapes(shape), torch.empty(shape, dtype=dtype, device="meta")
        if not isinstance(shapes, tuple) or len(shapes) != len(names) or not all(isinstance(s, tuple) for s in shapes):
            raise TypeError(
                f"{own}.statistic_shapes must be a tuple of {len(names)} shapes, for {names}, got {shapes!r}"
            )
        measured = self.measure(g)
        if not isinstance(measured, tuple) or not all(isinstance(v, Tensor) for v in measured):
            raise TypeError(f"{own}.measure must return a tuple of {len(names)} tensors, for {names}, got {measured!r}")
        found = tuple(tuple(v.shape) for v in measured)
        if found != shapes:
            raise ValueError(f"{own}.measure gave tensors of the shapes {found}, and statistic_shapes says {shapes}")
        if any(v.is_complex() for v in measured):
            raise ValueError(f"{self!r} has complex statistics for {dtype}, and statistics must be real")
        step = self.precondition(g, 1.0, 1.0, *measured)
        if not isinstance(step, Tensor) or step.shape != g.shape:
            shown = tuple(step.shape) if isinstance(step, Tensor) else step
            raise ValueError(f"{own} scales a step of shape {shape} to {shown}: it must keep its shape")

    # ---------------------------------------------------------------------------------------------- norms and regret

    def norm(self, x: Tensor) -> Tensor:
        """The norm in which distances enter the regret bound."""
        self._lacks("norm")

    def squared_lengths(self, x: Tensor) -> Tensor:
        """The squares of the lengths whose largest is `norm`: of each block, or that of x itself."""
        return self.norm(x).square()

    @property
    def norm_partition(self) -> Partition:
        """The partition whose norm equals this one, or is its tightest upper bound."""
        self._lacks("norm that one of blocks bounds")

    def dual_norm(self, x: Tensor) -> Tensor:
        """The dual of `norm`."""
        self._lacks("dual norm")

    def steepest(self, x: Tensor, floor: float = 0.0) -> Tensor:
        """The direction of steepest descent: the point with `norm` at most 1 that maximizes ⟨X, ·⟩.

        A positive ``floor`` shortens it where x is small compared with the rest of x.
        """
        self._lacks("direction of steepest descent")

    def steepest_rms(self, shape: Shape) -> float:
        """The root mean square of the entries of `steepest`, if none of x is 0."""
        self._lacks("direction of steepest descent")

    @property
    def regret_geometry(self) -> Geometry | None:
        """The geometry in whose norm the regret bound measures distances; none if Corollary 1 is the only bound."""
        return None

    def eigenvalues(self, *statistics: Tensor) -> Tensor | None:
        """The eigenvalues of the metric that the regret bound adds up, each block's once, if they are known."""
        return None

    def one_sided(self, shape: Shape, *statistics: Tensor) -> tuple[int, Tensor, Tensor] | None:
        """If the metric is a matrix on one side of x: the dimension it mixes, its eigenvalues and eigenvectors."""
        return None

    def _lacks(self, what: str) -> NoReturn:
        raise TypeError(f"{self!r} has no {what}")

    def __str__(self) -> str:
        values = ", ".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))
        return type(self).__name__.lower() + (f"({values})" if values else "")


@dataclass(frozen=True)
class Unscaled(Geometry):
    """A geometry that keeps nothing of the gradients: it may have a norm, but no scale."""

    @property
    def statistics(self) -> tuple[str, ...]:
        return ()

    def statistic_shapes(self, shape: Shape) -> tuple[tuple[int, ...], ...]:
        return ()

    def measure(self, g: Tensor) -> tuple[Tensor, ...]:
        return ()

    def precondition(self, direction: Tensor, lr: float | Tensor, eps: float, *statistics: Tensor) -> Tensor:
        self._lacks("scale to divide a step by: use it in SteepestDescent")

    def weigh(self, x: Tensor, eps: float, *statistics: Tensor) -> Tensor:
        self._lacks("scale")


@dataclass(frozen=True)
class Diagonal(Geometry):
    """A geometry whose metric multiplies each entry by a number, its scale.

    Most scales are made from sums of squares over the blocks of one or more partitions. A subclass names these
    `partitions`, and everything but `scale` follows. A subclass that measures something else implements
    `statistic_shapes` and `measure` instead.
    """

    @property
    def is_diagonal(self) -> bool:
        return True

    def statistic_shapes(self, shape: Shape) -> tuple[tuple[int, ...], ...]:
        return tuple([partition.statistic_shape(shape) for partition in self.partitions])

    def measure(self, g: Tensor) -> tuple[Tensor, ...]:
        return tuple([partition.statistic(g) for partition in self.partitions])

    def measure_part(self, g: Tensor, *statistics: Tensor) -> tuple[Tensor, ...]:
        if type(self).measure is not Diagonal.measure or any(v.dim() != g.dim() for v in statistics):
            return self.measure(g)
        return tuple([sum_squares(g, shared_dims(g, v)) for v in statistics])

    @abstractmethod
    def scale(self, *statistics: Tensor) -> Tensor:
        """The scale s of each entry, at least 0, in a shape that broadcasts against the tensor.

        In a geometry that names its `partitions`, it depends on the sums of the entry's own blocks alone: a sparse step
        passes those of a few rows.
        """

    def sharded_as(self, shape: Shape) -> tuple[Partition, ...]:
        # A shard's scales follow from its own statistics, if these broadcast against it and nothing mixes them.
        are_sums = type(self).measure is Diagonal.measure and not self.derived
        are_uncut = all(len(partition.cut(shape)) == len(shape) for partition in self.partitions)
        return self.partitions if are_sums and are_uncut and _scales_by_entry(self, tuple(shape)) else ()

    @property
    def regret_geometry(self) -> Partition:
        from matrix_adagrad.geometry.partitions import Entry

        return Entry()

    def has_scales_by_row(self, shape: Shape) -> bool:
        if not shape:
            return False
        rows, more = shape[0], (2 * shape[0], *shape[1:])  # which would have more scales
        pairs = list(zip(self.statistic_shapes(shape), self.statistic_shapes(more), strict=True))
        if any(len(own) != len(self.cut(shape)) for own, _ in pairs):
            return False
        sizes = {(own[0], of_more[0]) for own, of_more in pairs}
        shared = {(1, 1)} if self.partitions else set()  # blocks that contain all rows
        return (rows, 2 * rows) in sizes and sizes <= {(rows, 2 * rows), *shared}

    def precondition(self, direction: Tensor, lr: float | Tensor, eps: float, *statistics: Tensor) -> Tensor:
        return quotient(lr, self.scale(*statistics) + eps) * direction

    def weigh(self, x: Tensor, eps: float, *statistics: Tensor) -> Tensor:
        return (self.scale(*statistics) + eps) * x


@functools.lru_cache(maxsize=1 << 10)
def _scales_by_entry(geometry: Diagonal, shape: tuple[int, ...]) -> bool:
    """Whether the scale of an entry depends on the statistics of its own blocks alone: tested on samples."""
    few = [min(size, 3) for size in shape]
    statistics = []
    for i, sizes in enumerate([[min(size, 3) for size in own] for own in geometry.statistic_shapes(shape)]):
        numbers = torch.arange(1, 1 + math.prod(sizes), dtype=torch.float64, device="cpu")
        statistics.append((numbers.view(sizes) + i) ** 1.5)
    scale = geometry.scale(*statistics).broadcast_to(few)
    for d, size in enumerate(few):
        for k in range(size):
            part = [v.narrow(d, k, 1) if v.shape[d] > 1 else v for v in statistics]
            own = scale.narrow(d, k, 1)
            if not torch.allclose(geometry.scale(*part).broadcast_to(own.shape), own):
                return False
    return True


def shared_dims(x: Tensor, statistic: Tensor) -> tuple[int, ...]:
    """The dimensions of ``x`` along which entries share a scale."""
    return tuple([d for d, size in enumerate(statistic.shape) if size != x.shape[d]])


def root(v: Tensor) -> Tensor:
    """√v, with derivative 0 at 0: a block that had no gradient does not move."""
    zero = v == 0
    return torch.where(zero, 0, torch.where(zero, 1, v).sqrt())


def quotient(lr: float | Tensor, s: Tensor) -> Tensor:
    """The step size lr / s in the dtype of s, with 0/0 = 0. It is never infinite: a zero gradient gives a zero step."""
    zero = s == 0
    scale = (lr / torch.where(zero, 1, s)).to(s.dtype)
    return torch.where(zero, 0, scale.clamp(max=torch.finfo(s.dtype).max))
