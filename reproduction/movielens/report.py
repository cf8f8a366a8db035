"""The section on MovieLens: curves, learning rates, and the settings that the paper leaves open."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence

from matrix_adagrad.pages.document import Axis, Figure, Line, Panel, Section
from matrix_adagrad.pages.tables import finite
from reproduction.movielens import tables
from reproduction.movielens.evidence import Evidence, Factorised
from reproduction.movielens.sweep import DEFAULT, GEOMETRIES
from reproduction.movielens.tables import MEAN, NAMES, title

__all__ = ["section"]

BAND = "The line is the mean over folds and starts. The band spans the lowest to the highest."
NEAR = Axis("test RMSE", floor=0.92, ceiling=1.06)
FAR = Axis("test RMSE", floor=0.9, ceiling=1.3)


def section(evidence: Evidence) -> Section:
    """All results on the factorisation."""
    size = evidence.size
    step = f"10^({size.finest}/16)"
    return Section(
        "movielens",
        "Matrix factorisation of MovieLens 100K (§5.1, Fig. 1)",
        (
            "100,000 ratings as a product of two tables of 20 factors, λ = 0.02, 30 epochs. Each of "
            f"{size.folds} folds of 20,000 ratings is the test set once. Its learning rate is chosen by "
            "cross-validation on the other folds, with errors pooled over those that validate. The grid grows while "
            f"the best rate is at its edge, and is refined to steps of {step} around it, by the same rule for all "
            "optimizers and settings. Then models are trained on all the other folds at that rate, from "
            f"{size.starts} starts with their own shuffles in the default setting, and tested on the fold, which had "
            "no part in the choice. All optimizers use the same folds, batches and initial values, so differences are "
            "paired. Their intervals count both folds and starts.",
            "The default setting: the objective as printed, with λ/2‖U‖² once, of which each step takes its unbiased "
            "share (λ u/n for each rating of a user with n of them); batches of 1024, the sum of squared errors over "
            "the batch, tables drawn from N(0, 0.1²), no biases, ratings as they are. The paper leaves most of this "
            "open, so we run the alternatives too"
            + (f", from {size.alternative_starts} starts per fold." if size.alternative_starts else " in a full run."),
        ),
        (
            _curves(evidence),
            _training(evidence),
            _learning_rates(evidence),
            *_alternatives(evidence),
            tables.settings(evidence),
            tables.early(evidence),
            tables.chosen_early(evidence),
            tables.good_ranges(evidence),
            tables.coarse_grids(evidence),
            tables.states(evidence),
        ),
    )


def _curves(evidence: Evidence) -> Figure:
    ends = {geometry: evidence.mean(DEFAULT, geometry) for geometry in GEOMETRIES}
    said = ", ".join(f"{end:.4f} ({NAMES[geometry]})" for geometry, end in ends.items())
    return Figure(
        "movielens",
        "Test RMSE during training, each optimizer with its own tuned learning rate",
        f"Three falling curves of test RMSE over 30 epochs, which end at {said}. AdaGrad's minus Row-AdaGrad's is "
        f"{evidence.advantage(DEFAULT, 'row', 'entry')}.",
        f"Default setting. {BAND} Learning rates were chosen by cross-validation for the last epoch.",
        Axis("epoch"),
        NEAR,
        (_curve_panel(evidence, DEFAULT),),
    )


def _training(evidence: Evidence) -> Figure:
    ends = {geometry: evidence.mean(DEFAULT, geometry, lambda model: model.trained) for geometry in GEOMETRIES}
    said = ", ".join(f"{end:.4f} ({NAMES[geometry]})" for geometry, end in ends.items())
    epochs = list(evidence.models(DEFAULT, "row")[0][0].train)
    lines = [
        _line(NAMES[geometry], epochs, _columns(evidence, DEFAULT, geometry, lambda model: list(model.train.values())))
        for geometry in GEOMETRIES
    ]
    return Figure(
        "movielens-training",
        "RMSE on the training ratings, at the same learning rates",
        f"Three falling curves of training RMSE, which end at {said}.",
        f"Default setting. {BAND} A larger learning rate trains to a lower error, and overfits.",
        Axis("epoch"),
        Axis("training RMSE", floor=0.7, ceiling=1.3),
        (Panel(title(DEFAULT), tuple(lines)),),
    )


def _learning_rates(evidence: Evidence) -> Figure:
    widths = {geometry: tables.width(evidence, geometry) for geometry in GEOMETRIES}
    said = ", ".join(f"{NAMES[geometry]} {high / low:.1f}" for geometry, (low, high) in widths.items())
    return Figure(
        "movielens-lr",
        "Held-out RMSE after 30 epochs, by learning rate",
        "Three valleys of RMSE over the learning rate. The range of learning rates within 1 % of the best RMSE spans "
        f"these factors: {said}.",
        "Default setting: the models of cross-validation, which were trained on three folds of five. The line is the "
        "mean over folds. The band spans the lowest to the highest fold. Column-AdaGrad sums over all rows, so it "
        "needs a larger rate.",
        Axis("learning rate", log=True),
        Axis("held-out RMSE", floor=0.92, ceiling=1.06),
        (_rate_panel(evidence, DEFAULT),),
    )


def _alternatives(evidence: Evidence) -> Iterator[Figure]:
    settings = [setting for setting in evidence.size.settings if setting != DEFAULT]
    if not settings:
        return
    text = "Three curves for each setting that the paper leaves open. The table below lists their final values."
    yield Figure(
        "movielens-alternatives",
        "The same in the other settings",
        text,
        f"{BAND} Learning rates were tuned separately in each setting.",
        Axis("epoch"),
        FAR,
        tuple(_curve_panel(evidence, setting) for setting in settings),
        "setting",
    )
    yield Figure(
        "movielens-lr-alternatives",
        "Learning rates in the other settings",
        text,
        "The models of cross-validation: mean over folds, and the lowest to the highest.",
        Axis("learning rate", log=True),
        FAR,
        tuple(_rate_panel(evidence, setting) for setting in settings),
        "setting",
    )


def _curve_panel(evidence: Evidence, setting: str) -> Panel:
    lines = []
    for geometry in GEOMETRIES:
        columns = _columns(evidence, setting, geometry, lambda model: model.test)
        lines.append(_line(NAMES[geometry], range(1, len(columns) + 1), columns))
    if setting != DEFAULT:  # in the default setting it is far above the curves
        lines.append(Line(MEAN, (1.0, float(len(columns))), (evidence.constant(setting),) * 2, reference=True))
    return Panel(title(setting), tuple(lines))


def _columns(
    evidence: Evidence, setting: str, geometry: str, curve: Callable[[Factorised], Sequence[float]]
) -> list[tuple[float, ...]]:
    """The values of all folds and starts, for each point of a curve."""
    return list(zip(*(curve(model) for fold in evidence.models(setting, geometry) for model in fold), strict=True))


def _rate_panel(evidence: Evidence, setting: str) -> Panel:
    lines = []
    for geometry in GEOMETRIES:
        errors = evidence.errors(setting, geometry)
        columns = [[errors.test(lr, fold) for fold in errors.folds] for lr in errors.lrs]
        lines.append(_line(NAMES[geometry], errors.lrs, columns))
    return Panel(title(setting), tuple(lines))


def _line(name: str, x: Sequence[float] | range, columns: Sequence[Sequence[float]]) -> Line:
    """A line through the means, in a band from the lowest to the highest."""
    return Line(
        name,
        tuple(x),
        tuple(finite(statistics.fmean(column)) for column in columns),
        tuple(finite(min(column)) for column in columns),
        tuple(finite(max(column)) for column in columns),
    )
