"""The domains, shapes and scales that every test of projections runs over."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from matrix_adagrad import Blocks
from matrix_adagrad.domains import (
    Balls,
    Box,
    ColumnBalls,
    ColumnSimplex,
    FrobeniusBall,
    L1Ball,
    L1Balls,
    NonNegative,
    RowBalls,
    RowProduct,
    RowSimplex,
    Simplices,
    WholeSpace,
)

BOUNDED = (
    FrobeniusBall(1.5),
    RowBalls(0.7),
    ColumnBalls(0.9),
    Balls(1.1, Blocks(rows=2)),
    Balls(0.8, Blocks(columns=2)),
    Box(-0.3, 0.5),
    RowSimplex(),
    ColumnSimplex(2.0),
    Simplices(3.0, "whole"),
    Simplices(1.0, Blocks(rows=3, columns=2)),
    L1Ball(2.0),
    L1Balls(0.6, "row"),
    L1Balls(0.6, "column"),
    RowProduct(((1, FrobeniusBall(0.5)), (3, RowSimplex()), (2, Box(0.0, 0.2)))),
)
UNBOUNDED = (NonNegative(), WholeSpace(), Box(-1.0, float("inf")))
DOMAINS = (*BOUNDED, *UNBOUNDED)

SHAPE = (6, 4)  # all of them have sets of this shape
SCALES: dict[str, tuple[int, ...]] = {"one": (), "row": (6, 1), "column": (1, 4), "entry": (6, 4)}


def draw(seed: int, shape: tuple[int, ...] = SHAPE, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def draw_scale(kind: str, seed: int, orders: float = 1.0, shapes: dict[str, Any] = SCALES) -> Tensor:
    """Scales that spread over so many orders of magnitude to either side of 1."""
    random = torch.Generator().manual_seed(1000 + seed)
    return 10 ** (orders * (2 * torch.rand(shapes[kind], dtype=torch.float64, generator=random) - 1))


def violation(domain: Any, x: Tensor, scale: Tensor, y: Tensor) -> float:
    """By how much the variational inequality fails: sup over the set of ⟨S∘(x − y), v − y⟩, over the norms' product.

    It is at most 0 for the projection y of x, and for no other point of the set. What the rounding of y's own entries
    does to it is taken off.
    """
    force = scale * (x - y)
    size = force.norm() * (y.norm() + x.norm() + 1)
    move = domain.argmin(-force) - y
    rounding = 2 * torch.finfo(y.dtype).eps * (scale * (x.abs() + y.abs()) * move.abs()).sum()
    return float(((force * move).sum() - rounding) / size) if size else 0.0
