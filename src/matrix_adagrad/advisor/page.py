"""The advice as a page: the plan, the race and what the probe saw, in one HTML file that needs nothing else."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

import torch

from matrix_adagrad.advisor.advise import Advice
from matrix_adagrad.advisor.candidates import FAMILIES
from matrix_adagrad.advisor.portrait import FIGURES as SPREAD
from matrix_adagrad.advisor.portrait import GEOMETRIES, Portrait, Spread
from matrix_adagrad.advisor.report import Report
from matrix_adagrad.advisor.result import FIGURES, Outcome, Result, size
from matrix_adagrad.report import page
from matrix_adagrad.report.document import Axis, Document, Figure, Grid, HeatMap, Line, Panel, Plate, Section, Table
from matrix_adagrad.text import shape_text
from matrix_adagrad.version import __version__

__all__ = ["document", "render"]

POINTS = 100  # of a curve
SHOWN = 60  # parameters with heat maps, those with the most energy


def render(advice: Advice) -> str:
    """The text of the page."""
    return page.render(document(advice))


def document(advice: Advice) -> Document:
    """What the page says."""
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
    optimizer = FAMILIES[plan.family].optimizer.__name__
    rows = []
    for one in plan.choices:
        scales, entries = one.value.scales(one.shape), math.prod(one.shape)
        rows.append((one.name, shape_text(one.shape), one.geometry, f"{scales:,}", f"{entries:,}", one.reason))
    entries = sum(math.prod(one.shape) for one in plan.choices)
    return Section(
        "plan",
        "The plan",
        (
            f"`{optimizer}(plan.groups(model), lr=plan.lr)` uses it, with the plan that was saved next to this page.",
            f"It keeps {plan.scales:,} scales for {entries:,} parameters ({plan.scales / max(1, entries):.2%}). The "
            "race decided: of all candidates that are level with the best, the plan is that of the one with the least "
            "state. What the probe saw of each parameter stands beside it.",
        ),
        (
            Table(
                "choices",
                "A geometry for each parameter",
                "Entries that share a scale: those of a row, of a column, all of them, or none. “Agree” is explained "
                "with the probe's numbers below.",
                ("parameter", "shape", "geometry", "scales", "entries", "why"),
                tuple(rows),
            ),
        ),
    )


def _race(race: Result) -> Section:
    seeds = len(race.best.outcome.runs)
    return Section(
        "race",
        "The race",
        (
            f"Every candidate chose its learning rate by successive halving over {_counts(race)} rates, on seeds of "
            f"their own, and then trained for {race.steps} steps on {seeds} other seeds. All of them had the same "
            "starts and the same batches, so that losses are compared seed by seed.",
            "“No difference” means that the 95 % interval of the paired difference has 0 in it, and that its mean is "
            "at most 2 % of the best loss; “undecided”, that the mean is larger, and more seeds are needed. “Within 1 "
            "%” is a difference that was seen and that is smaller than a hundredth of the best loss.",
        ),
        (_standings(race), _curves(race), _rates(race), _states(race)),
    )


def _counts(race: Result) -> str:
    counts = sorted({len(one.candidate.lrs) for one in race.outcomes})
    return " or ".join(map(str, counts))


def _standings(race: Result) -> Table:
    marks = {race.present: " (now)", race.chosen.name: " ← the plan"}
    rows = [(one.name + marks.get(one.name, ""), *one.figures) for one in race.standings]
    return Table(
        "standings",
        "How the candidates stand",
        "Losses are means over seeds; behind: the paired difference to the best, with its 95 % interval. Good rates "
        "reach three quarters of what the best rate gains in an eighth of the steps, or lie between those and the "
        "chosen one. Milliseconds are medians of steps of all candidates in turn, on this machine, for a whole step "
        "and for the optimizer's part of it; state is the optimizer's memory.",
        ("candidate", *FIGURES),
        tuple(rows),
    )


def _curves(race: Result) -> Figure:
    lines = [_curve(one) for one in race.outcomes if math.isfinite(one.score)]
    return Figure(
        "race-curves",
        "The loss on the way",
        f"{race.best.name} ends lowest, at {race.best.outcome.score:.4g}; the plan is {race.chosen.name}, at "
        f"{race.chosen.outcome.score:.4g}.",
        "The loss of each batch before its step, averaged over hundredths of the run and over seeds; the bands go from "
        "the lowest seed to the highest.",
        Axis("step"),
        Axis("loss of the batch", log=all(value > 0 for line in lines for value in line.y if value is not None)),
        (Panel("", tuple(lines)),),
    )


def _curve(one: Outcome) -> Line:
    curves = [_thinned(run.losses) for run in one.runs]
    steps = _thinned(range(1, 1 + len(one.runs[0].losses)))
    means = [statistics.fmean(values) for values in zip(*curves, strict=True)]
    low, high = ([pick(values) for values in zip(*curves, strict=True)] for pick in (min, max))
    return Line(one.name, tuple(steps), tuple(means), tuple(low), tuple(high))


def _thinned(values: Sequence[float]) -> list[float]:
    width = max(1, math.ceil(len(values) / POINTS))
    return [statistics.fmean(values[i : i + width]) for i in range(0, len(values), width)]


def _rates(race: Result) -> Figure:
    lines = []
    for one in race.outcomes:
        kept = [(lr, score if score <= 2 * abs(one.start) else None) for lr, score in sorted(one.rungs[0].items())]
        lines.append(Line(one.name, tuple(lr for lr, _ in kept), tuple(score for _, score in kept)))
    return Figure(
        "race-rates",
        "The loss after an eighth of the steps, by learning rate",
        "How wide the range of learning rates is in which a candidate makes good progress.",
        "One run for each rate, on the seed that chooses rates. Runs that ended above twice the loss of the start are "
        "left out.",
        Axis("learning rate", log=True),
        Axis("loss"),
        (Panel("", tuple(lines)),),
    )


def _states(race: Result) -> Figure:
    finite = [one for one in race.standings if math.isfinite(one.outcome.score)]
    return Figure(
        "race-state",
        "The loss and the memory of the optimizer's state",
        f"{race.chosen.name} takes {size(race.chosen.state_bytes)}; the largest state is "
        f"{size(max(one.state_bytes for one in finite))}.",
        "One point for each candidate; low and to the left is good.",
        Axis("bytes of state", log=all(one.state_bytes for one in finite)),
        Axis("loss"),
        (Panel("", tuple(Line(one.name, (one.state_bytes,), (one.outcome.score,)) for one in finite)),),
    )


def _probe(report: Report) -> Section:
    portraits = report.portraits
    matrices = [one for one in portraits if one.is_matrix]
    shown = sorted(matrices, key=lambda one: -one.gradients["whole"])[:SHOWN]
    parts: list[Table | HeatMap] = [_numbers(portraits), _course(portraits), _bounds(portraits)]
    if shown:
        parts.insert(1, _heat([one for one in matrices if one in shown], len(matrices)))
    return Section(
        "probe",
        "What the probe saw",
        (
            f"The probe looked on at the best run with one scale for each entry ({report.looks}). The energy of an "
            "entry is the sum of its squared gradients: AdaGrad divides by the root of it.",
        ),
        tuple(parts),
    )


def _numbers(portraits: Sequence[Portrait]) -> Table:
    return Table(
        "numbers",
        "How gradients are spread",
        "Used: the share of rows, columns and entries among which energy is effectively spread. Agree: how alike the "
        "scales of the entries of a row, of a column and of all are; 1 if one scale is as good as one for each.",
        ("parameter", *SPREAD),
        tuple((one.name, *one.figures) for one in portraits),
    )


def _course(portraits: Sequence[Portrait]) -> Table:
    rows: list[tuple[str | int, ...]] = []
    for one in portraits:
        shares = (one.rows.silent, one.columns.silent)
        drifts = (one.rows.drift, one.columns.drift)
        counts = (one.dead, one.exploding, one.broken)
        rows.append(
            (one.name, *(f"{x:.0%}" for x in shares), *(f"{x:.2f}" for x in drifts), f"{one.update:.1e}", *counts)
        )
    return Table(
        "course",
        "How the run went",
        "Silent: rows and columns without a gradient, on average over steps. Drift: 0 if the late part of the run "
        "spreads its energy as the early part did, 1 if elsewhere. Update: its size over the size of the weights. Dead "
        "rows never had a gradient; exploding ones had late in the run over 100 times the energy a step that they had "
        "early; broken steps had gradients that were not finite.",
        (
            *("parameter", "silent rows", "silent columns", "drift of rows", "of columns", "update"),
            *("dead", "exploding", "broken"),
        ),
        tuple(rows),
    )


def _bounds(portraits: Sequence[Portrait]) -> Table:
    rows = [
        (one.name, geometry, one.gradients[geometry], one.reach[geometry], one.bound[geometry])
        for one in portraits
        if one.is_matrix
        for geometry in GEOMETRIES
    ]
    return Table(
        "bounds",
        "The terms of the paper's bound",
        "Gradients: the sum over blocks of the root of their energy. Reach: the largest norm of a block of the weights "
        "at the end, in the place of the distance to the best weights, which nobody knows. Their product is, up to √2, "
        "the bound on the regret; the geometry with the smallest promises most. Promises are not results: the race has "
        "those.",
        ("parameter", "geometry", "gradients", "reach", "product"),
        tuple(rows),
    )


def _heat(shown: Sequence[Portrait], of: int) -> HeatMap:
    return HeatMap(
        "energy",
        "Where the energy of gradients is, and when",
        "Rows of even colour share their energy evenly over the run; streaks are rows or columns with more of it.",
        "The mean energy a step of a row (left) and of a column (right) over the run; neighbours are taken together "
        "where "
        "there are more than 48." + f" The {len(shown)} parameters with the most energy, of {of}." * (len(shown) < of),
        "energy a step",
        tuple(Plate(one.name, (_grid(one, one.rows, 0), _grid(one, one.columns, 1))) for one in shown),
        selector="parameter",
    )


def _grid(one: Portrait, spread: Spread, dim: int) -> Grid:
    """Bins downwards, windows of the run to the right."""
    name, count = ("row", one.shape[0]) if dim == 0 else ("column", math.prod(one.shape[1:]))
    windows, together = len(spread.history), 1
    while math.ceil(one.observed / together) > windows:
        together *= 2
    ends = [min(one.observed, together * (i + 1)) * one.steps / max(1, one.observed) for i in range(windows)]
    middles = [(a + b) / 2 for a, b in itertools.pairwise([0.0, *ends])]
    bins = len(spread.history[0]) if windows else 0
    width = math.ceil(count / max(1, bins))
    members = [min(width, count - i * width) for i in range(bins)]
    energies = zip(zip(*spread.history, strict=True), members, strict=True)
    values = tuple(tuple(energy / own for energy in over_time) for over_time, own in energies)
    ys = tuple(i * width + (own - 1) / 2 for i, own in enumerate(members))
    return Grid(f"{name}s", Axis("step"), Axis(name), tuple(middles), ys, values)
