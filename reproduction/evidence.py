"""The results in the terms of the claims: RMSE by setting and fold, losses by optimizer, depth and seed."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from matrix_adagrad.intervals import Interval, interval
from reproduction import factorisation, identities, mlp, motivating, sweep, theorems
from reproduction.sweep import Known, Search, Size

__all__ = ["Evidence", "Factorised"]


@dataclass(frozen=True)
class Factorised:
    """One geometry on one fold, with the learning rate chosen on the validation ratings."""

    lr: float
    test: tuple[float, ...]
    train: float

    @property
    def final(self) -> float:
        """The test RMSE after the last epoch."""
        return self.test[-1]

    @property
    def best(self) -> float:
        """The lowest test RMSE of all epochs."""
        return min(self.test)


@dataclass(frozen=True)
class Evidence:
    """The results of a reproduction, or of a part of it."""

    known: Known
    size: Size

    def has(self, experiment: str) -> bool:
        """Whether an experiment has finished."""
        return all(cell in self.known for cell in sweep.needed(experiment, self.size, self.known))

    # ---------------------------------------------------------------------------------------------------- MovieLens

    def search(self, setting: str, geometry: str) -> Search:
        """The search for a learning rate."""
        return Search(setting, geometry, self.size)

    def factorised(self, setting: str, geometry: str, by_best_epoch: bool = False) -> list[Factorised]:
        """One run per fold, at the learning rate with the lowest validation RMSE: after the last or the best epoch."""
        search = self.search(setting, geometry)
        chosen = []
        for fold in search.folds:
            lr = search.best(self.known, fold, min if by_best_epoch else lambda curve: curve[-1])
            test, _, train = search.curves(self.known, fold)[lr]
            chosen.append(Factorised(lr, test, train))
        return chosen

    def advantage(self, setting: str, better: str, worse: str) -> Interval:
        """How much lower the RMSE of one geometry is than another's, over folds."""
        pairs = zip(self.factorised(setting, worse), self.factorised(setting, better), strict=True)
        return interval(behind.final - ahead.final for behind, ahead in pairs)

    def transposed(self, geometry: str) -> list[Factorised]:
        """One run per fold with embeddings as columns, at the learning rate of the mirrored run with rows."""
        cells = [cell for cell in sweep.transposed(self.size, self.known) if cell.geometry == geometry]
        results: list[factorisation.Result] = [self.known[cell] for cell in cells]
        return [Factorised(result.config.lrs[0], result.test[0], result.train[0]) for result in results]

    def constant(self, setting: str) -> float:
        """The test RMSE of predicting the mean of the training ratings, averaged over folds."""
        search = self.search(setting, "row")
        first = search.cells(self.known)[: len(search.folds)]
        return statistics.fmean(self.known[cell].constant for cell in first)

    # --------------------------------------------------------------------------------------------------------- MLPs

    def networks(self, setting: str, eps: float, depth: int, lr: float, optimizer: str) -> mlp.Result | None:
        """The networks of all seeds, or ``None`` if they were not run."""
        seeds = tuple(range(self.size.seeds if setting == "A" else self.size.b_seeds))
        if not seeds:
            return None
        return self.known.get(mlp.Config(optimizer, depth, lr, setting, eps, seeds))

    @staticmethod
    def ratios(result: mlp.Result) -> list[float]:
        """Loss / loss of the best linear fit, for each seed. A diverged network is scored as the best constant."""
        rows = zip(result.losses, result.constant, result.linear, strict=True)
        return [min(loss, constant) / linear for loss, constant, linear in rows]

    def gain(self, result: mlp.Result) -> Interval:
        """1 - loss / loss of the best linear fit, over seeds: the gain over a linear fit."""
        return interval(1 - ratio for ratio in self.ratios(result))

    def excess(self, result: mlp.Result, other: mlp.Result) -> Interval:
        """The loss minus another's, relative to that of the best linear fit, over seeds."""
        pairs = zip(self.ratios(result), self.ratios(other), strict=True)
        return interval(mine - yours for mine, yours in pairs)

    @staticmethod
    def fluctuations(result: mlp.Result) -> list[float]:
        """For each seed: the mean rise of log loss from point to point, over the second half of its curve.

        Only increases count, since steady progress is not instability.
        """
        return [_fluctuation(curve[len(curve) // 2 :]) for curve in result.curves]

    # ----------------------------------------------------------------------------------------------------- examples

    def games(self) -> list[motivating.Result]:
        """The motivating examples that were played."""
        return [result for result in self._examples() if isinstance(result, motivating.Result)]

    def theorems(self) -> list[theorems.Result]:
        """The games on which inequalities were checked."""
        return [result for result in self._examples() if isinstance(result, theorems.Result)]

    def identities(self) -> list[identities.Result]:
        """The identities of the algorithms."""
        return [result for result in self._examples() if isinstance(result, identities.Result)]

    def _examples(self) -> list[Any]:
        """In the sweep's order, whatever finished first."""
        return [self.known[cell] for cell in sweep.examples(self.size, self.known) if cell in self.known]


def _fluctuation(curve: Sequence[float]) -> float:
    return statistics.fmean(_steps(curve))


def _steps(curve: Sequence[float]) -> Iterator[float]:
    for before, after in itertools.pairwise(curve):
        yield max(0.0, math.log(after / before)) if math.isfinite(before) and math.isfinite(after) else math.inf
