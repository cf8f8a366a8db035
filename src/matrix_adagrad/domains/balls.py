r"""Euclidean balls for the blocks of a geometry.

In the metric S the projection of x onto the ball of radius r is :math:`y_j = x_j\, s_j / (s_j + \lambda)`, where λ ≥ 0
is the multiplier that makes the length of y equal to r (0 if x lies inside). Entries that share a scale share the
factor, so only their lengths enter the equation for λ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from matrix_adagrad import native
from matrix_adagrad.domains.base import BlockDomain, set_number
from matrix_adagrad.geometry import Column, Partition, Row, Shape, Whole, as_partition, lean_sum_squares

__all__ = ["Balls", "ColumnBalls", "FrobeniusBall", "RowBalls"]

# Newton's method needs about 5 steps. If scales span many orders of magnitude, it creeps from one to the next. Then
# bisecting the logarithm of the interval finds the right one first.
_NEWTON, _BISECTION = 8, 24
_CLOSE = 1e-9  # a step this short, relatively, is the last: Newton's method squares the error


@dataclass(frozen=True)
class Balls(BlockDomain):
    """‖x_b‖₂ ≤ ``radius`` for each block b of a geometry.

    Example:
        Three attention matrices in one weight, each of norm at most 2:

        >>> import torch
        >>> from matrix_adagrad import Blocks
        >>> weight = Balls(2.0, Blocks(rows=3)).project(torch.ones(12, 4))
        >>> weight[:4].norm()
        tensor(2.)
    """

    radius: float
    geometry: Partition = field(default_factory=Row)

    def __post_init__(self) -> None:
        set_number(self, "radius")
        object.__setattr__(self, "geometry", as_partition(self.geometry))

    @property
    def blocks(self) -> Partition:
        return self.geometry

    def project(self, x: Tensor, scale: Tensor | float = 1.0) -> Tensor:
        viewed, factor = self._shrunk(x, scale)
        return (viewed * factor).reshape(x.shape).to(x.dtype)

    def project_(self, x: Tensor, scale: Tensor | float = 1.0) -> Tensor:
        viewed, factor = self._shrunk(x, scale)
        if not torch.compiler.is_compiling() and viewed.data_ptr() == x.data_ptr():  # the same memory, not a copy
            viewed.mul_(factor)
            return x
        return x.copy_(viewed.mul_(factor).view(x.shape))

    def _shrunk(self, x: Tensor, scale: Tensor | float) -> tuple[Tensor, Tensor]:
        """``x`` as the geometry views it, and the factors for its entries."""
        viewed, s = self._viewed(x, scale)
        dims = self.geometry.dims(x.shape)
        alike = tuple(d for d in dims if s.shape[d] == 1)
        lengths = lean_sum_squares(viewed, alike).sqrt() if alike else viewed.abs()
        rest = tuple(d for d in dims if d not in alike)
        return viewed, _shrinkage(lengths / self.radius, s, rest, self._slack(x))

    def excess(self, x: Tensor) -> Tensor:
        return self.geometry.norm(x) / self.radius - 1

    def argmin(self, g: Tensor) -> Tensor:
        viewed, _ = self._viewed(g, 1.0)
        dims, tiny = self.geometry.dims(g.shape), torch.finfo(viewed.dtype).tiny
        if not dims:
            return torch.sgn(g).mul(-self.radius)
        viewed = viewed / viewed.abs().amax(dims, keepdim=True).clamp_min(
            tiny
        )  # squares of small numbers would be lost
        length: Tensor = torch.linalg.vector_norm(viewed, 2, dims, keepdim=True)
        return (-self.radius * viewed / length.clamp_min(tiny)).reshape(g.shape).to(g.dtype)

    def width(self, entries: int, members: int) -> float:  # noqa: ARG002
        return 2 * self.radius

    def is_invariant(self, dims: Iterable[int], shape: Shape) -> bool:
        return self.geometry.cut(shape) == tuple(shape) and set(dims) <= set(self.geometry.dims(shape))


def _shrinkage(a: Tensor, s: Tensor, dims: tuple[int, ...], slack: float) -> Tensor:
    """The factors s / (s + λ) that bring the lengths ``a``, over ``dims``, into the unit ball."""
    if not dims or not a.numel():
        return torch.where(a <= 1 + slack, 1, a).reciprocal()
    plain = a.device.type == "cpu" and type(a) is Tensor and not torch.compiler.is_compiling()
    if plain and not (torch.is_grad_enabled() and a.requires_grad) and not native.missing():
        return _native(a, s, dims, slack)
    return _with_operators(a, s, dims, slack)


def _native(a: Tensor, s: Tensor, dims: tuple[int, ...], slack: float) -> Tensor:
    """Compute the factors with the native kernel, which takes contiguous blocks in float64."""
    last, entries = tuple(range(-len(dims), 0)), math.prod([a.shape[d] for d in dims])
    many = entries < a.numel()
    lengths, scales = a.to(torch.float64), s.to(torch.float64).expand(a.shape)
    if many:
        lengths, scales = lengths.movedim(dims, last), scales.movedim(dims, last)
    lengths, scales = lengths.contiguous(), scales.contiguous()
    factors = torch.empty_like(lengths)
    native.load().matrix_adagrad_shrink(
        *(lengths.data_ptr(), scales.data_ptr(), a.numel() // entries, entries),
        *(slack, factors.data_ptr(), native.threads()),
    )
    return (factors.movedim(last, dims) if many else factors).to(a.dtype)


def _with_operators(a: Tensor, s: Tensor, dims: tuple[int, ...], slack: float) -> Tensor:
    """Compute the factors with torch's operators, on any device. Values are read back only on a CPU."""
    length = torch.linalg.vector_norm(a, 2, dims, keepdim=True)
    a = torch.where(length <= 1 + slack, 0, a)  # inside: λ = 0
    s = (s / s.amax(dims, keepdim=True)).clamp_min(torch.finfo(a.dtype).tiny)
    u = s * a
    # ‖u / (s + λ)‖ = 1. The reciprocal of this length is concave and rises with λ: Newton's method lands below the root
    # from either side. Two more lower bounds: what one entry needs by itself, and what all need if all scales were 1.
    upper = torch.linalg.vector_norm(u, 2, dims, keepdim=True)
    lower = torch.maximum((u - s).amax(dims, keepdim=True), upper - 1).clamp_min_(0)
    at = lower
    reads_back = a.device.type == "cpu" and not torch.compiler.is_compiling()
    for k in range(_NEWTON + _BISECTION):
        shifted = s + at
        squares = (u / shifted).square_()
        square = squares.sum(dims, keepdim=True)
        step = square * (square.sqrt() - 1) / squares.div_(shifted).sum(dims, keepdim=True)
        lower = torch.fmax(lower, at + step)  # fmax skips the 0/0 of a block of zeros
        if reads_back and bool(((lower - at).abs() <= _CLOSE * lower).all()):
            break
        if k < _NEWTON:
            at = lower
        else:
            upper = torch.where(square < 1, torch.minimum(upper, at), upper)
            at = torch.where(upper > 16 * lower, lower.sqrt() * upper.sqrt(), lower)
    return torch.where(lower == 0, 1, s / (s + lower))


@dataclass(frozen=True)
class FrobeniusBall(Balls):
    r"""‖x‖_F ≤ ``radius``: one ball for the whole tensor, the decision set of the paper's examples.

    In the metric of a step, rows that had small gradients are cheap to move, so the projection shrinks them most. Rows
    without any gradient have the scale ``eps``, and go to 0 as soon as the parameter reaches the ball's surface.
    """

    geometry: Partition = field(default_factory=Whole, init=False, repr=False)


@dataclass(frozen=True)
class RowBalls(Balls):
    """‖x[i]‖₂ ≤ ``radius`` for each row: embeddings of bounded length.

    Example:
        >>> import torch
        >>> RowBalls(1.0).project(torch.tensor([[3.0, 4.0], [0.3, 0.4]]))
        tensor([[0.6000, 0.8000],
                [0.3000, 0.4000]])
    """

    geometry: Partition = field(default_factory=Row, init=False, repr=False)


@dataclass(frozen=True)
class ColumnBalls(Balls):
    """‖x[:, j]‖₂ ≤ ``radius`` for each column."""

    geometry: Partition = field(default_factory=Column, init=False, repr=False)
