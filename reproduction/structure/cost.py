"""What a step costs with one scale per row, and with a full matrix on one side (one-sided Shampoo)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from matrix_adagrad.geometry import Column, Full, Geometry, Row
from matrix_adagrad.optim import MatrixAdaGrad

__all__ = ["GEOMETRIES", "Config", "Result", "run"]

GEOMETRIES: dict[str, Geometry] = {
    "row": Row(),
    "column": Column(),
    "full, by row": Full("row"),
    "full, by column": Full("column"),
}
SHORT_STEPS = 5
PRODUCTS = (torch.ops.aten.mm, torch.ops.aten.bmm)


@dataclass(frozen=True)
class Config:
    """An m×n matrix in float32. Steps are timed ``repeats`` times, the geometries in turn; 0 does not time them."""

    m: int
    n: int
    repeats: int = 0

    @property
    def cost(self) -> float:
        """The estimated run time, in seconds."""
        return (2 + self.repeats) * 1e-9 * (self.m**3 + self.n**3)


@dataclass(frozen=True)
class Result:
    """For each of the `GEOMETRIES`: bytes of state, multiplications in matrix products and matrix roots of one step.

    ``seconds`` are medians. They are none if nothing was timed, and other ones in every run.
    """

    config: Config
    state: tuple[int, ...]
    products: tuple[int, ...]
    roots: tuple[int, ...]
    seconds: tuple[float, ...]


def run(config: Config) -> Result:
    """Take steps with all geometries."""
    steppers = [_Stepper(geometry, config) for geometry in GEOMETRIES.values()]
    state, products, roots = zip(*[stepper.counted() for stepper in steppers], strict=True)
    # A short step is slow after another geometry's, which filled the caches: the fastest of a few is taken.
    steps = [1 if each else SHORT_STEPS for each in roots]
    times = [
        [min(stepper.timed() for _ in range(count)) for stepper, count in zip(steppers, steps, strict=True)]
        for _ in range(config.repeats)
    ]
    seconds = tuple(statistics.median(each) for each in zip(*times, strict=True))
    return Result(config, state, products, roots, seconds)


class _Stepper:
    def __init__(self, geometry: Geometry, config: Config) -> None:
        self.parameter = nn.Parameter(torch.zeros(config.m, config.n))
        self.parameter.grad = torch.randn(config.m, config.n, generator=torch.Generator().manual_seed(0))
        self.optimizer = MatrixAdaGrad([self.parameter], lr=0.1, geometry=geometry, eps=1e-6)
        self.optimizer.step()  # creates the state

    def counted(self) -> tuple[int, int, int]:
        """Bytes of state, multiplications in matrix products, and matrix roots."""
        kept = self.optimizer.state[self.parameter].items()
        with _Counter() as counter:
            self.optimizer.step()
        size = sum(value.nbytes for name, value in kept if name != "step")
        return size, counter.products, counter.roots

    def timed(self) -> float:
        start = time.perf_counter()
        self.optimizer.step()
        return time.perf_counter() - start


class _Counter(TorchDispatchMode):
    """Counts multiplications in matrix products, and eigendecompositions, from which roots are computed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.products, self.roots = 0, 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket in PRODUCTS:
            self.products += out.numel() * args[0].shape[-1]
        self.roots += func.overloadpacket is torch.ops.aten._linalg_eigh
        return out
