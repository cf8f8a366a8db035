r"""Where the ratio of the bounds comes from: the same gradients on other domains, and other gradients on the same.

For any gradients, the bounds of entry-wise AdaGrad and of Row-AdaGrad have the ratio

.. math:: \frac{D_\infty}{D_{:2,\infty}} \cdot \frac{\sum_{ij} \sqrt{V_{ij}}}{\sum_i \sqrt{\sum_j V_{ij}}}.

The second factor is at least 1, and at most √n, where the entries of each row have the same V. The first is 1 on
Frobenius and row balls, and 1/√n on boxes and column balls.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from matrix_adagrad.domains import Box, ColumnBalls, Domain, FrobeniusBall, RowBalls
from matrix_adagrad.geometry import Entry, Row
from matrix_adagrad.online import GivenGradients, MirrorDescent, RegretMeter

__all__ = ["DOMAINS", "STRUCTURES", "Config", "Result", "run"]

DOMAINS: dict[str, Domain] = {
    "Frobenius ball": FrobeniusBall(1.0),
    "row balls": RowBalls(1.0),
    "column balls": ColumnBalls(1.0),
    "box": Box(-1.0, 1.0),
}
STRUCTURES = ("dense", "row-sparse", "column-sparse", "one column")
LIKELY = 0.6  # how likely each entry's gradient has its usual sign: there is something to learn


@dataclass(frozen=True)
class Config:
    """Gradients of ±1 on the active entries of an m×n matrix, in each of mn rounds.

    All entries are ``"dense"`` active, those of one row or column at a time, or those of the first column.
    """

    domain: str = "Frobenius ball"
    structure: str = "row-sparse"
    m: int = 16
    n: int = 9
    seed: int = 0

    @property
    def cost(self) -> float:
        """The estimated run time, in seconds."""
        return 5e-4 * self.m * self.n


@dataclass(frozen=True)
class Result:
    """The bounds √2 D Σ_b √V_b and the regrets of Row-AdaGrad and of AdaGrad."""

    config: Config
    bound: float
    entry_bound: float
    regret: float
    entry_regret: float

    @property
    def ratio(self) -> float:
        """How many times tighter the bound of Row-AdaGrad is."""
        return self.entry_bound / self.bound


def run(config: Config) -> Result:
    """Let both algorithms play, from zero, each with its η = D/√2."""
    game = GivenGradients(_gradients(config), DOMAINS[config.domain])
    rounds, start = len(game.gradients), torch.zeros(game.shape, dtype=torch.float64)
    regrets = [
        RegretMeter(MirrorDescent(start, geometry, game.domain), bounds_for=geometry).play(game, rounds)
        for geometry in (Row(), Entry())
    ]
    bounds = [math.fsum(regret.geometry_bounds.values()) for regret in regrets]
    return Result(config, *bounds, *(regret.regret for regret in regrets))


def _gradients(config: Config) -> Tensor:
    shape, random = (config.m * config.n, config.m, config.n), torch.Generator().manual_seed(config.seed)
    usual = torch.randn(shape[1:], dtype=torch.float64, generator=random).sign()
    gradients = usual * (LIKELY - torch.rand(shape, dtype=torch.float64, generator=random)).sign()
    active = torch.zeros(shape, dtype=torch.float64)
    for t in range(len(active)):
        if config.structure == "row-sparse":
            active[t, t % config.m] = 1
        elif config.structure == "column-sparse":
            active[t, :, t % config.n] = 1
    if config.structure == "dense":
        active[:] = 1
    elif config.structure == "one column":
        active[:, :, 0] = 1
    return active * gradients
