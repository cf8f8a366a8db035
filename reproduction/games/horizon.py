"""How the regret grows with the number of rounds (§3.1), and what the stabilizer adds to it (App. E)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from matrix_adagrad.online import MirrorDescent, RegretMeter, presets

__all__ = ["SPAN", "Config", "Result", "run"]

SPAN = 16  # an exponent compares the last round with one this many times earlier


@dataclass(frozen=True)
class Config:
    """A game of `matrix_adagrad.online.presets` over 2^``doublings`` rounds, with stabilizer δ."""

    game: str = "adversarial"
    learner: str = "row"
    delta: float = 1e-8
    doublings: int = 11
    m: int = 4
    n: int = 3

    @property
    def cost(self) -> float:
        """The estimated run time, in seconds."""
        return 3e-4 * 2.0**self.doublings


@dataclass(frozen=True)
class Result:
    """After each doubling of the rounds: the regret so far, and the bound √2 D Σ_b √V_b.

    ``stabilizer`` is D² m δ / 2η: the most that δ can add to the bound, after any number of rounds.
    """

    config: Config
    rounds: tuple[int, ...]
    regret: tuple[float, ...]
    bound: tuple[float, ...]
    stabilizer: float

    @property
    def exponent(self) -> float:
        """The p of T^p, by which the largest regret so far has grown over the last 16-fold of the rounds."""
        earlier = [
            regret for rounds, regret in zip(self.rounds, self.regret, strict=True) if SPAN * rounds <= self.rounds[-1]
        ]
        low, high = max(earlier), max(self.regret)
        return math.log(high / low) / math.log(SPAN) if low > 0 else math.inf

    @property
    def is_bounded(self) -> bool:
        """Whether the regret was at most the bound with the stabilizer's term, after each doubling."""
        return all(r <= (1 + 1e-9) * (b + self.stabilizer) for r, b in zip(self.regret, self.bound, strict=True))


def run(config: Config) -> Result:
    """Play the game, and look after each doubling."""
    game = presets.game(presets.GameConfig(config.game, config.m, config.n))
    learner = MirrorDescent(
        torch.zeros(game.shape, dtype=torch.float64), config.learner, game.domain, delta=config.delta
    )
    meter = RegretMeter(learner, bounds_for=config.learner)
    found = meter.play(game, 2**config.doublings, points=config.doublings)
    assert found.terms.roots is not None
    return Result(
        config,
        rounds=tuple(int(point["rounds"]) for point in found.curve),
        regret=tuple(point["regret"] for point in found.curve),
        bound=tuple(point[config.learner] for point in found.curve),
        stabilizer=found.terms.diameter / math.sqrt(2) * found.terms.roots.numel() * config.delta,
    )
