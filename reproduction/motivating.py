r"""The motivating examples (§4.3 and Appendix F): one active row, or column, per round.

The losses are hinge losses on a ball of radius B < 1/√n. Every margin is violated there, so the gradients do not depend
on the player: each is ±1 on one row, and the rounds cycle through the rows. The regret bounds of both algorithms are

.. math:: \sqrt 2\, D\, \textstyle\sum_b \sqrt{\sum_t \|G_{t,b}\|_2^2}

with the blocks b of their geometries and the diameter D = 2B of the ball in either norm. Both algorithms also play the
game, with exact projections in their metrics: their regrets need not be ordered like their bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from matrix_adagrad.geometry import Entry, Geometry, as_partition
from matrix_adagrad.online import MirrorDescent, Motivating, Regret, RegretMeter

__all__ = ["Config", "Result", "run"]


@dataclass(frozen=True)
class Config:
    """An m×n game with K rounds per row (or per column, for ``active="column"``).

    ``start`` is ``"zero"``, or ``"random"`` for a point on the ball drawn with the seed.
    """

    m: int = 16
    n: int = 9
    K: int = 10
    active: str = "row"
    start: str = "zero"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.start not in ("zero", "random"):
            raise ValueError(f"start must be 'zero' or 'random', got {self.start!r}")

    @property
    def cost(self) -> float:
        """The estimated run time, in seconds."""
        return 8e-4 * self.K * (self.m if self.active == "row" else self.n)


@dataclass(frozen=True)
class Result:
    """The bounds and regrets in the aligned and in the entry geometry, and the expected ratio of the bounds."""

    config: Config
    bound: float
    entry_bound: float
    expected_ratio: float
    regret: float
    entry_regret: float
    holds: bool  # whether every inequality of both runs holds

    @property
    def ratio(self) -> float:
        """How many times tighter the bound of the aligned geometry is."""
        return self.entry_bound / self.bound


def run(config: Config) -> Result:
    """Let both algorithms play the game."""
    game = Motivating(config.m, config.n, config.active)
    aligned = as_partition(config.active)
    regrets = [_play(game, geometry, config) for geometry in (aligned, Entry())]
    bound, entry_bound = (regret["regret ≤ √2 D Σ_b √V_b"].right for regret in regrets)
    return Result(
        config,
        bound=bound,
        entry_bound=entry_bound,
        expected_ratio=math.sqrt(aligned.members(game.shape)),
        regret=regrets[0].regret,
        entry_regret=regrets[1].regret,
        holds=all(regret.holds for regret in regrets),
    )


def _play(game: Motivating, geometry: Geometry, config: Config) -> Regret:
    start = torch.zeros(game.shape, dtype=torch.float64)
    if config.start == "random":
        start.normal_(generator=torch.Generator().manual_seed(config.seed))
        start *= game.radius / start.norm()
    return RegretMeter(MirrorDescent(start, geometry, game.domain)).play(game, config.K * game.cycle, exact=True)
