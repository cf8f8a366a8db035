"""Parameters of every rank, gradients of every size, and the loop that puts them together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

SHAPES: tuple[tuple[int, ...], ...] = ((6, 4), (4, 6), (5,), (), (4, 2, 3, 3))


def make_params(
    dtype: torch.dtype = torch.float64, shapes: Sequence[tuple[int, ...]] = SHAPES, seed: int = 0
) -> list[Parameter]:
    random = torch.Generator().manual_seed(seed)
    return [Parameter(torch.randn(shape, dtype=_drawn(dtype), generator=random).to(dtype)) for shape in shapes]


def make_grads(params: Sequence[Tensor], step: int, seed: int = 1) -> list[Tensor]:
    """Random gradients whose rows and columns differ by orders of magnitude: uniform ones would hide wrong sums."""
    random = torch.Generator().manual_seed(1000 * seed + step)
    return [
        (torch.randn(p.shape, dtype=_drawn(p.dtype), generator=random) * _spread(p.shape, random)).to(p.dtype)
        for p in params
    ]


def _drawn(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype.is_complex else torch.float64


def _spread(shape: tuple[int, ...], random: torch.Generator) -> Tensor:
    spread = torch.ones((), dtype=torch.float64)
    for d, size in enumerate(shape):
        along = [1] * len(shape)
        along[d] = size
        spread = spread * 10 ** (2 * torch.rand(along, dtype=torch.float64, generator=random) - 1)
    return spread


def train(
    make_optimizer: Callable[[Any], Optimizer],
    params: list[Parameter] | None = None,
    steps: int = 5,
    start: int = 0,
    optimizer: Optimizer | None = None,
) -> tuple[list[Parameter], Optimizer]:
    """Take steps along the same gradients, whatever the optimizer."""
    params = make_params() if params is None else params
    optimizer = make_optimizer(params) if optimizer is None else optimizer
    for t in range(start, start + steps):
        for param, grad in zip(params, make_grads(params, t), strict=True):
            param.grad = grad
        optimizer.step()
    return params, optimizer


def assert_same(actual: Sequence[Tensor], expected: Sequence[Tensor], **tolerance: float) -> None:
    torch.testing.assert_close([p.detach() for p in actual], [p.detach() for p in expected], **tolerance)


def assert_bitwise(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    assert_same(actual, expected, rtol=0, atol=0)
