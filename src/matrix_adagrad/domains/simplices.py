r"""Simplices and ℓ₁ balls for the blocks of a geometry.

In the metric S the projection of x onto a simplex is :math:`y_j = \max(0, x_j - \tau / s_j)`, where τ makes the sum
right. An entry stays positive while :math:`\tau < s_j x_j`, so sorting these products finds τ exactly. For a point
outside an ℓ₁ ball, the projection is that of its magnitudes onto a simplex.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from matrix_adagrad.domains.base import BlockDomain, set_number
from matrix_adagrad.geometry import Column, Partition, Row, Whole, as_partition

__all__ = ["ColumnSimplex", "L1Ball", "L1Balls", "RowSimplex", "Simplices"]


@dataclass(frozen=True)
class _SumDomain(BlockDomain):
    """A set that bounds the sum of each block."""

    @property
    def blocks(self) -> Partition:
        return self.geometry  # type: ignore[attr-defined, no-any-return]

    def check_fits(self, name: str, x: Tensor) -> None:
        super().check_fits(name, x)
        if x.is_complex():
            raise TypeError(f"{name} is complex, and {self!r} is a set of real numbers")
        if x.dim() < 2 and self.blocks != Whole():
            raise ValueError(f"{name} has shape {tuple(x.shape)}, without rows or columns: {self!r} is for matrices")

    def _flat(self, x: Tensor, scale: Tensor | float) -> tuple[Tensor, Tensor, torch.Size]:
        """``x`` and its scales with one row per block, and the shape before flattening."""
        self.check_fits("a tensor to be projected", x)
        viewed, s = self._viewed(x, scale)
        dims = self.blocks.dims(x.shape)
        last = tuple(range(-len(dims), 0))
        moved = viewed.movedim(dims, last)
        flat = s.expand(viewed.shape).movedim(dims, last)
        rows = moved.dim() - len(dims)
        matrix = math.prod(moved.shape[:rows]), math.prod(moved.shape[rows:])
        return moved.reshape(matrix), flat.reshape(matrix), moved.shape

    def _unflat(self, y: Tensor, moved: torch.Size, like: Tensor) -> Tensor:
        dims = self.blocks.dims(like.shape)
        return y.reshape(moved).movedim(tuple(range(-len(dims), 0)), dims).reshape(like.shape).to(like.dtype)


@dataclass(frozen=True)
class Simplices(_SumDomain):
    """x ≥ 0, with sum ``total`` over each block of a geometry."""

    total: float = 1.0
    geometry: Partition = field(default_factory=Row)

    def __post_init__(self) -> None:
        set_number(self, "total")
        object.__setattr__(self, "geometry", as_partition(self.geometry))

    def project(self, x: Tensor, scale: Tensor | float = 1.0) -> Tensor:
        flat, s, moved = self._flat(x, scale)
        excess = (flat.sum(1, keepdim=True) - self.total).abs()
        inside = (flat >= 0).all(1, keepdim=True) & (excess <= self._slack(x) * self.total)
        return self._unflat(torch.where(inside, flat, _onto_simplex(flat, s, self.total)), moved, x)

    def excess(self, x: Tensor) -> Tensor:
        flat, _, _ = self._flat(x, 1.0)
        off = (flat.sum(1) - self.total).abs().amax()
        return torch.maximum(off, -flat.amin()) / self.total

    def argmin(self, g: Tensor) -> Tensor:
        flat, _, moved = self._flat(g, 1.0)
        lowest = torch.zeros_like(flat).scatter_(1, flat.argmin(1, keepdim=True), self.total)
        return self._unflat(lowest, moved, g)

    def width(self, entries: int, members: int) -> float:
        if entries > 1:
            return math.sqrt(2) * self.total  # from one corner to another
        return self.total if members > 1 else 0.0


@dataclass(frozen=True)
class L1Balls(_SumDomain):
    """Σ|x| ≤ ``radius`` over each block of a geometry."""

    radius: float
    geometry: Partition = field(default_factory=Row)

    def __post_init__(self) -> None:
        set_number(self, "radius")
        object.__setattr__(self, "geometry", as_partition(self.geometry))

    def project(self, x: Tensor, scale: Tensor | float = 1.0) -> Tensor:
        flat, s, moved = self._flat(x, scale)
        magnitude = flat.abs()
        inside = magnitude.sum(1, keepdim=True) <= self.radius * (1 + self._slack(x))
        onto = _onto_simplex(magnitude, s, self.radius).copysign(flat)
        return self._unflat(torch.where(inside, flat, onto), moved, x)

    def excess(self, x: Tensor) -> Tensor:
        flat, _, _ = self._flat(x, 1.0)
        return flat.abs().sum(1).amax() / self.radius - 1

    def argmin(self, g: Tensor) -> Tensor:
        flat, _, moved = self._flat(g, 1.0)
        steepest = flat.abs().argmax(1, keepdim=True)
        corner = -self.radius * flat.gather(1, steepest).sign()
        return self._unflat(torch.zeros_like(flat).scatter_(1, steepest, corner), moved, g)

    def width(self, entries: int, members: int) -> float:  # noqa: ARG002
        return 2 * self.radius


def _onto_simplex(x: Tensor, s: Tensor, total: float) -> Tensor:
    """The projection of each row of ``x`` onto the simplex with this sum, in the metric of ``s``."""
    if x.shape[1] == 0:
        return x
    # Move by τ/s, with τ in units of the row's smallest scale: these weights are at most 1.
    w = (s.amin(1, keepdim=True) / s).clamp_min(torch.finfo(x.dtype).tiny)
    ends = x / w  # an entry is positive while τ is below
    order = ends.argsort(1, descending=True)
    sums, weights = x.gather(1, order).cumsum_(1), w.gather(1, order).cumsum_(1)
    candidates = (sums - total) / weights
    positive = ends.gather(1, order) > candidates
    last = positive.sum(1, keepdim=True).sub_(1).clamp_min_(0)
    threshold = candidates.gather(1, last)
    stays = ends > threshold
    y, w = torch.where(stays, x - threshold * w, 0), torch.where(stays, w, 0)
    excess = (y.sum(1, keepdim=True) - total) / w.sum(
        1, keepdim=True
    )  # from rounding, in running sums of large numbers
    return (y - excess * w).clamp_min_(0)


@dataclass(frozen=True)
class RowSimplex(Simplices):
    """Each row is non-negative with sum ``total``: rows as distributions.

    Example:
        >>> import torch
        >>> RowSimplex().project(torch.tensor([[0.5, 1.5], [-1.0, 0.0]]))
        tensor([[0., 1.],
                [0., 1.]])
    """

    geometry: Partition = field(default_factory=Row, init=False, repr=False)


@dataclass(frozen=True)
class ColumnSimplex(Simplices):
    """Each column is non-negative with sum ``total``."""

    geometry: Partition = field(default_factory=Column, init=False, repr=False)


@dataclass(frozen=True)
class L1Ball(L1Balls):
    """Σ|x| ≤ ``radius`` over the whole tensor."""

    geometry: Partition = field(default_factory=Whole, init=False, repr=False)
