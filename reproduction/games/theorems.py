"""The inequalities of the regret analysis (Cor. 1 and 2, Thms 1 and 2, their conditions), checked on games."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from operator import attrgetter

import torch

from matrix_adagrad.domains import Box
from matrix_adagrad.online import Game, GivenGradients, MirrorDescent, RegretMeter, presets

__all__ = ["STUBBORN", "Checked", "Config", "Result", "run"]

STUBBORN = "f_t(x) = x on [-1, 1], from 1"  # the game in which Theorem 1, as printed, fails


@dataclass(frozen=True)
class Config:
    """`STUBBORN`, or a game of `matrix_adagrad.online.presets` on a small matrix, with stabilizer δ."""

    game: str = "hinge"
    learner: str = "row"
    delta: float = 1e-8
    m: int = 4
    n: int = 3
    rounds: int = 300

    @property
    def cost(self) -> float:
        """The estimated run time, in seconds."""
        return 1e-3 * self.rounds


@dataclass(frozen=True)
class Checked:
    """An inequality of the paper. It is guaranteed only if the run meets its condition."""

    name: str
    place: str
    left: float
    right: float
    holds: bool
    is_guaranteed: bool
    is_condition: bool


@dataclass(frozen=True)
class Result:
    """All inequalities, as tuples of the fields of `Checked`.

    ``boundary`` is the share of iterates on the boundary of the domain.
    """

    config: Config
    boundary: float
    inequalities: tuple[tuple[str, str, float, float, bool, bool, bool], ...]

    @property
    def checked(self) -> list[Checked]:
        """The inequalities, as records."""
        return [Checked(*fields) for fields in self.inequalities]

    def meets(self, condition: str) -> bool:
        """Whether the condition of this name was checked, and met."""
        return any(check.holds for check in self.checked if check.is_condition and check.name == condition)


def run(config: Config) -> Result:
    """Play the game twice, so that all distances are exact."""
    game, start = _game(config)
    learner = MirrorDescent(
        torch.full(game.shape, start, dtype=torch.float64), config.learner, game.domain, delta=config.delta
    )
    on_boundary: list[bool] = []

    def watched(turns: Iterable[int], **_: int) -> Iterator[int]:
        for t in turns:
            on_boundary.append(bool(game.domain.excess(learner.x) > -1e-12))
            yield t

    found = RegretMeter(learner).play(game, config.rounds, exact=True, progress=watched).inequalities
    return Result(
        config,
        statistics.fmean(on_boundary),
        tuple(map(attrgetter(*(field.name for field in fields(Checked))), found)),
    )


def _game(config: Config) -> tuple[Game, float]:
    """The game, and the number that all entries of X_1 are."""
    if config.game == STUBBORN:
        return GivenGradients(torch.ones(1, config.m, config.n, dtype=torch.float64), Box(-1.0, 1.0)), 1.0
    return presets.game(presets.GameConfig(config.game, config.m, config.n)), 0.0
