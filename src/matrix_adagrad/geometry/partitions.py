r"""Geometries whose metric holds one number per block of a partition: rows, columns, entries, the whole tensor, blocks.

The statistic is the sum of squares over each block, the scale its root, and the norm

.. math:: \|X\| = \max_b \|X_b\|_2 \qquad\text{and its dual}\qquad \|G\|_* = \sum_b \|G_b\|_2.

For a tensor with two or more dimensions, row ``i`` is the slice ``x[i]``, and a column is everything that shares the
remaining indices. Vectors and scalars have neither: they are scaled entry by entry, unless the geometry is `Whole`.
`Batched` sees such a tensor as a batch of matrices instead.

To define your own partition, write a frozen dataclass with `dims` and `transpose`. Add `cut` if its blocks do not span
whole dimensions.
"""

from __future__ import annotations

import math
import operator
from abc import abstractmethod
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from matrix_adagrad.geometry.base import Diagonal, Shape, root
from matrix_adagrad.geometry.squares import sum_squares, wide_dtype

__all__ = ["Batched", "Blocks", "Column", "Entry", "Partition", "Row", "Whole", "floored"]


@dataclass(frozen=True)
class Partition(Diagonal):
    """A partition of a tensor's entries into blocks that share one scale.

    Example:
        >>> from matrix_adagrad.geometry import Column, Row
        >>> Row().statistic_shape((5, 3)), Column().statistic_shape((5, 3))
        ((5, 1), (1, 3))
        >>> Row().transpose == Column()
        True
    """

    @abstractmethod
    def dims(self, shape: Shape) -> tuple[int, ...]:
        """The dimensions of `view` inside one block. The statistic sums over them."""

    @property
    @abstractmethod
    def transpose(self) -> Partition:
        """The partition that treats ``x.T`` the way this one treats the matrix ``x``."""

    def cut(self, shape: Shape) -> tuple[int, ...]:
        """The shape of `view`: ``shape``, with dimensions split where a block spans only part of one."""
        return tuple(shape)

    def viewed(self, shape: Shape) -> Partition:
        return self if len(self.cut(shape)) == len(shape) else _Viewed(self.dims(shape), self)

    @property
    def partitions(self) -> tuple[Partition, ...]:
        return (self,)

    def on(self, shape: Shape) -> Partition:
        return self

    def statistic_shape(self, shape: Shape) -> tuple[int, ...]:
        """The shape of the statistic for a tensor of this shape. It broadcasts against `view`.

        >>> Row().statistic_shape((8, 4, 3, 3)), Column().statistic_shape((8, 4, 3, 3))
        ((8, 1, 1, 1), (1, 4, 3, 3))
        """
        dims = self.dims(shape)
        return tuple(1 if d in dims else size for d, size in enumerate(self.cut(shape)))

    def members(self, shape: Shape) -> int:
        """How many entries share one scale.

        >>> Row().members((50_000, 64))
        64
        """
        cut = self.cut(shape)
        return math.prod([cut[d] for d in self.dims(shape)])  # a list: torch.compile does not take a generator here

    def separates_rows(self, shape: Shape) -> bool:
        """Whether every block lies inside one row ``x[i]``, so that rows can be treated one by one."""
        return len(shape) > 0 and 0 not in self.dims(shape) and self.cut(shape)[0] == shape[0]

    def check_fits(self, name: str, shape: Shape, dtype: torch.dtype = torch.float32) -> None:
        """Raise an error that names the tensor if this shape cannot be cut into blocks."""
        try:
            cut, dims = self.cut(shape), self.dims(shape)
            if math.prod(cut) != math.prod(shape):
                raise ValueError(f"{self!r} views it as {tuple(cut)}, of another size")
            if not set(dims) <= set(range(len(cut))):
                raise ValueError(f"{self!r} sums over the dimensions {tuple(dims)} of {tuple(cut)}")
        except ValueError as error:
            raise ValueError(f"{name}, of shape {tuple(shape)}, does not fit its geometry: {error}") from None

    def view(self, x: Tensor) -> Tensor:
        """``x`` viewed in the shape `cut`; never a copy."""
        cut = self.cut(x.shape)
        return x if len(cut) == x.dim() else x.view(cut)

    def statistic(self, x: Tensor) -> Tensor:
        """The sum of squared magnitudes over each block: real, float32 or wider, in the shape `statistic_shape`.

        >>> import torch
        >>> Row().statistic(torch.tensor([[3.0, 4.0], [0.0, 2.0]]))
        tensor([[25.],
                [ 4.]])
        """
        return sum_squares(self.view(x).to(wide_dtype(x.dtype)), self.dims(x.shape))

    def scale(self, *statistics: Tensor) -> Tensor:
        return root(*statistics)

    @property
    def has_root_scale(self) -> bool:
        return type(self).scale is Partition.scale

    def precondition(self, direction: Tensor, lr: float | Tensor, eps: float, *statistics: Tensor) -> Tensor:
        return super().precondition(self.view(direction), lr, eps, *statistics).reshape(direction.shape)

    def weigh(self, x: Tensor, eps: float, *statistics: Tensor) -> Tensor:
        return super().weigh(self.view(x), eps, *statistics).reshape(x.shape)

    def parts(self, shape: Shape) -> list[list[int]]:
        """The dimensions of `view` that each dimension of a tensor of this shape is split into.

        >>> Blocks(rows=2).parts((4, 3))
        [[0, 1], [2]]
        """
        cut = self.cut(shape)
        left, parts = list(range(len(cut))), []
        for d, size in enumerate(shape):
            own = [left.pop(0)]
            while left and len(cut) > len(shape) and (math.prod([cut[p] for p in own]) < size or d == len(shape) - 1):
                own.append(left.pop(0))
            parts.append(own)
        return parts

    def spread(self, scale: Tensor, shape: Shape) -> Tensor:
        """Scales, or a statistic, reshaped to broadcast against a tensor of this shape itself, not just its `view`.

        >>> import torch
        >>> Blocks(rows=2).spread(torch.tensor([[[1.0]], [[2.0]]]), (4, 3)).flatten()
        tensor([1., 1., 2., 2.])
        """
        cut = self.cut(shape)
        if len(cut) == len(shape):
            return scale
        expanded: list[int] = []
        sizes = []
        for size, own in zip(shape, self.parts(shape), strict=True):
            varies = any(scale.shape[part] > 1 for part in own)
            expanded += [cut[part] if varies else 1 for part in own]
            sizes.append(size if varies else 1)
        return scale.expand(expanded).reshape(sizes)

    def sharded_as(self, shape: Shape) -> tuple[Partition, ...]:
        return (self,)

    def independent_blocks(self, shape: Shape) -> Partition:
        return self

    def sharded_dims(self, shape: Shape) -> dict[int, int]:
        """The tensor dimensions that the statistic can be sharded along too, mapped to the statistic's dimensions."""
        # Only whole dimensions outside the blocks. If one is cut into blocks, its few scales are replicated.
        inside = self.dims(shape)
        return {d: own[0] for d, own in enumerate(self.parts(shape)) if len(own) == 1 and own[0] not in inside}

    def norm(self, x: Tensor) -> Tensor:
        r"""The mixed norm :math:`\max_b \|X_b\|_2`: for rows, the paper's :math:`\|X\|_{:2,\infty}`.

        >>> import torch
        >>> Row().norm(torch.tensor([[3.0, 4.0], [0.0, 2.0]]))
        tensor(5.)
        """
        lengths = self.statistic(x).sqrt()
        return lengths.amax() if lengths.numel() else lengths.sum()

    def squared_lengths(self, x: Tensor) -> Tensor:
        return self.statistic(x)

    @property
    def norm_partition(self) -> Partition:
        return self

    @property
    def regret_geometry(self) -> Partition:
        return self

    def eigenvalues(self, *statistics: Tensor) -> Tensor:
        return self.scale(*statistics)

    def dual_norm(self, x: Tensor) -> Tensor:
        r"""The dual of `norm`, :math:`\sum_b \|X_b\|_2`.

        >>> import torch
        >>> Row().dual_norm(torch.tensor([[3.0, 4.0], [0.0, 2.0]]))
        tensor(7.)
        """
        return self.statistic(x).sqrt().sum()

    def steepest(self, x: Tensor, floor: float | Tensor = 0.0) -> Tensor:
        r"""The direction of steepest descent in `norm`, :math:`X_b / \|X_b\|_2` for each block.

        With a floor, a block is divided by no less than ``floor`` times the root mean square of all blocks' lengths: a
        block that is much shorter than the others then takes a shorter step.

        >>> import torch
        >>> Row().steepest(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
        """
        squares = floored(self.statistic(x), floor)
        return self.precondition(x.to(wide_dtype(x.dtype)), 1.0, 0.0, squares).to(x.dtype)

    def steepest_rms(self, shape: Shape) -> float:
        """The root mean square of the entries of `steepest`: 1/√n for blocks of n entries."""
        return 1 / math.sqrt(max(1, self.members(shape)))


@dataclass(frozen=True)
class _Viewed(Partition):
    """The blocks of a partition in a tensor that is viewed in its shape `cut` already."""

    inside: tuple[int, ...]
    partition: Partition

    def dims(self, shape: Shape) -> tuple[int, ...]:
        return self.inside

    def scale(self, *statistics: Tensor) -> Tensor:
        return self.partition.scale(*statistics)

    @property
    def has_root_scale(self) -> bool:
        return self.partition.has_root_scale

    @property
    def transpose(self) -> Partition:
        self._lacks("transpose")


def floored(squares: Tensor, floor: float | Tensor) -> Tensor:
    """Squared lengths of blocks, each no less than that of ``floor`` times the root mean square of all lengths."""
    if not isinstance(floor, Tensor) and not floor:
        return squares
    others = squares.nan_to_num(0.0, posinf=0.0)  # a block that is not finite does not reach the others
    return squares.clamp(min=floor**2 * others.mean())


@dataclass(frozen=True)
class Row(Partition):
    """One scale per row ``x[i]``: O(m) state for an m×n matrix."""

    def dims(self, shape: Shape) -> tuple[int, ...]:
        return tuple(range(1, len(shape)))

    @property
    def transpose(self) -> Partition:
        return Column()


@dataclass(frozen=True)
class Column(Partition):
    """One scale per column ``x[:, j]``: O(n) state for an m×n matrix."""

    def dims(self, shape: Shape) -> tuple[int, ...]:
        return (0,) if len(shape) > 1 else ()

    @property
    def transpose(self) -> Partition:
        return Row()


@dataclass(frozen=True)
class Entry(Partition):
    """One scale per entry: the geometry of AdaGrad and Adam, O(mn) state."""

    def dims(self, shape: Shape) -> tuple[int, ...]:
        return ()

    @property
    def transpose(self) -> Partition:
        return self


@dataclass(frozen=True)
class Whole(Partition):
    """One scale for the whole tensor: O(1) state. Vectors have one scale too."""

    def dims(self, shape: Shape) -> tuple[int, ...]:
        return tuple(range(len(shape)))

    @property
    def transpose(self) -> Partition:
        return self


@dataclass(frozen=True, repr=False)
class Blocks(Partition):
    """One scale per block of a regular grid over the matrix.

    Args:
        rows: the number of equal groups of consecutive rows. ``None``, the default, makes every row its own group.
        columns: the number of equal slices per row. The default, 1, keeps rows in one piece. ``None`` makes every
            column its own slice. In a tensor with more than two dimensions, the slices are cut along the second one.

    Example:
        A fused query-key-value weight with one scale for each of its three parts, and an output projection whose rows
        are cut into 8 attention heads:

        >>> Blocks(rows=3).statistic_shape((3 * 512, 512))
        (3, 1, 1)
        >>> Blocks(columns=8).scales((512, 512)) == 512 * 8
        True
    """

    rows: int | None = None
    columns: int | None = 1

    def __repr__(self) -> str:
        changed = [f"{f.name}={getattr(self, f.name)}" for f in fields(self) if getattr(self, f.name) != f.default]
        return f"Blocks({', '.join(changed)})"

    def __post_init__(self) -> None:
        for name, parts in (("rows", self.rows), ("columns", self.columns)):
            if parts is None:
                continue
            try:
                number = operator.index(parts)  # turns NumPy integers into plain ones, which compare and print as such
            except TypeError:
                number = None
            if number is None or isinstance(parts, bool):
                raise TypeError(f"Blocks: {name} must be an int or None, got {parts!r}")
            if number < 1:
                raise ValueError(f"Blocks: {name} must be at least 1, got {number}")
            object.__setattr__(self, name, number)

    @property
    def transpose(self) -> Partition:
        return Blocks(rows=self.columns, columns=self.rows)

    def cut(self, shape: Shape) -> tuple[int, ...]:
        if len(shape) < 2:
            return tuple(shape)
        m, n, *rest = shape
        return (*self._split("rows", m, self.rows), *self._split("columns", n, self.columns), *rest)

    def dims(self, shape: Shape) -> tuple[int, ...]:
        if len(shape) < 2:
            return ()
        cut = self.cut(shape)
        columns_at = len(self._split("rows", shape[0], self.rows))
        inside_rows = () if self.rows is None else (columns_at - 1,)
        if self.columns is None:
            return inside_rows
        first_inside = columns_at + (self.columns > 1)
        return (*inside_rows, *range(first_inside, len(cut)))

    def _split(self, name: str, size: int, parts: int | None) -> tuple[int, ...]:
        if parts is None or parts == 1:
            return (size,)
        if size % parts:
            raise ValueError(f"{self!r} cannot cut {size} {name} into {parts} equal parts")
        return (parts, size // parts)


@dataclass(frozen=True, repr=False)
class Batched(Partition):
    """A geometry for each matrix in a batch: it applies to the last two dimensions, separately for each index before.

    Use it for stacked experts, ``(experts, m, n)``, or attention heads. A single matrix is a batch without batch
    dimensions: for it, and for vectors, this is the inner geometry itself.

    Args:
        geometry: the geometry of each matrix, such as ``Row()``, or its name.

    Example:
        Eight experts with one scale for each row of each, where `Row` has one scale per expert:

        >>> Batched(Row()).statistic_shape((8, 512, 64)), Row().statistic_shape((8, 512, 64))
        ((8, 512, 1), (8, 1, 1))
        >>> Batched(Blocks(rows=3)).scales((8, 3 * 64, 64)) == 8 * 3
        True
    """

    geometry: Partition

    def __post_init__(self) -> None:
        if not isinstance(self.geometry, Partition):
            from matrix_adagrad.geometry.names import as_partition

            object.__setattr__(self, "geometry", as_partition(self.geometry))
        if isinstance(self.geometry, Batched):
            raise ValueError(f"{self.geometry!r} has its batch already: all dimensions but the last two")

    def __repr__(self) -> str:
        return f"Batched({self.geometry!r})"

    def __str__(self) -> str:
        return f"batched({self.geometry})"

    @property
    def transpose(self) -> Partition:
        return Batched(self.geometry.transpose)

    def cut(self, shape: Shape) -> tuple[int, ...]:
        return (*shape[:-2], *self.geometry.cut(shape[-2:]))

    def dims(self, shape: Shape) -> tuple[int, ...]:
        return tuple(len(shape[:-2]) + d for d in self.geometry.dims(shape[-2:]))


# Some optimizer wrappers save parameter groups as they are. Let torch.load(weights_only=True) create these values.
torch.serialization.add_safe_globals([Row, Column, Entry, Whole, Blocks, Batched])
