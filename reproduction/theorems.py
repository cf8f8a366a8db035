"""The inequalities of the regret analysis (Cor. 1 and 2, Thms 1 and 2, App. E), checked on games."""

from __future__ import annotations

from dataclasses import dataclass

from matrix_adagrad.online import presets

__all__ = ["Checked", "Config", "Result", "run"]


@dataclass(frozen=True)
class Config:
    """A game of `matrix_adagrad.online.presets` on a small matrix, with stabilizer δ."""

    game: str = "hinge"
    learner: str = "row"
    delta: float = 1e-8
    m: int = 4
    n: int = 3
    rounds: int = 500

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
    """All inequalities, as tuples of the fields of `Checked`."""

    config: Config
    inequalities: tuple[tuple[str, str, float, float, bool, bool, bool], ...]

    @property
    def checked(self) -> list[Checked]:
        """The inequalities, as records."""
        return [Checked(*fields) for fields in self.inequalities]


def run(config: Config) -> Result:
    """Play the game twice, so that all distances are exact."""
    game = presets.GameConfig(
        config.game, config.m, config.n, config.rounds, config.learner, exact=True, delta=config.delta
    )
    return Result(
        config,
        tuple(
            (
                inequality.name,
                inequality.place,
                inequality.left,
                inequality.right,
                inequality.holds,
                inequality.is_guaranteed,
                inequality.is_condition,
            )
            for inequality in presets.play(game).inequalities
        ),
    )
