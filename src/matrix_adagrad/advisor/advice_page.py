"""The advice as a web page: the plan, the race and the probe's measurements, in one self-contained HTML file."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

import torch

from matrix_adagrad.advisor.advise import Advice
from matrix_adagrad.advisor.probe_report import ProbeReport
from matrix_adagrad.advisor.race_result import HEADINGS, Outcome, RaceResult
from matrix_adagrad.advisor.summary import GEOMETRIES, ParameterSummary, Spread
from matrix_adagrad.advisor.summary import HEADINGS as SPREAD_HEADINGS
from matrix_adagrad.pages import html_page
from matrix_adagrad.pages.document import Axis, Document, Figure, Grid, HeatMap, Line, Panel, Plate, Section, Table
from matrix_adagrad.text import shape_text, size
from matrix_adagrad.version import __version__

__all__ = ["document", "render"]

POINTS = 100  # of a curve
SHOWN = 60  # parameters with heat maps: those with the largest squared gradients


def render(advice: Advice) -> str:
    """The HTML of the page."""
    return html_page.render(document(advice))


def document(advice: Advice) -> Document:
    """The content of the page."""
    return Document(
        f"Which geometry pays: {advice.task}",
        advice.plan.verdict,
        (("matrix-adagrad", __version__), ("torch", torch.__version__), ("steps of a run", str(advice.race.steps))),
        quick=False,
        leading=("race-curves", "race-rates", "race-state"),
        sections=(_plan(advice), _race(advice.race), _probe(advice.probe)),
        files=False,
    )


def _plan(advice: Advice) -> Section:
    plan = advice.plan
    rows = []
    for choice in plan.choices:
        counts = f"{choice.scales:,}", f"{math.prod(choice.shape):,}"
        rows.append((choice.name, shape_text(choice.shape), choice.geometry, *counts, choice.reason))
    entries = sum(math.prod(choice.shape) for choice in plan.choices)
    return Section(
        "plan",
        "The plan",
        (
            "`plan.optimizer(model)` uses it; the plan is saved next to this page.",
            f"It keeps {plan.scales:,} scales for {entries:,} weights ({plan.scales / max(1, entries):.2%}). The race "
            "decides: of the candidates that are level with the best, the plan takes the one with the least state. The "
            "reasons come from the probe.",
        ),
        (
            Table(
                "choices",
                "A geometry for each parameter",
                "The geometry says which entries share a scale: those of a row, of a column, all of them, or none. In "
                "“factored”, each entry has one from its row and its column; “spectral” has none. "
                "“Agree” is explained with the probe's numbers below.",
                ("parameter", "shape", "geometry", "scales", "entries", "why"),
                tuple(rows),
            ),
        ),
    )


def _race(race: RaceResult) -> Section:
    seeds = len(race.best.outcome.runs)
    return Section(
        "race",
        "The race",
        (
            f"Every candidate was tuned by successive halving over {_counts(race)} learning rates, on seeds used for "
            f"nothing else, and then trained for {race.steps} steps on {seeds} further seeds. All had the same "
            "initializations and batches, so losses are compared seed by seed.",
            "“No difference”: the 95 % interval of the paired difference contains 0, and its mean is at most 2 % of "
            "the best loss. “Undecided”: the interval contains 0, but the mean is larger, so more seeds are needed. "
            "“Within 1 %”: the difference is significant, but less than 1 % of the best loss.",
        ),
        (_standings(race), _curves(race), _rates(race), _states(race)),
    )


def _counts(race: RaceResult) -> str:
    counts = sorted({len(outcome.candidate.lrs) for outcome in race.outcomes})
    return " or ".join(map(str, counts))


def _standings(race: RaceResult) -> Table:
    marks = {race.baseline: " (now)", race.chosen.name: " ← the plan"}
    rows = [(standing.name + marks.get(standing.name, ""), *standing.table_row) for standing in race.standings]
    return Table(
        "standings",
        "All candidates, the best first",
        "Losses are means over seeds. Behind the best by: the paired difference, with its 95 % interval. Good rates: "
        "the learning rates that reach three quarters of the best rate's gain in an eighth of the steps, extended to "
        "the chosen one. Milliseconds: medians over interleaved steps on this machine, for the whole step and for the "
        "optimizer alone. State: the optimizer's memory.",
        ("candidate", *HEADINGS),
        tuple(rows),
    )


def _curves(race: RaceResult) -> Figure:
    lines = [_curve(outcome) for outcome in race.outcomes if math.isfinite(outcome.score)]
    return Figure(
        "race-curves",
        "The loss during training",
        f"{race.best.name} ends lowest, at {race.best.outcome.score:.4g}; the plan's {race.chosen.name} ends at "
        f"{race.chosen.outcome.score:.4g}.",
        "The loss of each batch before its step, averaged over hundredths of the run and over seeds. Bands span the "
        "seeds.",
        Axis("step"),
        Axis("loss of the batch", log=all(value > 0 for line in lines for value in line.y if value is not None)),
        (Panel("", tuple(lines)),),
    )


def _curve(outcome: Outcome) -> Line:
    curves = [_thinned(run.losses) for run in outcome.runs]
    steps = _thinned(range(1, 1 + len(outcome.runs[0].losses)))
    means = [statistics.fmean(values) for values in zip(*curves, strict=True)]
    low, high = ([pick(values) for values in zip(*curves, strict=True)] for pick in (min, max))
    return Line(outcome.name, tuple(steps), tuple(means), tuple(low), tuple(high))


def _thinned(values: Sequence[float]) -> list[float]:
    width = max(1, math.ceil(len(values) / POINTS))
    return [statistics.fmean(values[i : i + width]) for i in range(0, len(values), width)]


def _rates(race: RaceResult) -> Figure:
    lines = []
    for outcome in race.outcomes:
        kept = [
            (lr, score if score <= 2 * abs(outcome.initial_score) else None)
            for lr, score in sorted(outcome.rungs[0].items())
        ]
        lines.append(Line(outcome.name, tuple(lr for lr, _ in kept), tuple(score for _, score in kept)))
    return Figure(
        "race-rates",
        "The loss after an eighth of the steps, by learning rate",
        "The wider the valley, the less a candidate depends on its learning rate.",
        "One run per learning rate, on a tuning seed. Runs that ended above twice the initial loss are left out.",
        Axis("learning rate", log=True),
        Axis("loss"),
        (Panel("", tuple(lines)),),
    )


def _states(race: RaceResult) -> Figure:
    finite = [standing for standing in race.standings if math.isfinite(standing.outcome.score)]
    lines = [Line(standing.name, (standing.state_bytes,), (standing.outcome.score,)) for standing in finite]
    return Figure(
        "race-state",
        "The loss and the memory of the optimizer's state",
        f"{race.chosen.name} takes {size(race.chosen.state_bytes)}; the largest state takes "
        f"{size(max(standing.state_bytes for standing in finite))}.",
        "One point per candidate; low and to the left is better.",
        Axis("bytes of state", log=all(standing.state_bytes for standing in finite)),
        Axis("loss"),
        (Panel("", tuple(lines)),),
    )


def _probe(report: ProbeReport) -> Section:
    parameters = report.parameters
    matrices = [parameter for parameter in parameters if parameter.is_matrix]
    shown = sorted(matrices, key=lambda parameter: -parameter.gradient_norm["whole"])[:SHOWN]
    parts: list[Table | HeatMap] = [_numbers(parameters), _course(parameters), _bounds(parameters)]
    if shown:
        parts.insert(1, _heat([parameter for parameter in matrices if parameter in shown], len(matrices)))
    return Section(
        "probe",
        "What the probe measured",
        (
            f"The probe observed the best run with one scale per entry ({report.coverage}). It sums the squared "
            "gradients of every row and every column; AdaGrad divides by the roots of such sums.",
        ),
        tuple(parts),
    )


def _numbers(parameters: Sequence[ParameterSummary]) -> Table:
    return Table(
        "numbers",
        "How squared gradients are spread",
        "Used: the effective share of rows, columns and entries with squared gradients. Agree: how similar the scales "
        "of entries are inside a row, inside a column, and in all; 1 if one scale is as good as one per entry.",
        ("parameter", *SPREAD_HEADINGS),
        tuple((parameter.name, *parameter.table_row) for parameter in parameters),
    )


def _course(parameters: Sequence[ParameterSummary]) -> Table:
    rows: list[tuple[str | int, ...]] = []
    for parameter in parameters:
        shares = (parameter.rows.inactive, parameter.columns.inactive)
        drifts = (parameter.rows.drift, parameter.columns.drift)
        counts = (parameter.dead, parameter.exploding, parameter.nonfinite)
        rows.append(
            (
                parameter.name,
                *(f"{x:.0%}" for x in shares),
                *(f"{x:.2f}" for x in drifts),
                f"{parameter.update_ratio:.1e}",
                *counts,
            )
        )
    return Table(
        "course",
        "How gradients changed over the run",
        "Inactive: the mean share of rows and columns without a gradient at a step. Drift: 0 if squared gradients are "
        "spread late in the run as they were early, 1 if they fall on different rows or columns. Update: its norm "
        "relative to that of the weights. Dead: rows that never had a gradient. Exploding: rows whose mean squared "
        "gradient grew more than 100-fold. Non-finite: steps with infinite or NaN gradients.",
        (
            *("parameter", "inactive rows", "inactive columns", "drift of rows", "of columns", "update"),
            *("dead", "exploding", "non-finite"),
        ),
        tuple(rows),
    )


def _bounds(parameters: Sequence[ParameterSummary]) -> Table:
    rows = [
        (
            parameter.name,
            geometry,
            parameter.gradient_norm[geometry],
            parameter.weight_norm[geometry],
            parameter.bound[geometry],
        )
        for parameter in parameters
        if parameter.is_matrix
        for geometry in GEOMETRIES
    ]
    return Table(
        "bounds",
        "The terms of the paper's bound",
        "Gradient norm: the sum over blocks of the root of their squared gradients. Weight norm: the largest norm of a "
        "block of the weights at the end, as an estimate of the unknown distance to the best weights. Their product is "
        "the bound on the regret, up to √2: the smaller, the better. A bound is not a result; the race measures "
        "results.",
        ("parameter", "geometry", "gradient norm", "weight norm", "product"),
        tuple(rows),
    )


def _heat(shown: Sequence[ParameterSummary], of: int) -> HeatMap:
    return HeatMap(
        "squared-gradients",
        "Squared gradients over rows, columns and time",
        "Even colour is an even spread; streaks are rows or columns with larger gradients than others.",
        "The mean squared gradient per step of a row (left) and of a column (right) over the run. Neighbours are "
        "binned where there are more than 48."
        + f" The {len(shown)} parameters with the largest squared gradients, of {of}."
        * (len(shown) < of),
        "squared gradient per step",
        tuple(
            Plate(parameter.name, (_grid(parameter, parameter.rows, 0), _grid(parameter, parameter.columns, 1)))
            for parameter in shown
        ),
        selector="parameter",
    )


def _grid(parameter: ParameterSummary, spread: Spread, dim: int) -> Grid:
    """Bins downwards, windows of the run to the right."""
    name, count = ("row", parameter.shape[0]) if dim == 0 else ("column", math.prod(parameter.shape[1:]))
    windows, together = len(spread.history), 1
    while math.ceil(parameter.observed / together) > windows:
        together *= 2
    ends = [
        min(parameter.observed, together * (i + 1)) * parameter.steps / max(1, parameter.observed)
        for i in range(windows)
    ]
    middles = [(a + b) / 2 for a, b in itertools.pairwise([0.0, *ends])]
    bins = len(spread.history[0]) if windows else 0
    width = math.ceil(count / max(1, bins))
    members = [min(width, count - i * width) for i in range(bins)]
    squares = zip(zip(*spread.history, strict=True), members, strict=True)
    values = tuple(tuple(square / own for square in over_time) for over_time, own in squares)
    ys = tuple(i * width + (own - 1) / 2 for i, own in enumerate(members))
    return Grid(f"{name}s", Axis("step"), Axis(name), tuple(middles), ys, values)
