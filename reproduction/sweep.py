"""Which cells a reproduction needs, given the results so far: grids of learning rates grow until the best is inside."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from matrix_adagrad.online.presets import GAMES as NAMED_GAMES
from reproduction import factorisation, identities, mlp, motivating, theorems
from reproduction.cells import Cell

__all__ = ["ALTERNATIVES", "DEFAULT", "EXPERIMENTS", "FULL", "GEOMETRIES", "QUICK", "Known", "Search", "Size", "needed"]

Known = Mapping[Cell, Any]
Curves = dict[float, tuple[tuple[float, ...], tuple[float, ...], float]]


@dataclass(frozen=True)
class Size:
    """How much to run."""

    folds: int
    alternative_folds: int
    grid: int  # learning rates per decade
    settings: tuple[str, ...]
    seeds: int
    b_seeds: int
    depths: tuple[int, ...]
    b_depths: tuple[int, ...]
    games: tuple[tuple[int, int, int], ...]  # (m, n, K)
    rounds: int

    @property
    def is_quick(self) -> bool:
        """Whether it is smaller than the full reproduction."""
        return self != FULL


# ------------------------------------------------------------------------------------------------------- MovieLens

GEOMETRIES = ("row", "entry", "column")
DEFAULT = "default"

# What the paper leaves open: the name of each setting, and how it differs from the default.
ALTERNATIVES: dict[str, dict[str, Any]] = {
    DEFAULT: {},
    "batches of 64": {"batch": 64},
    "full batch": {"batch": 0},
    "unbiased λ": {"unbiased": True},
    "start N(0, 0.01²)": {"start": "N(0, 0.01²)"},
    "start N(0, 1)": {"start": "N(0, 1)"},
    "start U(0, 1)/√k": {"start": "U(0, 1)/√k"},
    "mean-centred ratings": {"centred": True},
}

# Where the search for learning rates starts, as log10. It moves to wherever the best one is.
STARTS = {"row": -0.75, "entry": -1.375, "column": 0.125}
SHIFTS = {"full batch": 0.25, "start N(0, 1)": 1.125, "start U(0, 1)/√k": 0.125, "mean-centred ratings": -0.25}
DECADES = 6  # up or down, after which the search gives up
GOOD = 1.01  # a learning rate is good if its RMSE is within 1 % of the best


@dataclass(frozen=True)
class Search:
    """The search for the learning rate of one geometry in one setting, on the same grid for all folds.

    It ends when the best learning rate of every fold lies inside the grid or, in the default setting, when the whole
    range of good ones does.
    """

    setting: str
    geometry: str
    size: Size

    @property
    def folds(self) -> range:
        """The folds that are run."""
        return range(self.size.folds if self.setting == DEFAULT else self.size.alternative_folds)

    def cell(self, points: Iterable[int], fold: int) -> factorisation.Config:
        """The cell for these grid points."""
        lrs = tuple(float(f"{10 ** (point / self.size.grid):.6g}") for point in points)
        return factorisation.Config(self.geometry, lrs, fold, **ALTERNATIVES[self.setting])

    def cells(self, known: Known) -> list[factorisation.Config]:
        """All cells needed so far; the last ones may not have run yet."""
        return [self.cell(points, fold) for points in self._pieces(known) for fold in self.folds]

    def curves(self, known: Known, fold: int) -> Curves:
        """By learning rate: the test curve, the validation curve, and the final training RMSE."""
        found = {}
        for points in self._pieces(known):
            if (result := known.get(self.cell(points, fold))) is not None:
                rows = zip(result.config.lrs, result.test, result.validation, result.train, strict=True)
                found.update({lr: (test, validation, train) for lr, test, validation, train in rows})
        return dict(sorted(found.items()))

    def best(self, known: Known, fold: int, score: Callable[[tuple[float, ...]], float] = lambda c: c[-1]) -> float:
        """The learning rate with the lowest validation RMSE: the final one, or another score of the curve."""
        curves = self.curves(known, fold)
        return min(curves, key=lambda lr: score(curves[lr][1]))

    def _pieces(self, known: Known) -> list[range]:
        """The grid, in the pieces in which it was run: the first, and those added below and above it."""
        size = self.size
        middle = round((STARTS[self.geometry] + SHIFTS.get(self.setting, 0.0)) * size.grid)
        half = size.grid // 2 if self.setting == DEFAULT else size.grid // 4
        pieces = [range(middle - half, middle + half + 1)]
        step = max(2, size.grid // 4)
        while True:
            low, high = min(p.start for p in pieces), max(p.stop for p in pieces)
            if not all(self.cell(piece, fold) in known for piece in pieces for fold in self.folds):
                return pieces
            goes_down, goes_up = self._open_ends(pieces, known)
            if goes_down and low > middle - DECADES * size.grid:
                pieces.append(range(low - step, low))
            if goes_up and high < middle + DECADES * size.grid:
                pieces.append(range(high, high + step))
            if (low, high) == (min(p.start for p in pieces), max(p.stop for p in pieces)):
                return pieces

    def _open_ends(self, pieces: list[range], known: Known) -> tuple[bool, bool]:
        down = up = False
        for fold in self.folds:
            rmse: dict[int, float] = {}
            for piece in pieces:
                rmse.update(zip(piece, (c[-1] for c in known[self.cell(piece, fold)].validation), strict=True))
            bar = GOOD if self.setting == DEFAULT else 1.0
            good = [point for point, value in rmse.items() if value <= bar * min(rmse.values())]
            down, up = down or min(good) == min(rmse), up or max(good) == max(rmse)
        return down, up


def movielens(size: Size, known: Known) -> list[Cell]:
    """The searches, plus runs with embeddings stored as columns, at the learning rates found for rows."""
    searches = [Search(setting, geometry, size) for setting in size.settings for geometry in GEOMETRIES]
    wanted: list[Cell] = [cell for search in searches for cell in search.cells(known)]
    if all(cell in known for cell in wanted):
        wanted += transposed(size, known)
    return wanted


def transposed(size: Size, known: Known) -> list[factorisation.Config]:
    """The runs with transposed storage, each at the learning rate of the mirrored run with rows."""
    return [
        factorisation.Config(geometry, (Search(DEFAULT, mirror, size).best(known, fold),), fold, transposed=True)
        for geometry, mirror in (("column", "row"), ("row", "column"))
        for fold in range(size.folds)
    ]


# -------------------------------------------------------------------------------------------------------- the others

LRS = (0.01, 0.001)
EPS = (1e-8, 1e-16)
ALWAYS = ("Adam", "Adam, lr/√width", "Row-wise Momentum", "Row-wise, mean")  # the claim, and its controls
WHOLE = "Row-wise, whole biases"  # weights and biases move as much as Adam moves them at lr/√width


def networks(size: Size, _: Known) -> list[Cell]:
    """Stacked MLPs in both settings."""
    cells: list[Cell] = []
    for lr, depth in itertools.product(LRS, size.depths):
        names = [*ALWAYS, WHOLE, "Row-wise, mean, whole biases", *["Column-wise Momentum"] * (depth in (15, 25))]
        seeds = tuple(range(size.seeds))
        cells += [
            mlp.Config(name, depth, lr, "A", seeds=seeds)
            for name in names
            if not size.is_quick or name in (*ALWAYS, WHOLE)
        ]
    for lr, eps, depth in itertools.product(LRS, EPS, size.b_depths if size.b_seeds else ()):
        names = [*ALWAYS, *[WHOLE] * (lr == LRS[0]), *["Column-wise Momentum"] * (lr == LRS[0] and depth == 25)]
        if depth == 22:  # the paper only claims that Adam fails there
            names = ["Adam", "Row-wise Momentum"] * (lr == LRS[0])
        cells += [mlp.Config(name, depth, lr, "B", eps, tuple(range(size.b_seeds))) for name in names]
    return cells


def examples(size: Size, _: Known) -> list[Cell]:
    """The motivating examples, the games on which theorems are checked, and the algorithms' identities."""
    starts = ("zero", "random")
    return [
        *(
            motivating.Config(m, n, K, active, start)
            for active in ("row", "column")
            for m, n, K in size.games
            for start in starts
        ),
        *(motivating.Config(*shape, 10, active) for active, shape in (("row", (6, 1)), ("column", (1, 6)))),
        *(
            theorems.Config(game, learner, delta, rounds=size.rounds)
            for game in NAMED_GAMES
            for learner in ("row", "column")
            for delta in (1e-8, 1e3)
        ),
        identities.Config(),
    ]


EXPERIMENTS: dict[str, Callable[[Size, Known], list[Cell]]] = {
    "movielens": movielens,
    "mlp": networks,
    "examples": examples,
}


def needed(what: str, size: Size, known: Known) -> list[Cell]:
    """All cells of an experiment, or of ``"all"``. Call it again with their results until nothing is new."""
    wanted = EXPERIMENTS.values() if what == "all" else [EXPERIMENTS[what]]
    return [cell for cells in wanted for cell in cells(size, known)]


SHORT = ((16, 9, 10), (9, 16, 10), (7, 11, 3))
GAMES = (*SHORT, (12, 5, 3), (10, 10, 30), (11, 11, 30), (8, 8, 1), (25, 4, 100), (8, 8, 300), (9, 9, 300))
FULL = Size(5, 3, 8, tuple(ALTERNATIVES), 10, 3, (5, 10, 15, 22, 25), (5, 15, 22, 25), GAMES, 500)
QUICK = Size(2, 0, 4, (DEFAULT,), 3, 0, (15, 25), (), SHORT, 100)
