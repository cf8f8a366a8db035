"""The advice as a web page: the plan, the race and the probe's measurements, in one self-contained HTML file."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import torch

from matrix_adagrad.advisor.advise import Advice
from matrix_adagrad.advisor.plan import Plan
from matrix_adagrad.advisor.probe_page import probe_section
from matrix_adagrad.advisor.race_result import RaceResult
from matrix_adagrad.advisor.standings import HEADINGS, Outcome
from matrix_adagrad.pages import html_page
from matrix_adagrad.pages.document import Axis, Document, Figure, Line, Panel, Section, Table
from matrix_adagrad.text import shape_text, size
from matrix_adagrad.version import __version__

__all__ = ["document", "render"]

POINTS = 100  # of a curve


def render(advice: Advice) -> str:
    """The HTML of the page."""
    return html_page.render(document(advice))


def document(advice: Advice) -> Document:
    """The content of the page."""
    return Document(
        f"Which geometry pays: {advice.task}",
        advice.verdict,
        (
            ("matrix-adagrad", __version__),
            ("torch", torch.__version__),
            ("steps of a run", str(advice.race.steps)),
            ("loss at the start", f"{advice.race.start:.4g}"),
        ),
        quick=False,
        leading=("race-curves", "race-rates", "race-state"),
        sections=(*([_plan(advice.plan)] if advice.plan else []), _race(advice.race), probe_section(advice.probe)),
        files=False,
    )


def _plan(plan: Plan) -> Section:
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
    seeds, steps = len(race.best.outcome.runs), race.steps
    return Section(
        "race",
        "The race",
        (
            f"Every candidate tried {_counts(race)} learning rates for {steps // 8} steps, and the best for "
            f"{steps // 4}. Those not far behind were tuned again with {steps // 2} and with {steps} steps, on seeds "
            f"used for nothing else, and then trained for {steps} steps on {seeds} further seeds. All had the same "
            "initializations and batches, so losses are compared seed by seed.",
            f"At the start, before any step, the loss is {race.start:.4g}; {race.best.name} ends "
            f"{race.gain(race.best.outcome)} below it. “No difference”: the 95 % interval of the paired difference "
            f"lies within ±{race.margin:.2g}: 2 % of the best loss, and at most a tenth of what was learned. "
            "“Undecided”: it is wider, and contains 0, so more seeds are needed. “Dropped”: too far behind before full "
            "length; the loss is that of so many steps.",
        ),
        (_standings(race), _curves(race), _rates(race), _states(race)),
    )


def _counts(race: RaceResult) -> str:
    counts = sorted({len(outcome.candidate.lrs) for outcome in race.outcomes})
    return " or ".join(map(str, counts))


def _standings(race: RaceResult) -> Table:
    marks = {race.baseline: " (now)"} | ({race.chosen.name: " ← the plan"} if race.chosen else {})
    rows = [(standing.name + marks.get(standing.name, ""), *standing.table_row) for standing in race.standings]
    rows.append(("the start", f"{race.start:.4g}", *[""] * (len(HEADINGS) - 1)))
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
    trained = [standing.outcome for standing in race.finalists if math.isfinite(standing.outcome.score)]
    lines = [_curve(outcome) for outcome in trained]
    ours = f"; the plan's {race.chosen.name} ends at {race.chosen.outcome.score:.4g}" if race.chosen else ""
    return Figure(
        "race-curves",
        "The loss during training",
        f"{race.best.name} ends lowest, at {race.best.outcome.score:.4g}{ours}.",
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
            (lr, score if score <= 2 * abs(race.start) else None)
            for lr, score in sorted(outcome.rungs[min(outcome.rungs)].items())
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
    finite = [standing for standing in race.finalists if math.isfinite(standing.outcome.score)]
    shown = race.chosen or race.best
    lines = [Line(standing.name, (standing.state_bytes,), (standing.outcome.score,)) for standing in finite]
    return Figure(
        "race-state",
        "The loss and the memory of the optimizer's state",
        f"{shown.name} takes {size(shown.state_bytes)}; the largest state takes "
        f"{size(max(standing.state_bytes for standing in finite))}.",
        "One point per candidate; low and to the left is better.",
        Axis("bytes of state", log=all(standing.state_bytes for standing in finite)),
        Axis("loss"),
        (Panel("", tuple(lines)),),
    )
