"""The MLPs' results in the terms of the claims: which networks train, by setting, depth, learning rate, optimizer."""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from matrix_adagrad.intervals import Interval, interval
from reproduction.cells import Known
from reproduction.networks import sweep
from reproduction.networks.mlp import WIDTH, Result, Run
from reproduction.networks.sweep import Size

__all__ = ["Evidence", "Limit", "Networks"]


@dataclass(frozen=True)
class Networks:
    """The networks of one run, each by a seed: loss curves, final losses, and the losses of the two simplest fits."""

    curves: tuple[tuple[float, ...], ...]
    losses: tuple[float, ...]
    constant: tuple[float, ...]
    linear: tuple[float, ...]

    @property
    def ratios(self) -> list[float]:
        """Loss / loss of the best linear fit, for each seed. A diverged network is scored as the best constant."""
        rows = zip(self.losses, self.constant, self.linear, strict=True)
        return [min(loss, constant) / linear for loss, constant, linear in rows]

    @property
    def below(self) -> str:
        """How many end below the best linear fit."""
        return f"{sum(ratio < 1 for ratio in self.ratios)} of {len(self.ratios)}"

    @property
    def gain(self) -> Interval:
        """1 - loss / loss of the best linear fit, over seeds: the gain over a linear fit."""
        return interval(1 - ratio for ratio in self.ratios)

    @property
    def trains(self) -> bool | None:
        """Whether the gain over a linear fit is positive; ``None`` if its interval contains 0."""
        return self.gain.is_positive

    def excess(self, other: Networks) -> Interval:
        """The loss minus another's, relative to that of the best linear fit, over seeds."""
        return interval(mine - yours for mine, yours in zip(self.ratios, other.ratios, strict=True))

    @property
    def fluctuations(self) -> list[float]:
        """For each seed: the mean rise of log loss from point to point, over the second half of its curve.

        Only increases count, since steady progress is not instability.
        """
        return [_fluctuation(curve[len(curve) // 2 :]) for curve in self.curves]

    def __str__(self) -> str:
        return f"{self.below} seeds below the linear fit, gain {self.gain}"


@dataclass(frozen=True)
class Limit:
    """How far up a ladder networks train: the largest rate at which they do, and the largest that is not too large.

    Between the two, it is not decided whether they train. 0 means none, and ``top`` is the ladder's largest rate.
    """

    trains: float
    possible: float
    top: float

    def exceeds(self, other: Limit) -> bool | None:
        """Whether this limit is above the other; ``None`` if it is not decided, or if both are above the ladder."""
        if self.trains > other.possible:
            return True
        return False if self.possible <= other.trains and self.possible < self.top else None

    def __str__(self) -> str:
        if not self.possible:
            return "at none"
        sure = "at none" if not self.trains else f"up to {self.trains:.2g}"
        if self.trains == self.top:
            return f"{sure}, the top"
        return sure + f" (not decided up to {self.possible:.2g})" * (self.possible > self.trains)


@dataclass(frozen=True)
class Evidence:
    """The results of the stacked MLPs."""

    known: Known
    size: Size

    @property
    def settings(self) -> tuple[str, ...]:
        """The settings that were run."""
        return ("A", *self.size.settings)

    def networks(self, setting: str, depth: int, lr: float, optimizer: str) -> Networks | None:
        """The networks of all seeds, or ``None`` if they were not run."""
        return self._found.get((setting, depth, Run(optimizer, lr)))

    @functools.cached_property
    def _found(self) -> dict[tuple[str, int, Run], Networks]:
        found = {}
        for cell in sweep.needed(self.size, self.known):
            result: Result = self.known[cell]
            config = result.config
            for run, curves, losses in zip(config.runs, result.curves, result.losses, strict=True):
                found[config.setting, config.depth, run] = Networks(curves, losses, result.constant, result.linear)
        return found

    @property
    def ladders(self) -> list[tuple[str, int]]:
        """The settings and depths of all ladders."""
        return list(itertools.product(self.size.ladders, self.size.rungs))

    def ladder(self, setting: str, depth: int, optimizer: str) -> dict[float, Networks]:
        """The networks at each learning rate of a ladder. Adam at lr/√width is Adam, two rungs below."""
        factor, run_by = (math.sqrt(WIDTH), sweep.ADAM) if optimizer == sweep.SMALL_ADAM else (1.0, optimizer)
        return {lr * factor: self._found[setting, depth, Run(run_by, lr)] for lr in self.size.rates(depth)}

    def limit(self, setting: str, depth: int, optimizer: str) -> Limit:
        """The largest learning rate of a ladder at which networks train."""
        ladder = self.ladder(setting, depth, optimizer)
        largest = {
            outcomes: max((lr for lr, networks in ladder.items() if networks.trains in outcomes), default=0.0)
            for outcomes in ((True,), (True, None))
        }
        return Limit(largest[True,], largest[True, None], max(ladder))


def _fluctuation(curve: Sequence[float]) -> float:
    return statistics.fmean(_steps(curve))


def _steps(curve: Sequence[float]) -> Iterator[float]:
    for before, after in itertools.pairwise(curve):
        yield max(0.0, math.log(after / before)) if math.isfinite(before) and math.isfinite(after) else math.inf
