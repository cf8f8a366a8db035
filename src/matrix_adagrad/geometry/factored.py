r"""A scale for each entry, from the squares of its row and of its column.

With the sums of squares r_i of row i, c_j of column j and w of the whole matrix, entry (i, j) has the scale

.. math:: \sqrt{r_i c_j / w}, \qquad (r_i c_j)^{1/4} \qquad\text{or}\qquad \sqrt{\min(r_i, c_j)}.

The first is Adafactor's. Its squares have the right sums over rows and columns, but it can fall from one step to the
next. The other two never fall, and are at least the root of the entry's own squares: they have a regret bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from matrix_adagrad.geometry.base import Diagonal, root
from matrix_adagrad.geometry.partitions import Batched, Column, Partition, Row, Whole

__all__ = ["Factored"]

Combine = Literal["product", "geometric", "minimum"]
_ROW, _COLUMN, _WHOLE = map(Batched, (Row(), Column(), Whole()))


@dataclass(frozen=True)
class Factored(Diagonal):
    """One scale per entry, combined from those of its row and its column: m + n numbers for an m×n matrix.

    Tensors of more than two dimensions are batches of matrices, each with its own rows and columns. Vectors and scalars
    are scaled entry by entry.

    Args:
        combine: ``"product"``, √(r_i c_j / w), is the scale of Adafactor. It keeps one more number, the sum w of all
            squares, so that a sparse step need not look at all rows. It is the same for sums and for means, so
            ``reduction`` changes nothing. ``"geometric"``, (r_i c_j)^¼, is the diagonal of Shampoo. ``"minimum"``,
            √min(r_i, c_j), is the tighter of the two covers, as in SM3.

    Example:
        The squares of a gradient of rank one are approximated exactly:

        >>> import torch
        >>> g = torch.tensor([[1.0], [2.0]]) * torch.tensor([[3.0, 1.0, 2.0]])
        >>> torch.allclose(Factored().scale(*Factored().measure(g)), g.abs())
        True
        >>> Factored().scales((50_000, 64)), Factored("minimum").scales((50_000, 64))
        (50065, 50064)
    """

    combine: Combine = "product"

    def __post_init__(self) -> None:
        if self.combine not in ("product", "geometric", "minimum"):
            raise ValueError(f"Factored: combine must be 'product', 'geometric' or 'minimum', got {self.combine!r}")

    @property
    def statistics(self) -> tuple[str, ...]:
        return ("row", "column", "whole") if self.combine == "product" else ("row", "column")

    @property
    def partitions(self) -> tuple[Partition, ...]:
        return (_ROW, _COLUMN, _WHOLE) if self.combine == "product" else (_ROW, _COLUMN)

    @property
    def transpose(self) -> Factored:
        return self

    def scale(self, *statistics: Tensor) -> Tensor:
        row, column, *whole = statistics
        if self.combine == "product":  # roots of m + n numbers, not of all entries; and no product of squares overflows
            w = torch.where(whole[0] == math.inf, 1, whole[0])  # after an overflow, scales are large and steps stop
            return root(row / torch.where(w == 0, 1, w)) * root(column)
        if self.combine == "geometric":
            return root(root(row)) * root(root(column))
        return torch.minimum(root(row), root(column))


torch.serialization.add_safe_globals([Factored])  # for wrappers that save parameter groups as they are
