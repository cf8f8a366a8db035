"""Games and learners by name, ready to play."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from matrix_adagrad.domains import FrobeniusBall
from matrix_adagrad.geometry import Factored, Full, Geometry
from matrix_adagrad.online import (
    Adversarial,
    Completion,
    EntryStream,
    ExampleStream,
    Game,
    Hinge,
    Linear,
    Logistic,
    MirrorDescent,
    Motivating,
    Regret,
    RegretMeter,
)

__all__ = ["GAMES", "LEARNERS", "GameConfig", "game", "play"]

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
    "factored": "√(r_i c_j / w), Adafactor's scale",
    "geometric": "(r_i c_j)^¼, the diagonal of Shampoo",
    "minimum": "√min(r_i, c_j), as in SM3",
    "full-row": "the full m×m metric",
    "full-column": "the full n×n metric",
    "full-smaller": "the smaller one of the two",
}
_GEOMETRIES: dict[str, Geometry] = {
    "factored": Factored(),
    "geometric": Factored("geometric"),
    "minimum": Factored("minimum"),
    "full-row": Full("row"),
    "full-column": Full("column"),
    "full-smaller": Full("smaller"),
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
    losses = game(config)
    learner = _GEOMETRIES.get(config.learner, config.learner)
    start = torch.zeros(losses.shape, dtype=torch.float64)
    descent = MirrorDescent(start, learner, losses.domain, delta=config.delta)
    meter = RegretMeter(descent, bounds_for=("row", "column", "entry"))
    return meter.play(losses, config.rounds, exact=config.exact, **how)


def game(config: GameConfig) -> Game:
    """The game itself."""
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
