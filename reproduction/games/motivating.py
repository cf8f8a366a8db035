r"""The motivating examples (§4.3 and Appendix F): one active row, or column, per round.

The losses are hinge losses on a ball of radius B < 1/√n. Every margin is violated there, so the gradients do not depend
on the player: each is ±1 on one row, and the rounds cycle through the rows. The regret bounds of both algorithms are

.. math:: \sqrt 2\, D\, \textstyle\sum_b \sqrt{\sum_t \|G_{t,b}\|_2^2}

with the blocks b of their geometries and the diameter D = 2B of the ball in either norm. Both algorithms also play the
game, with exact projections in their metrics: their regrets need not be ordered like their bounds.

All entries of an active row have the same gradient. So the row's scale is √n times that of each of its entries, but for
δ, and AdaGrad with step size η/√n is the control that tells a geometry from a step size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from matrix_adagrad.geometry import Entry, as_partition
from matrix_adagrad.online import MirrorDescent, Motivating, RegretMeter

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
        return 5e-4 * self.K * (self.m if self.active == "row" else self.n)


@dataclass(frozen=True)
class Result:
    """The bounds and regrets in the aligned and in the entry geometry, and the expected ratio of the bounds.

    ``control_regret`` is that of AdaGrad with η divided by the expected ratio. ``apart`` is the largest distance of an
    entry of its iterates from those of the aligned geometry, over the radius.
    """

    config: Config
    bound: float
    entry_bound: float
    expected_ratio: float
    regret: float
    entry_regret: float
    control_regret: float
    apart: float
    holds: bool  # whether every inequality of both runs holds

    @property
    def ratio(self) -> float:
        """How many times tighter the bound of the aligned geometry is."""
        return self.entry_bound / self.bound


def run(config: Config) -> Result:
    """Let both algorithms and the control play the game, side by side: the gradients do not depend on the player."""
    game, aligned = Motivating(config.m, config.n, config.active), as_partition(config.active)
    start, rounds, ratio = _start(game, config), config.K * game.cycle, math.sqrt(aligned.members(game.shape))
    best = game.best(rounds, _total(game, rounds))
    meters = [RegretMeter(MirrorDescent(start, g, game.domain), target=best.x) for g in (aligned, Entry())]
    control = MirrorDescent(start, Entry(), game.domain, meters[1].learner.eta / ratio)
    control_loss = apart = 0.0
    for t in range(rounds):
        apart = max(apart, float((control.x - meters[0].learner.x).abs().max()))
        loss, grad = game.loss(t, control.x)
        control_loss += loss
        control.update(grad)
        for meter in meters:
            meter.record(*game.loss(t, meter.learner.x))
    regrets = [meter.regret(best) for meter in meters]
    bound, entry_bound = (regret["regret ≤ √2 D Σ_b √V_b"].right for regret in regrets)
    return Result(
        config,
        bound=bound,
        entry_bound=entry_bound,
        expected_ratio=ratio,
        regret=regrets[0].regret,
        entry_regret=regrets[1].regret,
        control_regret=control_loss - best.value,
        apart=apart / game.radius,
        holds=all(regret.holds for regret in regrets),
    )


def _start(game: Motivating, config: Config) -> Tensor:
    start = torch.zeros(game.shape, dtype=torch.float64)
    if config.start == "random":
        start.normal_(generator=torch.Generator().manual_seed(config.seed))
        start *= game.radius / start.norm()
    return start


def _total(game: Motivating, rounds: int) -> Tensor:
    """The sum of the gradients."""
    zero = torch.zeros(game.shape, dtype=torch.float64)
    return torch.stack([game.loss(t, zero)[1] for t in range(rounds)]).sum(0)
