"""AdaGrad in five geometries, with many learning rates and seeds at once, and the search for the best rate."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from matrix_adagrad.domains import Domain, WholeSpace
from matrix_adagrad.geometry import Batched, Column, Entry, Factored, Geometry, Partition, Row, Whole

__all__ = ["GEOMETRIES", "Learner", "Score", "compared"]

# Tensors are rates × seeds × m × n. Each matrix is scaled by itself.
GEOMETRIES: dict[str, Geometry] = {
    "row": Batched(Row()),
    "column": Batched(Column()),
    "entry": Batched(Entry()),
    "whole": Batched(Whole()),
    "factored": Factored(),
}
PER_DECADE = 8  # learning rates
FIRST = range(-12, 5)  # where the search starts, in eighths of a decade
MORE = 6  # learning rates that are added where the best one is at an end
DELTA = 1e-12

Score = Callable[[str, Sequence[int], Tensor], Tensor]  # of a geometry, seeds and rates: rates × seeds


class Learner:
    """AdaGrad from 0, with a learning rate for each index of the first dimension.

    Rates are relative to the length of a block whose entries are 1: √n for a row, 1 for an entry. So where all
    entries are alike, a rate means the same in every geometry.
    """

    def __init__(self, geometry: str, rates: Tensor, shape: Sequence[int], domain: Domain | None = None) -> None:
        self.geometry, self.domain = GEOMETRIES[geometry], domain or WholeSpace()
        self.x = torch.zeros(len(rates), *shape, dtype=torch.float64)
        members = self.geometry.members(shape) if isinstance(self.geometry, Partition) else 1
        self.rates = (rates * math.sqrt(members)).view(-1, *[1] * len(shape))
        self.statistics: tuple[Tensor, ...] = ()

    def update(self, gradient: Tensor) -> None:
        """Take a step. If its first dimension is 1, the gradient is that of all rates."""
        measured = self.geometry.measure(gradient)
        self.statistics = tuple(map(torch.add, self.statistics, measured)) if self.statistics else measured
        scale = self.geometry.scale(*self.statistics) + DELTA
        self.x -= self.rates * (gradient / scale)
        self.domain.project_(self.x, scale)


def compared(
    score: Score, tuning: Sequence[int], seeds: Sequence[int]
) -> tuple[tuple[float, ...], tuple[tuple[float, ...], ...]]:
    """Each geometry's best learning rate on the seeds for tuning, and its scores on the others with that rate."""
    rates, scores = [], []
    for geometry in GEOMETRIES:
        rate = _best(functools.partial(score, geometry, tuning))
        rates.append(rate.item())
        scores.append(tuple(map(_finite, score(geometry, seeds, rate)[0].tolist())))
    return tuple(rates), tuple(scores)


def _best(score: Callable[[Tensor], Tensor]) -> Tensor:
    """The rate with the lowest mean score, on a grid that grows until it is inside."""
    found: dict[int, float] = {}
    points = FIRST
    while True:
        means = score(_rates(points)).mean(1).nan_to_num(nan=math.inf)
        found |= dict(zip(points, means.tolist(), strict=True))
        best = min(found, key=found.__getitem__)
        if best == min(found):
            points = range(best - MORE, best)
        elif best == max(found):
            points = range(best + 1, best + 1 + MORE)
        else:
            return _rates([best])


def _rates(points: Sequence[int]) -> Tensor:
    return 10 ** (torch.tensor(points, dtype=torch.float64) / PER_DECADE)


def _finite(score: float) -> float:
    return score if math.isfinite(score) else math.inf
