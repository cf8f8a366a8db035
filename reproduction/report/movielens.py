"""The section on MovieLens: curves, learning rates, and the settings that the paper leaves open."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence

from matrix_adagrad.intervals import interval
from matrix_adagrad.pages.document import Axis, Figure, Line, Panel, Section, Table
from matrix_adagrad.pages.tables import finite
from reproduction.evidence import Evidence, Factorised
from reproduction.sweep import DEFAULT, GEOMETRIES, GOOD, Curves

__all__ = ["NAMES", "section"]

NAMES = {"row": "Row-AdaGrad", "entry": "AdaGrad", "column": "Column-AdaGrad"}
MEAN = "mean of the ratings"
SPACINGS = (1, 2, 4, 8)  # steps of the grid


def section(evidence: Evidence) -> Section:
    """All results on the factorisation."""
    folds = evidence.search(DEFAULT, "row").folds
    return Section(
        "movielens",
        "Matrix factorisation of MovieLens 100K (§5.1, Fig. 1)",
        (
            f"100,000 ratings as a product of two tables of 20 factors, λ = 0.02, 30 epochs. Each of {len(folds)} "
            "folds is the test set of one run. Of the other ratings, one in ten is held out for validation and used "
            "to choose the learning rate, on a grid that grows until the best one lies inside it. No rating is used "
            "for both validation and test. All optimizers use the same folds, batches and initial values.",
            "The default setting: batches of 1024, the sum of squared errors over the batch, λ once per rating, "
            "tables drawn from N(0, 0.1²), no biases, ratings as they are. The paper leaves all of this open, so we "
            "run the alternatives too.",
        ),
        (
            _curves(evidence),
            _learning_rates(evidence),
            *_alternatives(evidence),
            _sensitivity(evidence),
            _good_ranges(evidence),
            _coarse_grids(evidence),
            _states(evidence),
        ),
    )


def _title(setting: str) -> str:
    return "default setting" if setting == DEFAULT else setting


BAND = "The line is the mean over folds. The band spans the lowest to the highest fold."
NEAR = Axis("test RMSE", floor=0.92, ceiling=1.06)


def _curves(evidence: Evidence) -> Figure:
    ends = {g: statistics.fmean(run.final for run in evidence.factorised(DEFAULT, g)) for g in GEOMETRIES}
    said = ", ".join(f"{end:.4f} ({NAMES[geometry]})" for geometry, end in ends.items())
    return Figure(
        "movielens",
        "Test RMSE during training, each optimizer with its own tuned learning rate",
        f"Three falling curves of test RMSE over 30 epochs, which end at {said}. AdaGrad's minus Row-AdaGrad's is "
        f"{evidence.advantage(DEFAULT, 'row', 'entry')}.",
        f"Default setting. {BAND} Learning rates were chosen on validation ratings.",
        Axis("epoch"),
        NEAR,
        (_curve_panel(evidence, DEFAULT),),
    )


def _learning_rates(evidence: Evidence) -> Figure:
    widths = {geometry: _width(evidence, geometry) for geometry in GEOMETRIES}
    said = ", ".join(f"{NAMES[geometry]} {high / low:.1f}" for geometry, (low, high) in widths.items())
    return Figure(
        "movielens-lr",
        "Test RMSE after 30 epochs, by learning rate",
        "Three valleys of RMSE over the learning rate. The range of learning rates within 1 % of the best RMSE spans "
        f"these factors: {said}.",
        f"Default setting. {BAND} Column-AdaGrad sums over all rows, so it needs a larger rate.",
        Axis("learning rate", log=True),
        NEAR,
        (_rate_panel(evidence, DEFAULT),),
    )


def _alternatives(evidence: Evidence) -> Iterator[Figure]:
    settings = [setting for setting in evidence.size.settings if setting != DEFAULT]
    if not settings:
        return
    far = Axis("test RMSE", floor=0.9, ceiling=1.3)
    text = "Three curves for each setting that the paper leaves open. The table below lists their final values."
    yield Figure(
        "movielens-alternatives",
        "The same in the other settings",
        text,
        f"{BAND} Learning rates were tuned separately in each setting.",
        Axis("epoch"),
        far,
        tuple(_curve_panel(evidence, setting) for setting in settings),
        "setting",
    )
    yield Figure(
        "movielens-lr-alternatives",
        "Learning rates in the other settings",
        text,
        BAND,
        Axis("learning rate", log=True),
        far,
        tuple(_rate_panel(evidence, setting) for setting in settings),
        "setting",
    )


def _curve_panel(evidence: Evidence, setting: str) -> Panel:
    lines = []
    for geometry in GEOMETRIES:
        curves = list(zip(*[run.test for run in evidence.factorised(setting, geometry)], strict=True))
        lines.append(_line(NAMES[geometry], range(1, len(curves) + 1), curves))
    if setting != DEFAULT:  # in the default setting it is far above the curves
        lines.append(Line(MEAN, (1.0, float(len(curves))), (evidence.constant(setting),) * 2, reference=True))
    return Panel(_title(setting), tuple(lines))


def _rate_panel(evidence: Evidence, setting: str) -> Panel:
    lines = []
    for geometry in GEOMETRIES:
        search = evidence.search(setting, geometry)
        by_fold = [search.curves(evidence.known, fold) for fold in search.folds]
        columns = [[curves[lr][0][-1] for curves in by_fold] for lr in by_fold[0]]
        lines.append(_line(NAMES[geometry], list(by_fold[0]), columns))
    return Panel(_title(setting), tuple(lines))


def _line(name: str, x: Sequence[float] | range, columns: Sequence[Sequence[float]]) -> Line:
    """A line through the means over folds, in a band from the lowest to the highest."""
    return Line(
        name,
        tuple(x),
        tuple(finite(statistics.fmean(column)) for column in columns),
        tuple(finite(min(column)) for column in columns),
        tuple(finite(max(column)) for column in columns),
    )


def _sensitivity(evidence: Evidence) -> Table:
    rows = []
    for setting in evidence.size.settings:
        runs = {geometry: evidence.factorised(setting, geometry) for geometry in GEOMETRIES}
        goal = 1.01 * min(statistics.fmean(run.final for run in some) for some in runs.values())
        rows.append((_title(setting), MEAN, f"{evidence.constant(setting):.4f}", *[None] * 6))
        for geometry, some in runs.items():
            by = "" if geometry == "row" else str(evidence.advantage(setting, "row", geometry))
            by_epoch = evidence.factorised(setting, geometry, by_best_epoch=True)
            rows.append(
                (
                    _title(setting),
                    NAMES[geometry],
                    _mean(run.final for run in some),
                    _mean(run.best for run in some),
                    _mean(run.best for run in by_epoch),
                    _mean(run.train for run in some),
                    _span([run.lr for run in some]),
                    _epochs(some, goal),
                    by,
                )
            )
    return Table(
        "movielens-settings",
        "Every setting",
        "Test RMSE, mean over folds: after the last epoch; at the best epoch; and at the best epoch with the learning "
        "rate tuned for it. “Epochs to 1 %” counts epochs until RMSE is within 1 % of the lowest final RMSE of the "
        "three. The last column is the paired difference from Row-AdaGrad with its 95 % interval: positive where "
        "Row-AdaGrad is better.",
        (
            "setting",
            "optimizer",
            "final",
            "best epoch",
            "tuned for it",
            "training",
            "lr",
            "epochs to 1 %",
            "above rows by",
        ),
        tuple(rows),
    )


def _mean(values: Iterator[float]) -> str:
    return f"{statistics.fmean(values):.4f}"


def _span(lrs: list[float]) -> str:
    low, high = f"{min(lrs):.3g}", f"{max(lrs):.3g}"
    return low if low == high else f"{low}–{high}"


def _epochs(runs: list[Factorised], goal: float) -> str:
    reached = [next((epoch for epoch, rmse in enumerate(run.test, 1) if rmse <= goal), None) for run in runs]
    if None in reached:
        return f"not in {reached.count(None)} of {len(reached)} folds"
    return f"{statistics.fmean(filter(None, reached)):.1f}"


def _width(evidence: Evidence, geometry: str) -> tuple[float, float]:
    """The range of learning rates whose mean RMSE is within 1 % of the best, interpolated between grid points."""
    search = evidence.search(DEFAULT, geometry)
    by_fold = [search.curves(evidence.known, fold) for fold in search.folds]
    rmse = {lr: statistics.fmean(curves[lr][0][-1] for curves in by_fold) for lr in by_fold[0]}
    bar = GOOD * min(rmse.values())
    good = [lr for lr, value in rmse.items() if value <= bar]
    return _crossing(rmse, min(good), -1, bar), _crossing(rmse, max(good), +1, bar)


def _crossing(rmse: dict[float, float], lr: float, direction: int, bar: float) -> float:
    """Where the curve over log lr crosses the bar, beyond a learning rate that is below it."""
    lrs = sorted(rmse)
    beyond = lrs.index(lr) + direction
    if not 0 <= beyond < len(lrs) or not math.isfinite(rmse[lrs[beyond]]):
        return lr
    part = (bar - rmse[lr]) / (rmse[lrs[beyond]] - rmse[lr])
    return float(lr * (lrs[beyond] / lr) ** part)


def _good_ranges(evidence: Evidence) -> Table:
    rows = []
    for geometry in GEOMETRIES:
        low, high = _width(evidence, geometry)
        rows.append((NAMES[geometry], f"{low:.3g}", f"{high:.3g}", f"{high / low:.2f}"))
    return Table(
        "movielens-good-range",
        "The range of good learning rates",
        "Default setting: learning rates whose mean test RMSE after 30 epochs is within 1 % of the optimizer's best.",
        ("optimizer", "from", "to", "factor"),
        tuple(rows),
    )


def _coarse_grids(evidence: Evidence) -> Table:
    """What coarser grids would have shown: all grids contained in the fine one, for each spacing."""
    rows = []
    searches = {geometry: evidence.search(DEFAULT, geometry) for geometry in ("row", "entry")}
    curves = {g: [s.curves(evidence.known, fold) for fold in s.folds] for g, s in searches.items()}
    for spacing in SPACINGS:
        ahead, means = {"row": 0, "entry": 0}, []
        for offsets in itertools.product(range(spacing), repeat=2):
            final = {g: _tuned(curves[g], offset, spacing) for g, offset in zip(searches, offsets, strict=True)}
            by = interval(e - r for e, r in zip(final["entry"], final["row"], strict=True))
            means.append(by.mean)
            ahead["row"] += by.low > 0
            ahead["entry"] += by.high < 0
        step = f"10^({spacing}/{evidence.size.grid})"
        rows.append((step, len(means), ahead["row"], ahead["entry"], f"{min(means):+.4f}", f"{max(means):+.4f}"))
    return Table(
        "movielens-coarse-grids",
        "What coarser grids of learning rates would have shown",
        "Each optimizer chooses from a grid with only every k-th point of the fine grid, at every offset. The table "
        "shows for how many pairs of grids either optimizer is ahead, with an interval that excludes 0, and the "
        "smallest and largest mean difference of RMSE.",
        ("step", "pairs of grids", "Row-AdaGrad ahead", "AdaGrad ahead", "smallest difference", "largest difference"),
        tuple(rows),
    )


def _tuned(folds: list[Curves], offset: int, spacing: int) -> list[float]:
    """The final RMSE of each fold, with the learning rate chosen from part of the grid."""
    finals = []
    for curves in folds:
        grid = list(curves)[offset::spacing] or list(curves)[-1:]
        finals.append(curves[min(grid, key=lambda lr: curves[lr][1][-1])][0][-1])
    return finals


def _states(evidence: Evidence) -> Table:
    rows = []
    for geometry in GEOMETRIES:
        search = evidence.search(DEFAULT, geometry)
        result = evidence.known[search.cells(evidence.known)[0]]
        rows.append((NAMES[geometry], result.state // 4, result.state))
    return Table(
        "movielens-state",
        "Memory of the optimizer's state",
        "Measured for the two tables of 943 × 20 and 1,682 × 20 factors. The factors themselves take 210,000 bytes.",
        ("optimizer", "numbers", "bytes"),
        tuple(rows),
    )
