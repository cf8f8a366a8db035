"""What cross-validation found: the errors of models that were trained without two of the folds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from reproduction.movielens.factorisation import Result

__all__ = ["GOOD", "Errors"]

GOOD = 1.01  # a learning rate is good if its RMSE is within 1 % of the best
ByFolds = dict[tuple[int, int], tuple[float, ...]]


@dataclass(frozen=True)
class Errors:
    """The errors of one geometry's models, by learning rate in ascending order.

    Args:
        held_out: for a fold and the other one that was held out with it, the RMSE on the first after each measured
            epoch.
        train: for each pair of folds that was held out, the RMSE on the training ratings.
    """

    held_out: dict[float, ByFolds]
    train: dict[float, dict[tuple[int, ...], float]]

    @staticmethod
    def of(results: Iterable[Result], geometry: str) -> Errors:
        """The errors of a geometry in some results."""
        held_out: dict[float, ByFolds] = {}
        train: dict[float, dict[tuple[int, ...], float]] = {}
        for result in results:
            for run, by_fold, trained in zip(result.config.runs, result.held_out, result.train, strict=True):
                if run.geometry != geometry:
                    continue
                for number, lr in enumerate(run.lrs):
                    for fold, other, curves in zip(run.held_out, reversed(run.held_out), by_fold, strict=True):
                        held_out.setdefault(lr, {})[fold, other] = curves[number]
                    train.setdefault(lr, {})[run.held_out] = trained[number][-1]
        return Errors(dict(sorted(held_out.items())), dict(sorted(train.items())))

    @property
    def lrs(self) -> list[float]:
        """The learning rates, ascending."""
        return list(self.held_out)

    @property
    def folds(self) -> list[int]:
        """The folds that were held out."""
        return sorted({fold for fold, _ in next(iter(self.held_out.values()))})

    def validation(self, lr: float, fold: int, epoch: int = -1) -> float:
        """The RMSE that chooses the learning rate for a test fold, pooled over the folds that validate.

        Neither training nor validation uses the test fold.
        """
        errors = [rmse[epoch] for (_, other), rmse in self.held_out[lr].items() if other == fold]
        return math.sqrt(statistics.fmean(error**2 for error in errors))

    def best(self, fold: int, epoch: int = -1, among: Iterable[float] | None = None) -> float:
        """The learning rate with the lowest validation RMSE after the last, or another, of the measured epochs."""
        return min(self.lrs if among is None else among, key=lambda lr: self.validation(lr, fold, epoch))

    def test(self, lr: float, fold: int, epoch: int = -1) -> float:
        """The mean RMSE of the same models on the test fold. Its choice did not see it."""
        return statistics.fmean(rmse[epoch] for (own, _), rmse in self.held_out[lr].items() if own == fold)

    def mean(self, lr: float) -> float:
        """The mean RMSE over folds."""
        return statistics.fmean(self.test(lr, fold) for fold in self.folds)

    def good_range(self) -> tuple[float | None, float | None]:
        """The learning rates whose mean RMSE is within 1 % of the best. An end is ``None`` if it is out of the grid."""
        rmse = {lr: self.mean(lr) for lr in self.lrs}
        bar = GOOD * min(rmse.values())
        good = [lr for lr, value in rmse.items() if value <= bar]
        return _crossing(rmse, good[0], -1, bar), _crossing(rmse, good[-1], +1, bar)


def _crossing(rmse: dict[float, float], lr: float, direction: int, bar: float) -> float | None:
    """Where the curve over log lr crosses the bar, beyond a learning rate that is below it."""
    lrs = list(rmse)
    beyond = lrs.index(lr) + direction
    if not 0 <= beyond < len(lrs):
        return None
    if not math.isfinite(rmse[lrs[beyond]]):
        return lr
    part = (bar - rmse[lr]) / (rmse[lrs[beyond]] - rmse[lr])
    return float(lr * (lrs[beyond] / lr) ** part)
