"""Games and learners by name, ready to play."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from matrix_adagrad.domains import FrobeniusBall
from matrix_adagrad.online import (
    Adversarial,
    Completion,
    EntryStream,
    ExampleStream,
    FullAdaGrad,
    Game,
    Hinge,
    Linear,
    Logistic,
    MirrorDescent,
    Motivating,
    Regret,
    RegretMeter,
)

__all__ = ["GAMES", "LEARNERS", "GameConfig", "play"]

GAMES = {
    "adversarial": "linear losses; each round an adversary charges for the norm of one row",
    "motivating-row": "the paper's example of §4.3: one active row per round",
    "motivating-column": "the example of App. F: one active column per round",
    "linear": "linear losses with random gradients, larger in the first rows",
    "hinge": "classification of a random stream, one row per task",
    "logistic": "the same, with the logistic loss",
    "completion": "entries of a random low-rank matrix, with squared errors",
}
LEARNERS = {
    "row": "Row-AdaGrad",
    "column": "Column-AdaGrad",
    "entry": "AdaGrad",
    "whole": "one scale for all",
    "full-row": "the full m×m metric",
    "full-column": "the full n×n metric",
}
LENGTH = 20_000  # rounds of a random stream, after which it repeats


@dataclass(frozen=True)
class GameConfig:
    """A game on an m×n matrix, on the Frobenius ball of this radius."""

    game: str = "adversarial"
    m: int = 64
    n: int = 64
    rounds: int = 10_000
    learner: str = "row"
    radius: float | None = None  # 1, and half of the largest allowed in the motivating examples
    exact: bool = False
    seed: int = 0
    delta: float | None = None  # the stabilizer of an AdaGrad scheme, 1e-8


def play(config: GameConfig, **how: Any) -> Regret:
    """Play the game. ``how`` is passed on to `RegretMeter.play`: a progress bar, a checkpoint, points of a curve."""
    game = _game(config)
    learner = config.learner if not config.learner.startswith("full-") else FullAdaGrad(config.learner[5:])
    start = torch.zeros(game.shape, dtype=torch.float64)
    descent = MirrorDescent(start, learner, game.domain, delta=config.delta)
    meter = RegretMeter(descent, bounds_for=("row", "column", "entry"))
    return meter.play(game, config.rounds, exact=config.exact, **how)


def _game(config: GameConfig) -> Game:
    m, n, seed = config.m, config.n, config.seed
    if config.game.startswith("motivating-"):
        return Motivating(m, n, config.game.removeprefix("motivating-"), config.radius or 0.0)
    ball = FrobeniusBall(1.0 if config.radius is None else config.radius)
    if config.game in ("hinge", "logistic"):
        stream = ExampleStream.random(m, n, LENGTH, seed=seed)
        return (Hinge if config.game == "hinge" else Logistic)(stream, ball)
    if config.game == "completion":
        return Completion(EntryStream.random(m, n, LENGTH, seed=seed), m, n, ball)
    if config.game == "linear":
        return Linear(m, n, ball, seed=seed)
    return Adversarial(m, n, ball)
