r"""The trade-off of §4.2, played: the terms of Corollary 1 as all scales grow, or as η falls.

To multiply all scales by c is to divide η by c. So a game that is played with several η shows both terms of the bound,

.. math:: \frac1\eta \Big( B_{\psi_1} + \sum_t B_{\psi_{t+1}} - B_{\psi_t} \Big)
    \qquad\text{and}\qquad \frac\eta2 \sum_t \|G_t\|_{\psi_t,*}^2,

the cost of the geometry's evolution and that of the gradients.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from matrix_adagrad.online import MirrorDescent, Regret, RegretMeter, TradeOff, presets

__all__ = ["FACTORS", "Config", "Result", "run"]

FACTORS = (1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True)
class Config:
    """A game of `matrix_adagrad.online.presets`, played with each of `FACTORS` times η = D/√2."""

    game: str = "linear"
    learner: str = "row"
    m: int = 4
    n: int = 3
    rounds: int = 200

    @property
    def cost(self) -> float:
        """The estimated run time, in seconds."""
        return 3e-4 * self.rounds * len(FACTORS)


@dataclass(frozen=True)
class Result:
    """For each factor: both terms as they were measured, both as the bound promises them with Δ = D, and the regret.

    For η = D/√2 and Δ = D: ``off``, by how much the bound at s* differs from Δ √(2 V_b), relative to it and in any
    block; ``gained``, the most that a multiple of s* lowers a block's bound; ``excess``, the most by which the bound of
    a scale that was used exceeds the least.
    """

    config: Config
    evolution: tuple[float, ...]
    gradients: tuple[float, ...]
    promised_evolution: tuple[float, ...]
    promised_gradients: tuple[float, ...]
    regret: tuple[float, ...]
    off: float
    gained: float
    excess: float

    @property
    def bound(self) -> tuple[float, ...]:
        """D²/2η Tr(H_T) + η Σ_b V_b / s_{T,b}, for each factor."""
        return tuple(map(sum, zip(self.promised_evolution, self.promised_gradients, strict=True)))


def run(config: Config) -> Result:
    """Play the game once for each factor."""
    runs = [_play(config, factor) for factor in FACTORS]
    terms = [each.terms for each in runs]
    return Result(
        config,
        evolution=tuple((each.first + each.middle) / each.eta for each in terms),
        gradients=tuple(each.eta / 2 * each.dual for each in terms),
        promised_evolution=tuple(each.diameter**2 / (2 * each.eta) * each.trace for each in terms),
        promised_gradients=tuple(each.eta * each.terminal for each in terms),
        regret=tuple(each.regret for each in terms),
        **_optimum(runs[FACTORS.index(1.0)]),
    )


def _play(config: Config, factor: float) -> Regret:
    game = presets.game(presets.GameConfig(config.game, config.m, config.n))
    learner = MirrorDescent(torch.zeros(game.shape, dtype=torch.float64), config.learner, game.domain)
    learner.eta *= factor
    return RegretMeter(learner).play(game, config.rounds)


def _optimum(run: Regret) -> dict[str, float]:
    """How the scales s*, their multiples, and the scales that were used compare, in the worst block with a gradient."""
    squares, used = run.tradeoff.squares, run.tradeoff.used
    trade = TradeOff(squares[squares > 0], used[squares > 0], run.terms.diameter, run.terms.eta)
    multiples = torch.stack([trade.bound(factor * trade.optimal) for factor in FACTORS])
    return {
        "off": float((trade.bound(trade.optimal) / trade.least - 1).abs().max()),
        "gained": float((1 - multiples / trade.least).max()),
        "excess": float((trade.bound(trade.used) / trade.least - 1).max()),
    }
