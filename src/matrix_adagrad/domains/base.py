r"""What a domain is: a closed convex set with a projection in the metric of a step.

The mirror descent step over a set :math:`\mathcal X` is the unconstrained step, followed by the projection in the
metric of that step,

.. math:: \operatorname{argmin}_{Y \in \mathcal X}\ \tfrac12 \langle Y - X,\ S \circ (Y - X) \rangle_F,

where S holds the scale of each entry. Unless the set constrains each entry separately or S is constant, this is not the
nearest point in the Euclidean sense.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Real

import torch
from torch import Tensor

from matrix_adagrad.geometry import Geometry, Partition, Shape, as_geometry, wide_dtype

__all__ = ["BlockDomain", "Domain"]

_REAL = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_EPS = {dtype: torch.finfo(dtype).eps for dtype in (*_REAL, torch.complex128, torch.complex64, torch.complex32)}


@dataclass(frozen=True)
class Domain(ABC):
    """A closed convex set of tensors. Like geometries, domains are values: they compare, hash, and never change.

    Example:
        >>> import torch
        >>> from matrix_adagrad.domains import FrobeniusBall
        >>> x, scale = torch.tensor([[3.0], [4.0]]), torch.tensor([[1.0], [9.0]])
        >>> FrobeniusBall(1.0).project(x)  # the nearest point
        tensor([[0.6000],
                [0.8000]])
        >>> FrobeniusBall(1.0).project(x, scale)  # the nearest where a move of the second row costs nine times as much
        tensor([[0.1064],
                [0.9943]])
    """

    depends_on_metric = True  # whether the nearest point may differ between metrics

    @abstractmethod
    def project(self, x: Tensor, scale: Tensor | float = 1.0) -> Tensor:
        """The point of the set nearest to ``x`` in the metric ½⟨X, S∘X⟩. If ``x`` is inside, its values are unchanged.

        Args:
            x: a tensor on any device, of any floating-point dtype.
            scale: S, positive and finite; this is not checked. It broadcasts against ``x`` like a geometry's statistic:
                row scales are an m×1 column. `Partition.spread` reshapes the statistic of `Blocks` to fit.
        """

    def project_(self, x: Tensor, scale: Tensor | float = 1.0) -> Tensor:
        """`project`, in place."""
        return x.copy_(self.project(x, scale))

    @abstractmethod
    def argmin(self, g: Tensor) -> Tensor:
        """A point of the set that minimizes the linear function ⟨g, X⟩. Raises an error if it is unbounded below."""

    @abstractmethod
    def diameter(self, geometry: Geometry | str, shape: Shape) -> float:
        """The largest distance between two points of the set, for this shape and in the geometry's norm.

        In the norm of `Spectral` it is the Frobenius diameter, an upper bound. This is exact if two points at that
        distance differ by a matrix of rank one, as they do in all balls, boxes and simplices of this package.
        """

    @abstractmethod
    def check_fits(self, name: str, x: Tensor) -> None:
        """Raise an error that names the tensor if the set does not contain tensors of its kind."""

    @abstractmethod
    def is_separable_by_rows(self, shape: Shape) -> bool:
        """Whether each row has its own set, so that each can be projected without looking at the others."""

    def of_rows(self, rows: Tensor, shape: Shape) -> Domain:  # noqa: ARG002
        """The set for the given rows (sorted indices) of a tensor of this shape, if it is separable by rows."""
        return self

    def is_invariant(self, dims: Iterable[int], shape: Shape) -> bool:  # noqa: ARG002
        """Whether every rotation that mixes the entries along ``dims`` maps the set to itself."""
        return False

    def distance(self, x: Tensor) -> float:
        """The Euclidean distance of ``x`` from the set."""
        gap = x.to(wide_dtype(x.dtype)) - self.project(x.to(wide_dtype(x.dtype)))
        return float(torch.linalg.vector_norm(gap))

    @abstractmethod
    def excess(self, x: Tensor) -> Tensor:
        """The worst violation of the set's constraint by ``x``, relative to the size of the constraint; ≤ 0 inside."""

    def contains(self, x: Tensor, tolerance: float | None = None) -> bool:
        """Whether ``x`` lies in the set, up to rounding.

        Args:
            x: a tensor.
            tolerance: the allowed `excess`. By default, what rounding in ``x``'s dtype may cause.

        >>> import torch
        >>> from matrix_adagrad.domains import RowBalls
        >>> RowBalls(5.0).contains(torch.tensor([[3.0, 4.0]])), RowBalls(4.9).contains(torch.tensor([[3.0, 4.0]]))
        (True, False)
        """
        if x.numel() == 0:
            return True
        if tolerance is None:
            tolerance = _EPS[x.dtype] + (16 + math.sqrt(x.numel())) * _EPS[wide_dtype(x.dtype)]
        return bool(self.excess(x.to(wide_dtype(x.dtype))) <= tolerance)


@dataclass(frozen=True)
class BlockDomain(Domain):
    """The same set for each block of a geometry: a ball per row, a simplex per column, an interval per entry.

    A subclass has a field ``geometry``, projects the blocks, and gives the width of one block's set.
    """

    @property
    @abstractmethod
    def blocks(self) -> Partition:
        """The geometry whose blocks each have a set."""

    @abstractmethod
    def width(self, entries: int, members: int) -> float:
        """The largest distance between two points of a block's set, measured on ``entries`` of its ``members``."""

    def diameter(self, geometry: Geometry | str, shape: Shape) -> float:
        geometry = as_geometry(geometry).norm_partition
        # Blocks are independent: the squared widths of those that meet one block of the norm's geometry add up.
        members = self.blocks.members(shape)
        if self.blocks.cut(shape) == geometry.cut(shape) == tuple(shape):
            mine, theirs = set(self.blocks.dims(shape)), set(geometry.dims(shape))
            meeting = math.prod(shape[d] for d in theirs - mine)
            return math.sqrt(meeting) * self.width(math.prod(shape[d] for d in theirs & mine), members)
        pairs, overlaps = torch.unique(
            torch.stack([_labels(geometry, shape), _labels(self.blocks, shape)]), dim=1, return_counts=True
        )
        squares = torch.tensor([self.width(n, members) ** 2 for n in overlaps.tolist()], dtype=torch.float64)
        totals = squares.new_zeros(geometry.scales(shape)).index_add_(0, pairs[0], squares)
        return float(totals.max().sqrt())

    def check_fits(self, name: str, x: Tensor) -> None:
        self.blocks.check_fits(name, x.shape)

    def is_separable_by_rows(self, shape: Shape) -> bool:
        return self.blocks.separates_rows(shape)

    def _slack(self, x: Tensor) -> float:
        """What rounding may add to the relative size of a projected point. Points within this slack count as inside.

        A second projection then leaves the result of the first one bit-for-bit unchanged.
        """
        return _EPS[x.dtype] + (4 + math.sqrt(self.blocks.members(x.shape)) / 4) * _EPS[wide_dtype(x.dtype)]

    def _viewed(self, x: Tensor, scale: Tensor | float) -> tuple[Tensor, Tensor]:
        """``x`` as the blocks' geometry views it, in a wide dtype, and the scale, which broadcasts against it."""
        if x.dtype not in _EPS:
            raise TypeError(f"a tensor to be projected must have a floating-point dtype, got {x.dtype}")
        x = x.to(wide_dtype(x.dtype))
        s = torch.as_tensor(scale, dtype=x.real.dtype if x.is_complex() else x.dtype, device=x.device)
        cut = self.blocks.cut(x.shape)
        if s.numel() == 1:
            return x.reshape(cut), s.reshape((1,) * len(cut))
        if len(cut) != x.dim():
            return x.reshape(cut), s.expand(x.shape).reshape(cut)
        return x, s if s.dim() == x.dim() else s.reshape((1,) * (x.dim() - s.dim()) + s.shape)


def _labels(geometry: Partition, shape: Shape) -> Tensor:
    """The index of each entry's block."""
    numbers = torch.arange(geometry.scales(shape)).view(geometry.statistic_shape(shape))
    return numbers.expand(geometry.cut(shape)).reshape(-1)


def set_number(domain: Domain, name: str, *, positive: bool = True) -> None:
    """Convert a field to float. Raise an error that names it unless it is a number, positive and finite if required."""
    value, field = getattr(domain, name), f"{type(domain).__name__}: {name}"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{field} must be a number, got {value!r}")
    if positive and not 0 < float(value) < math.inf:
        raise ValueError(f"{field} must be positive and finite, got {value!r}")
    object.__setattr__(domain, name, float(value))
