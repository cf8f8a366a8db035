"""Which cells the factorisation needs, given the results so far.

The learning rate for a test fold f is chosen by cross-validation on the other folds. A model that was trained without
the folds f and g gives an error on g for the choice of f, and an error on f for the choice of g: each model is used
twice, and the ratings of f have no part in the choice for f. Then models are trained on everything but f at the chosen
rate, from several starts, and tested on f.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from reproduction.cells import Cell, Known
from reproduction.movielens.factorisation import Config, Run
from reproduction.movielens.validation import Errors

__all__ = [
    "ALTERNATIVES",
    "DEFAULT",
    "EARLY",
    "FULL",
    "GEOMETRIES",
    "GRID",
    "QUICK",
    "Search",
    "Size",
    "needed",
    "point_of",
]

GEOMETRIES = ("row", "entry", "column")
DEFAULT = "default"

# What the paper leaves open: the name of each setting, and how it differs from the default.
ALTERNATIVES: dict[str, dict[str, Any]] = {
    DEFAULT: {},
    "batches of 64": {"batch": 64},
    "full batch": {"batch": 0},
    "λ once per rating": {"per_rating": True},
    "start N(0, 0.01²)": {"start": "N(0, 0.01²)"},
    "start N(0, 1)": {"start": "N(0, 1)"},
    "start U(0, 1)/√k": {"start": "U(0, 1)/√k"},
    "mean-centred ratings": {"centred": True},
}


@dataclass(frozen=True)
class Size:
    """How much to run.

    Args:
        folds: test folds.
        starts: starts and shuffles per fold, in the default setting.
        alternative_starts: the same in the others.
        all_pairs: whether the default setting cross-validates with all pairs of folds. The other settings, and a quick
            run, take neighbours only, which gives every test fold two folds for validation.
        finest: the step of the grid around the best learning rate, in sixteenths of a decade.
        settings: names of `ALTERNATIVES`.
    """

    folds: int
    starts: int
    alternative_starts: int
    all_pairs: bool
    finest: int
    settings: tuple[str, ...]


FULL = Size(5, 4, 3, True, 1, tuple(ALTERNATIVES))
QUICK = Size(3, 2, 0, False, 2, (DEFAULT,))

GRID = 16  # points per decade
STEPS = (4, 2, 1)  # of the grid, from coarse to fine
# Where the search for learning rates starts, as points of the grid for `GEOMETRIES`. It moves to wherever the best is.
GUESSES = {
    DEFAULT: (-12, -24, 0),
    "batches of 64": (-12, -24, 0),
    "full batch": (-8, -18, 8),
    "λ once per rating": (-12, -24, 2),
    "start N(0, 0.01²)": (-12, -22, 0),
    "start N(0, 1)": (8, -6, 18),
    "start U(0, 1)/√k": (-14, -24, 2),
    "mean-centred ratings": (-18, -28, -4),
}
DECADES = 6  # up or down, after which the search gives up
EARLY = (1, 2, 5)  # epochs
LAST = 30
AT_ONCE = 1 << 14  # ratings times models of a step, for which the caches have room


@dataclass(frozen=True)
class Search:
    """The search for learning rates in one setting.

    It ends when, for every geometry and test fold, the best learning rate has neighbours on both sides at every step of
    the grid: 10^(1/4), 10^(1/8) and 10^(1/16). So the grid grows while the best one is at its edge, and is refined
    around it. In the default setting, the range of good ones must lie inside too, and those that are best after an
    early epoch.
    """

    setting: str
    size: Size

    @property
    def pairs(self) -> list[tuple[int, ...]]:
        """The pairs of folds that the models of cross-validation are trained without."""
        folds = range(self.size.folds)
        if self.setting == DEFAULT and self.size.all_pairs:
            return list(itertools.combinations(folds, 2))
        return sorted({tuple(sorted((fold, (fold + 1) % len(folds)))) for fold in folds})

    @property
    def starts(self) -> range:
        """The seeds of the final models. Those of cross-validation have seed 0."""
        return range(1, 1 + (self.size.starts if self.setting == DEFAULT else self.size.alternative_starts))

    def cells(self, known: Known) -> tuple[list[Config], dict[str, Errors]]:
        """The cells of cross-validation needed so far and, if all of them have run, the errors of each geometry."""
        points = {geometry: self._first(geometry) for geometry in GEOMETRIES}
        cells: list[Config] = []
        while points:
            new = self._round(points)
            cells += new
            if not all(cell in known for cell in new):
                return cells, {}
            errors = {geometry: Errors.of((known[cell] for cell in cells), geometry) for geometry in GEOMETRIES}
            more = {geometry: self._more(geometry, own) for geometry, own in errors.items()}
            points = {geometry: some for geometry, some in more.items() if some}
        return cells, errors

    def final(self, errors: dict[str, Errors]) -> list[Config]:
        """The cells that train on all but a test fold, at the learning rates found."""
        runs = [
            Run(geometry, (fold,), (own.best(fold),), seed)
            for geometry, own in errors.items()
            for fold in range(self.size.folds)
            for seed in self.starts
        ]
        return list(self._stacks(runs, measured=tuple(range(1, LAST + 1)), trained=(*EARLY, 10, 20, LAST)))

    def transposed(self, errors: dict[str, Errors]) -> list[Config]:
        """The first start of each fold with transposed storage, at the learning rate of the mirrored run with rows."""
        return [
            Config(
                tuple(
                    Run(geometry, (fold,), (errors[mirror].best(fold),), self.starts[0])
                    for fold in range(self.size.folds)
                ),
                transposed=True,
            )
            for geometry, mirror in (("column", "row"), ("row", "column"))
        ]

    def _first(self, geometry: str) -> tuple[int, ...]:
        around = {step * sign for step in STEPS for sign in (-1, 0, 1)}
        if self.setting == DEFAULT:
            around |= set(range(-4, 13, 2))
        middle = self._guess(geometry)
        return tuple(sorted(middle + point for point in around if point % self.size.finest == 0))

    def _more(self, geometry: str, errors: Errors) -> tuple[int, ...]:
        """The points that are missing for the search to end."""
        best = {point_of(errors.best(fold)) for fold in range(self.size.folds)}
        steps = [step for step in STEPS if step >= self.size.finest]
        wanted = {point + sign * step for point in best for step in steps for sign in (-1, 1)}
        points = [point_of(lr) for lr in errors.lrs]
        if self.setting == DEFAULT:
            low, high = errors.good_range()
            best |= {point_of(errors.best(fold, n)) for fold in range(self.size.folds) for n in range(len(EARLY))}
            wanted |= {min(best) - 2} | {max(best) + 2}
            wanted |= {point for edge, point in ((low, points[0] - 2), (high, points[-1] + 2)) if edge is None}
        middle = self._guess(geometry)
        inside = range(middle - DECADES * GRID, middle + DECADES * GRID + 1)
        return tuple(sorted(wanted.intersection(inside).difference(points)))

    def _guess(self, geometry: str) -> int:
        return GUESSES[self.setting][GEOMETRIES.index(geometry)]

    def _round(self, points: dict[str, tuple[int, ...]]) -> list[Config]:
        rates = {geometry: tuple(map(_rate, some)) for geometry, some in points.items()}
        runs = [Run(geometry, pair, lrs) for geometry, lrs in rates.items() for pair in self.pairs]
        return list(self._stacks(runs, measured=(*EARLY, LAST), trained=(LAST,)))

    def _stacks(self, runs: list[Run], measured: tuple[int, ...], trained: tuple[int, ...]) -> Iterator[Config]:
        """Stacks of runs that are small enough for the caches, and large enough to spread the cost of a step."""
        options = ALTERNATIVES[self.setting]
        batch = options.get("batch", Config.batch) or 100_000
        for length in sorted({len(run.lrs) for run in runs}):
            some = [run for run in runs if len(run.lrs) == length]
            count = max(1, AT_ONCE // (batch * length))
            for first in range(0, len(some), count):
                stack = sorted(some[first : first + count], key=lambda run: run.geometry)
                yield Config(tuple(stack), measured=measured, trained=trained, **options)


def _rate(point: int) -> float:
    return float(f"{10 ** (point / GRID):.6g}")


def point_of(lr: float) -> int:
    """A learning rate as a point of the grid."""
    return round(GRID * math.log10(lr))


def needed(size: Size, known: Known) -> list[Cell]:
    """Cross-validation, then the final models, and some with embeddings stored as columns."""
    wanted: list[Cell] = []
    for setting in size.settings:
        search = Search(setting, size)
        cells, errors = search.cells(known)
        wanted += cells
        if errors:
            wanted += search.final(errors)
            wanted += search.transposed(errors) if setting == DEFAULT else []
    return wanted
