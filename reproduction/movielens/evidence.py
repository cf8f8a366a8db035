"""The factorisation's results in the terms of the claims: curves by setting, geometry, fold and start."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from matrix_adagrad.intervals import Interval, interval, nested_interval
from reproduction.cells import Known
from reproduction.movielens.factorisation import Result
from reproduction.movielens.sweep import DEFAULT, Search, Size
from reproduction.movielens.validation import Errors

__all__ = ["Evidence", "Factorised", "after"]


@dataclass(frozen=True)
class Factorised:
    """A model that was trained on all but a test fold, at the learning rate that cross-validation chose."""

    lr: float
    test: tuple[float, ...]  # RMSE after each epoch
    train: dict[int, float]  # the same for some epochs

    @property
    def final(self) -> float:
        """The test RMSE after the last epoch."""
        return self.test[-1]

    @property
    def best(self) -> float:
        """The lowest test RMSE of all epochs."""
        return min(self.test)

    @property
    def area(self) -> float:
        """The mean of the test RMSE over all epochs: the area under the curve."""
        return statistics.fmean(self.test)

    @property
    def trained(self) -> float:
        """The RMSE on the training ratings after the last epoch."""
        return self.train[max(self.train)]

    def epochs_to(self, level: float) -> float:
        """The number of epochs after which the test RMSE is at most this; one more than were run if it never is."""
        return next((epoch for epoch, rmse in enumerate(self.test, 1) if rmse <= level), len(self.test) + 1)


def after(epoch: int) -> Callable[[Factorised], float]:
    """The test RMSE after an epoch, as a measure."""
    return lambda model: model.test[epoch - 1]


ByFold = list[list[Factorised]]


@dataclass(frozen=True)
class Evidence:
    """The results of the factorisation."""

    known: Known
    size: Size

    @functools.cached_property
    def _errors(self) -> dict[str, dict[str, Errors]]:
        return {setting: Search(setting, self.size).cells(self.known)[1] for setting in self.size.settings}

    @functools.cached_property
    def _results(self) -> dict[str, list[Result]]:
        """The results of the final models."""
        return {
            setting: [self.known[cell] for cell in Search(setting, self.size).final(errors)]
            for setting, errors in self._errors.items()
        }

    @functools.cached_property
    def _models(self) -> dict[tuple[str, str], ByFold]:
        found: dict[tuple[str, str], ByFold] = {}
        for setting, results in self._results.items():
            for result in results:
                for run, ((test,),), (train,) in zip(result.config.runs, result.held_out, result.train, strict=True):
                    folds = found.setdefault((setting, run.geometry), [[] for _ in range(self.size.folds)])
                    model = Factorised(run.lrs[0], test, dict(zip(result.config.trained, train, strict=True)))
                    folds[run.held_out[0]].append(model)
        return found

    def errors(self, setting: str, geometry: str) -> Errors:
        """What cross-validation found."""
        return self._errors[setting][geometry]

    def models(self, setting: str, geometry: str) -> ByFold:
        """The final models of each fold, in the same order of starts for all geometries."""
        return self._models[setting, geometry]

    def mean(self, setting: str, geometry: str, measure: Callable[[Factorised], float] = lambda m: m.final) -> float:
        """The mean of a measure, over folds and starts."""
        return statistics.fmean(measure(model) for fold in self.models(setting, geometry) for model in fold)

    def advantage(
        self, setting: str, better: str, worse: str, measure: Callable[[Factorised], float] = lambda m: m.final
    ) -> Interval:
        """How much lower a measure of one geometry's is than another's, paired by start, over folds and starts."""
        folds = zip(self.models(setting, worse), self.models(setting, better), strict=True)
        return nested_interval(
            [measure(behind) - measure(ahead) for behind, ahead in zip(*fold, strict=True)] for fold in folds
        )

    def early_advantage(self, better: str, worse: str, number: int) -> Interval:
        """The difference after an early epoch if the learning rates are chosen for that epoch, by the same folds.

        In the default setting, on the models of cross-validation.
        """
        rmse = {
            geometry: [errors.test(errors.best(fold, number), fold, number) for fold in range(self.size.folds)]
            for geometry in (better, worse)
            for errors in [self.errors(DEFAULT, geometry)]
        }
        return interval(behind - ahead for behind, ahead in zip(rmse[worse], rmse[better], strict=True))

    def transposed(self, geometry: str) -> list[float]:
        """For each fold, the final RMSE with embeddings as columns, at the rate of the mirrored run with rows."""
        cells = Search(DEFAULT, self.size).transposed(self._errors[DEFAULT])
        (cell,) = (cell for cell in cells if cell.runs[0].geometry == geometry)
        return [curve[-1] for ((curve,),) in self.known[cell].held_out]

    def constant(self, setting: str) -> float:
        """The test RMSE of predicting the mean of the training ratings, averaged over folds."""
        return statistics.fmean(rmse for result in self._results[setting] for rmse in result.constant)

    def learns(self, setting: str) -> bool:
        """Whether any geometry predicts better than the mean of the training ratings."""
        return min(self.mean(setting, geometry) for geometry in self._errors[setting]) < self.constant(setting)

    def state(self, geometry: str) -> int:
        """The bytes of the optimizer's state."""
        pairs = (pair for own in self._results[DEFAULT] for pair in zip(own.config.runs, own.state, strict=True))
        return next(state for run, state in pairs if run.geometry == geometry)
