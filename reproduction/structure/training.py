r"""Training on data with planted structure: linear regression with many outputs, by mini-batches.

.. math:: \min_X\ \mathbb E\, \tfrac12 \textstyle\sum_j w_j (a^\top X_{:,j} - y_j)^2, \qquad y = a^\top X^* + e

Rows belong to features a, columns to outputs. The gradient of an example is :math:`a\,(w \circ r)^\top` with the
residuals r. So rows have the features' sizes and activity, and columns those of the outputs' weights w. Entries of a
row are correlated if the solution and the noise are correlated between outputs. The noise is as large as the signal.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reproduction.structure.planted import Structure, active, frequencies, shared, sizes
from reproduction.structure.tuned import Learner, compared

__all__ = ["BATCH", "Config", "Result", "run"]

BATCH = 16


@dataclass(frozen=True)
class Config:
    """A run in all geometries. Learning rates are tuned on as many seeds as ``tuning`` says, apart from the others.

    With ``proportional``, rows and columns of the solution are as large as the gradients', in root mean square;
    otherwise all are alike. With ``transposed``, the matrix is stored as outputs × features.
    """

    structure: Structure
    proportional: bool = False
    rounds: int = 400
    seeds: int = 10
    tuning: int = 6
    transposed: bool = False

    def __post_init__(self) -> None:
        if self.structure.entry_decades:
            raise ValueError("entry_decades must be 0: regression has sizes of features and outputs, not of entries")

    @property
    def cost(self) -> float:
        """The estimated run time, in seconds."""
        return self.rounds * self.tuning * 5e-4


@dataclass(frozen=True)
class Result:
    """For each of the `GEOMETRIES`: its learning rate, and for each seed the loss after the last step.

    The loss is the expected one above that of the solution, relative to the start's.
    """

    config: Config
    rates: tuple[float, ...]
    scores: tuple[tuple[float, ...], ...]


def run(config: Config) -> Result:
    """Train with all geometries."""
    drawn = functools.cache(lambda seeds: _Data(config, seeds))

    def score(geometry: str, seeds: Sequence[int], rates: Tensor) -> Tensor:
        return _logs(geometry, rates, drawn(tuple(seeds)), config.transposed)

    rates, logs = compared(score, range(1000, 1000 + config.tuning), range(config.seeds))
    return Result(config, rates, tuple(tuple(torch.tensor(each).exp().tolist()) for each in logs))


def _logs(geometry: str, rates: Tensor, data: _Data, transposed: bool) -> Tensor:
    """The logarithms of the losses after training: their mean decides which rate is best."""
    start = torch.zeros_like(data.solution)
    learner = Learner(geometry, rates, (start.mT if transposed else start).shape)
    for features, weights, noise in zip(data.features, data.weights, data.noise, strict=True):
        x = learner.x.mT if transposed else learner.x
        residuals = features @ (x - data.solution) - noise
        gradient = features.mT @ (weights * residuals) / BATCH
        learner.update(gradient.mT if transposed else gradient)
    x = learner.x.mT if transposed else learner.x
    return (data.loss(x) / data.loss(start)).log()


class _Data:
    """Batches and solutions of several seeds, and the expected loss."""

    def __init__(self, config: Config, seeds: Sequence[int]) -> None:
        own = self.structure = config.structure
        often, weight = frequencies(own.m, own.row_activity), frequencies(own.n, own.column_activity)
        size = sizes(own.m, own.row_decades)
        alike = torch.eye(own.m, dtype=torch.float64)
        if own.row_activity == "all":  # otherwise no two features are active at once
            alike = own.within_columns + (1 - own.within_columns) * alike
        self.moments = alike * size * size[:, None] * torch.sqrt(often * often[:, None])  # E a aᵀ
        self.weight = sizes(own.n, own.column_decades) * weight
        drawn = [self._draw(config, torch.Generator().manual_seed(seed)) for seed in seeds]
        features, weights, noise, solution = zip(*drawn, strict=True)
        self.features, self.weights = torch.stack(features, 1), torch.stack(weights, 1)
        self.solution = torch.stack(solution)
        signal = (self.solution * (self.moments @ self.solution)).sum(1).mean(1).sqrt()  # of an output
        self.noise = torch.stack(noise, 1) * signal[:, None, None]

    def _draw(self, config: Config, random: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        own, count = self.structure, config.rounds * BATCH

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, dtype=torch.float64, generator=random)

        m, n, size, weight = own.m, own.n, sizes(own.m, own.row_decades), sizes(own.n, own.column_decades)
        often = frequencies(n, own.column_activity)
        solution = shared(normal(m, n), (normal(m, 1), own.within_rows), (normal(1, n), own.within_columns))
        if config.proportional:
            solution = solution * self.moments.diagonal().sqrt()[:, None] * weight * often.sqrt()
        features = shared(normal(count, m), (normal(count, 1), own.within_columns))
        noise = shared(normal(count, n), (normal(count, 1), own.within_rows))
        features = features * size * active(count, m, own.row_activity, random)
        weights = weight * active(count, n, own.column_activity, random)
        batches = (config.rounds, BATCH, -1)
        return features.view(batches), weights.view(batches), noise.view(batches), solution

    def loss(self, x: Tensor) -> Tensor:
        """The expected loss above that of the solution."""
        distance = x - self.solution
        return (self.weight * distance * (self.moments @ distance)).sum((-2, -1)) / 2
