r"""AdaGrad against the best proximal function in hindsight, which is known where gradients do not depend on the player.

With a fixed metric of scales s, one for each block, and the diameter D, Corollary 1 promises

.. math:: R(T) \le \sum_b \frac{D^2}{2\eta}\, s_b + \frac\eta2\, \frac{V_b}{s_b}.

The best scales are :math:`s^*_b = \eta \sqrt{V_b} / D`, and promise :math:`D \sum_b \sqrt{V_b}`. AdaGrad, which learns
its scales as it plays, promises √2 times that.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from matrix_adagrad.domains import Box, Domain, FrobeniusBall, RowBalls
from matrix_adagrad.geometry import as_partition
from matrix_adagrad.online import Fixed, Linear, MirrorDescent, RegretMeter, Scaled, TradeOff

__all__ = ["DOMAINS", "Config", "Result", "run"]

DOMAINS: dict[str, Domain] = {"Frobenius ball": FrobeniusBall(1.0), "row balls": RowBalls(1.0), "box": Box(-1.0, 1.0)}


@dataclass(frozen=True)
class Config:
    """Linear losses with random gradients, whose rows have sizes 1, 1/2, 1/3, … and whose entries drift."""

    domain: str = "Frobenius ball"
    learner: str = "row"
    drift: float = 0.1
    m: int = 8
    n: int = 5
    rounds: int = 500
    seed: int = 0

    @property
    def cost(self) -> float:
        """The estimated run time, in seconds."""
        return 5e-4 * self.rounds


@dataclass(frozen=True)
class Result:
    """What each promises, and the regrets: of AdaGrad, and with the best fixed proximal function."""

    config: Config
    bound: float
    fixed_bound: float
    regret: float
    fixed_regret: float


def run(config: Config) -> Result:
    """Let both play, from zero."""
    game, geometry = (
        Linear(config.m, config.n, DOMAINS[config.domain], config.drift, config.seed),
        as_partition(config.learner),
    )
    start = torch.zeros(game.shape, dtype=torch.float64)
    adaptive = RegretMeter(MirrorDescent(start, geometry, game.domain)).play(game, config.rounds)
    assert adaptive.terms.roots is not None
    eta = diameter = adaptive.terms.diameter  # any η makes the same steps, since s* is in proportion to it
    best = TradeOff(adaptive.terms.roots.square(), adaptive.terms.roots, diameter, eta, a=1.0)
    learner = MirrorDescent(start, Fixed(Scaled(best.optimal, geometry)), game.domain, eta)
    fixed = RegretMeter(learner).play(game, config.rounds)
    bound = adaptive["regret ≤ √2 D Σ_b √V_b"].right
    return Result(config, bound, float(best.least.sum()), adaptive.regret, fixed.regret)
