"""The inequalities of the regret analysis (Cor. 1 and 2, Thms 1 and 2, App. E), checked on games that are played."""

from __future__ import annotations

from dataclasses import dataclass

from matrix_adagrad.experiments import regret

__all__ = ["Checked", "Config", "Result", "run"]


@dataclass(frozen=True)
class Config:
    """A game of `regret`, on a small matrix, with the stabilizer δ."""

    game: str = "hinge"
    learner: str = "row"
    delta: float = 1e-8
    m: int = 4
    n: int = 3
    rounds: int = 500

    @property
    def cost(self) -> float:
        """About how many seconds it takes."""
        return 1e-3 * self.rounds


@dataclass(frozen=True)
class Checked:
    """An inequality of the paper; what is not promised has a condition that the run does not meet."""

    name: str
    place: str
    left: float
    right: float
    holds: bool
    is_promised: bool
    is_condition: bool


@dataclass(frozen=True)
class Result:
    """All inequalities, as the fields of `Checked`."""

    config: Config
    inequalities: tuple[tuple[str, str, float, float, bool, bool, bool], ...]

    @property
    def checked(self) -> list[Checked]:
        """The inequalities, by the names of their fields."""
        return [Checked(*one) for one in self.inequalities]


def run(config: Config) -> Result:
    """Play the game, twice, so that all distances are exact."""
    game = regret.Config(config.game, config.m, config.n, config.rounds, config.learner, exact=True, delta=config.delta)
    return Result(
        config,
        tuple(
            (one.name, one.place, one.left, one.right, one.holds, one.is_promised, one.is_condition)
            for one in regret.run(game).inequalities
        ),
    )
