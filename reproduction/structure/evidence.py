"""The results on structures in the terms of the claims."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from matrix_adagrad.intervals import Interval, interval
from reproduction.cells import Cell, Known
from reproduction.structure import cost, regret, sweep, training
from reproduction.structure.planted import Structure
from reproduction.structure.sweep import Size, cell
from reproduction.structure.tuned import GEOMETRIES

__all__ = ["LEVEL", "Evidence", "Outcome"]

LEVEL = 0.02  # smaller differences do not matter


@dataclass(frozen=True)
class Outcome:
    """The regrets or losses of all geometries on one structure, by seed."""

    scores: dict[str, tuple[float, ...]]
    rates: dict[str, float]
    is_loss: bool

    def excesses(self, geometry: str, other: str) -> list[float]:
        """How much more regret or loss than another, relatively, for each seed: of losses, the log of their ratio.

        Regrets are divided by the other's mean, since one seed's may be close to 0.
        """
        pairs = list(zip(self.scores[geometry], self.scores[other], strict=True))
        if self.is_loss:
            return [math.log(mine / yours) for mine, yours in pairs]
        mean = statistics.fmean(self.scores[other])
        return [(mine - yours) / mean for mine, yours in pairs]

    def excess(self, geometry: str, other: str) -> Interval:
        """The same, over seeds."""
        return self.relative(self.excesses(geometry, other))

    def relative(self, differences: Sequence[float]) -> Interval:
        """An interval of `excesses`, without the logarithm."""
        found = interval(differences)
        if not self.is_loss:
            return found
        return Interval(math.expm1(found.mean), math.expm1(found.low), math.expm1(found.high), found.count)

    @functools.cached_property
    def best(self) -> str:
        """The geometry with the lowest mean."""
        return min(self.scores, key=lambda name: statistics.fmean(self.excesses(name, "whole")))

    @property
    def unbeaten(self) -> tuple[str, ...]:
        """The best, and those that are not worse than it beyond noise, and by more than `LEVEL`."""
        return tuple(name for name in self.scores if not self.is_worse(name))

    def is_worse(self, geometry: str) -> bool:
        """Whether it is worse than the best, beyond noise and by more than `LEVEL`."""
        excess = self.excess(geometry, self.best)
        return geometry != self.best and not (excess.low <= 0 or excess.mean <= LEVEL)

    @property
    def worst(self) -> float:
        """What the worst geometry costs: its mean over the best's."""
        return 1 + max(self.excess(name, self.best).mean for name in self.scores if name != self.best)


@dataclass(frozen=True)
class Evidence:
    """The results on structures."""

    known: Known
    size: Size

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the tasks."""
        return sweep.TASKS

    def structures(self, task: str) -> dict[str, Structure]:
        """The structures that were tried in a task, by name."""
        return {name: sweep.STRUCTURES[name] for name in sweep.names(task, self.size)}

    def outcome(self, task: str, structure: Structure | str) -> Outcome:
        """The results of a structure in a task: its own, or its mirror image's with rows and columns exchanged."""
        own = sweep.STRUCTURES[structure] if isinstance(structure, str) else structure
        if (asked := cell(task, own, self.size)) in self.known:
            return self._outcome(asked)
        mirrored = self._outcome(cell(task, own.transpose, self.size))
        other = {"row": "column", "column": "row"}
        names = {name: other.get(name, name) for name in GEOMETRIES}
        scores = {name: mirrored.scores[mirror] for name, mirror in names.items()}
        rates = {name: mirrored.rates[mirror] for name, mirror in names.items()}
        return Outcome(scores, rates, mirrored.is_loss)

    def checks(self) -> list[tuple[str, str, Outcome]]:
        """Longer runs and games with less to learn, each with its task and how it differs, if they were run."""
        found, own = [], sweep.STRUCTURES[sweep.LONGER]
        for task in (task for task in self.tasks if self.size.checks and task != sweep.PROPORTIONAL):
            found.append((task, "four times as long", self._outcome(cell(task, own, self.size, longer=4))))
            if not self.outcome(task, own).is_loss:
                found.append((task, "a quarter of the drift", self._outcome(cell(task, own, self.size, drift=1.0))))
        return found

    def costs(self) -> list[cost.Result]:
        """What steps cost."""
        return [self.known[cost.Config(m, n, self.size.repeats)] for m, n in self.size.shapes]

    def _outcome(self, asked: Cell) -> Outcome:
        result: regret.Result | training.Result = self.known[asked]
        return Outcome(
            dict(zip(GEOMETRIES, result.scores, strict=True)),
            dict(zip(GEOMETRIES, result.rates, strict=True)),
            isinstance(result, training.Result),
        )
