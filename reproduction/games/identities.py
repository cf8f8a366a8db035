"""The paper's claims about the algorithms themselves: degeneration, transposition, and the size of their states."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Adagrad, Adam, Optimizer

from matrix_adagrad.optim import ColumnAdaGrad, ColumnMomentum, RowAdaGrad, RowMomentum

__all__ = ["Config", "Result", "run"]


@dataclass(frozen=True)
class Config:
    """Random gradients for an m×n matrix, in float64."""

    m: int = 943
    n: int = 20
    steps: int = 50
    seed: int = 0

    @property
    def cost(self) -> float:
        """The estimated run time, in seconds."""
        return 0.2


@dataclass(frozen=True)
class Result:
    """Largest differences between the parameters of two runs, and bytes of state without the step count.

    ``degeneration`` compares Row-AdaGrad with AdaGrad on a matrix with one column. ``transposition`` compares
    Column-AdaGrad with Row-AdaGrad on the transpose. ``states`` are pairs of an optimizer and its bytes for the m×n
    matrix in float32.
    """

    config: Config
    degeneration: float
    transposition: float
    states: tuple[tuple[str, int], ...]


def run(config: Config) -> Result:
    """Run the optimizers on the same gradients, and compare them."""
    random = torch.Generator().manual_seed(config.seed)
    start, *gradients = torch.randn(config.steps + 1, config.m, config.n, dtype=torch.float64, generator=random)
    columns = [gradient[:, :1] for gradient in gradients]
    row = _after(RowAdaGrad, start[:, :1], columns)
    entry = _after(Adagrad, start[:, :1], columns)
    column = _after(ColumnAdaGrad, start, gradients)
    transposed = _after(RowAdaGrad, start.T, [gradient.T for gradient in gradients])
    return Result(
        config,
        degeneration=(row - entry).abs().max().item(),
        transposition=(column - transposed.T).abs().max().item(),
        states=tuple(
            (kind.__name__, _state(kind, start.float()))
            for kind in (RowAdaGrad, ColumnAdaGrad, Adagrad, RowMomentum, ColumnMomentum, Adam)
        ),
    )


def _after(kind: Callable[..., Optimizer], start: Tensor, gradients: Iterable[Tensor]) -> Tensor:
    x = nn.Parameter(start.clone())
    optimizer = kind([x], lr=0.1, eps=1e-10)
    for x.grad in gradients:
        optimizer.step()
    return x.detach()


def _state(kind: Callable[..., Optimizer], start: Tensor) -> int:
    x = nn.Parameter(start.clone())
    optimizer = kind([x], lr=0.1)
    x.grad = torch.ones_like(x)
    optimizer.step()
    return sum(value.nbytes for name, value in optimizer.state[x].items() if name != "step")
