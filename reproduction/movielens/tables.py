"""The tables of the section on MovieLens."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable

from matrix_adagrad.intervals import interval
from matrix_adagrad.pages.document import Table
from reproduction.movielens.claims import LEVEL
from reproduction.movielens.evidence import Evidence, after
from reproduction.movielens.sweep import DEFAULT, EARLY, GEOMETRIES, GRID, point_of
from reproduction.movielens.validation import Errors

__all__ = [
    "MEAN",
    "NAMES",
    "chosen_early",
    "coarse_grids",
    "early",
    "good_ranges",
    "settings",
    "states",
    "title",
    "width",
]

NAMES = {"row": "Row-AdaGrad", "entry": "AdaGrad", "column": "Column-AdaGrad"}
MEAN = "mean of the ratings"
SPACINGS = (1, 2, 4)  # every point, every second, every fourth of the part of the grid with steps of 10^(1/8)


def title(setting: str) -> str:
    """The name of a setting in figures and tables."""
    return "default setting" if setting == DEFAULT else setting


def settings(evidence: Evidence) -> Table:
    """Final results in all settings, with paired differences."""
    rows: list[tuple[str | None, ...]] = []
    for setting in evidence.size.settings:
        note = "" if evidence.learns(setting) else "better than all: no claim counts this setting"
        rows.append((title(setting), MEAN, f"{evidence.constant(setting):.4f}", None, None, None, note))
        for geometry in GEOMETRIES:
            by = "" if geometry == "row" else str(evidence.advantage(setting, "row", geometry))
            rows.append(
                (
                    title(setting),
                    NAMES[geometry],
                    f"{evidence.mean(setting, geometry):.4f}",
                    f"{evidence.mean(setting, geometry, lambda model: model.best):.4f}",
                    f"{evidence.mean(setting, geometry, lambda model: model.trained):.4f}",
                    _span(model.lr for fold in evidence.models(setting, geometry) for model in fold),
                    by,
                )
            )
    return Table(
        "movielens-settings",
        "Every setting",
        "RMSE, mean over folds and starts: on the test fold after the last epoch, and at the best epoch of its curve; "
        "on the training ratings. The last column is the paired difference from Row-AdaGrad with its 95 % interval "
        "over folds and starts: positive where Row-AdaGrad is better.",
        ("setting", "optimizer", "final", "best epoch", "training", "lr", "above rows by"),
        tuple(rows),
    )


def early(evidence: Evidence) -> Table:
    """The first epochs in all settings."""
    rows = []
    for setting, geometry in itertools.product(evidence.size.settings, GEOMETRIES):
        level = LEVEL * min(evidence.mean(setting, each) for each in GEOMETRIES)
        some = [model.epochs_to(level) for fold in evidence.models(setting, geometry) for model in fold]
        never = sum(epochs > len(evidence.models(setting, geometry)[0][0].test) for epochs in some)
        rows.append(
            (
                title(setting),
                NAMES[geometry],
                *(f"{evidence.mean(setting, geometry, after(epoch)):.3f}" for epoch in EARLY),
                f"{evidence.mean(setting, geometry, lambda model: model.area):.4f}",
                f"not in {never} of {len(some)} runs" if never else f"{statistics.fmean(some):.1f}",
            )
        )
    return Table(
        "movielens-early",
        "Early epochs, at the learning rates chosen for the last one",
        "Test RMSE after a few epochs, the mean over all epochs (the area under the curve), and the epochs until RMSE "
        "is within 1 % of the lowest final RMSE of the three.",
        ("setting", "optimizer", *(f"epoch {epoch}" for epoch in EARLY), "mean over epochs", "epochs to 1 %"),
        tuple(rows),
    )


def chosen_early(evidence: Evidence) -> Table:
    """The control: learning rates that are chosen for an early epoch."""
    rows = []
    for number, epoch in enumerate(EARLY):
        for geometry in GEOMETRIES:
            errors = evidence.errors(DEFAULT, geometry)
            chosen = [errors.best(fold, number) for fold in errors.folds]
            rmse = statistics.fmean(
                errors.test(lr, fold, number) for fold, lr in zip(errors.folds, chosen, strict=True)
            )
            by = "" if geometry == "row" else str(evidence.early_advantage("row", geometry, number))
            rows.append((epoch, NAMES[geometry], f"{rmse:.4f}", _span(chosen), by))
    return Table(
        "movielens-chosen-early",
        "Early epochs, at learning rates chosen for them",
        "Default setting, on the models of cross-validation, which were trained on three folds of five: RMSE after an "
        "early epoch at the learning rate that is best after that epoch, on a grid with steps of 10^(1/8).",
        ("epoch", "optimizer", "RMSE", "lr", "above rows by"),
        tuple(rows),
    )


def _span(lrs: Iterable[float]) -> str:
    some = list(lrs)
    low, high = f"{min(some):.3g}", f"{max(some):.3g}"
    return low if low == high else f"{low}–{high}"


def width(evidence: Evidence, geometry: str) -> tuple[float, float]:
    """The range of learning rates whose mean RMSE is within 1 % of the best, in the default setting."""
    errors = evidence.errors(DEFAULT, geometry)
    low, high = errors.good_range()
    return low or errors.lrs[0], high or errors.lrs[-1]


def good_ranges(evidence: Evidence) -> Table:
    """How forgiving each optimizer is."""
    rows = []
    for geometry in GEOMETRIES:
        low, high = width(evidence, geometry)
        rows.append((NAMES[geometry], f"{low:.3g}", f"{high:.3g}", f"{high / low:.2f}"))
    return Table(
        "movielens-good-range",
        "The range of good learning rates",
        "Default setting: learning rates whose mean held-out RMSE after 30 epochs is within 1 % of the best.",
        ("optimizer", "from", "to", "factor"),
        tuple(rows),
    )


def coarse_grids(evidence: Evidence) -> Table:
    """What coarser grids would have shown: all grids contained in the fine one, for each spacing."""
    rows = []
    errors = {geometry: evidence.errors(DEFAULT, geometry) for geometry in ("row", "entry")}
    for spacing in SPACINGS:
        ahead, means = {"row": 0, "entry": 0}, []
        for offsets in itertools.product(range(spacing), repeat=2):
            final = {
                g: _tuned(own, _even(own)[at::spacing]) for (g, own), at in zip(errors.items(), offsets, strict=True)
            }
            by = interval(e - r for e, r in zip(final["entry"], final["row"], strict=True))
            means.append(by.mean)
            ahead["row"] += by.low > 0
            ahead["entry"] += by.high < 0
        step = f"10^({2 * spacing}/{GRID})"
        rows.append((step, len(means), ahead["row"], ahead["entry"], f"{min(means):+.4f}", f"{max(means):+.4f}"))
    return Table(
        "movielens-coarse-grids",
        "What coarser grids of learning rates would have shown",
        "Each optimizer chooses from a grid with only every k-th point of one with steps of 10^(2/16), at "
        "every offset. Choice and errors are those of the models of cross-validation. The table shows for how many "
        "pairs of grids either optimizer is ahead, with an interval over folds that excludes 0, and the smallest and "
        "largest mean difference of RMSE.",
        ("step", "pairs of grids", "Row-AdaGrad ahead", "AdaGrad ahead", "smallest difference", "largest difference"),
        tuple(rows),
    )


def _even(errors: Errors) -> list[float]:
    """The part of the grid with steps of 10^(2/16)."""
    return [lr for lr in errors.lrs if point_of(lr) % 2 == 0]


def _tuned(errors: Errors, grid: list[float]) -> list[float]:
    """The RMSE of each fold, with the learning rate chosen from part of the grid."""
    return [errors.test(errors.best(fold, among=grid), fold) for fold in errors.folds]


def states(evidence: Evidence) -> Table:
    """The memory of the optimizers."""
    rows = [(NAMES[g], evidence.state(g) // 4, evidence.state(g)) for g in GEOMETRIES]
    return Table(
        "movielens-state",
        "Memory of the optimizer's state",
        "Measured for the two tables of 943 × 20 and 1,682 × 20 factors. The factors themselves take 210,000 bytes.",
        ("optimizer", "numbers", "bytes"),
        tuple(rows),
    )
