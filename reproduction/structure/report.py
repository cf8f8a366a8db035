"""The section on structure: which geometry pays when, correlation within rows, and what a step costs."""

from __future__ import annotations

import statistics

from matrix_adagrad.intervals import Interval
from matrix_adagrad.pages.document import Axis, Figure, Grid, HeatMap, Line, Panel, Plate, Section, Table
from reproduction.structure import cost
from reproduction.structure.evidence import LEVEL, Evidence, Outcome
from reproduction.structure.planted import Structure
from reproduction.structure.sweep import LONGER, PROPORTIONAL, TRAINING
from reproduction.structure.tuned import GEOMETRIES

__all__ = ["section"]

SHORT = {TRAINING: "training", PROPORTIONAL: "training, scaled solution"}


def section(evidence: Evidence) -> Section:
    """All results on structures."""
    size = evidence.size
    return Section(
        "structure",
        "Row, column, or neither: which geometry pays on which structure (§4.3, §5.1, §7)",
        (
            "Structure is planted in the gradients of a matrix, one kind at a time: rows or columns that are active "
            "one at a time, evenly or with Zipf frequencies; sizes that spread over two decades; correlation; shape. "
            "AdaGrad runs in five geometries, from the same start and on the same draws. Each geometry's learning rate "
            f"is tuned in steps of 10^(1/8) on {size.tuning} seeds, on a grid that grows until the best is inside. It "
            f"is judged on {size.seeds} other seeds.",
            f"Training is linear regression with 16 features and 16 outputs, on {size.rounds} batches of 16, with "
            "noise as large as the signal. Rows belong to features. The loss is the expected one, above the "
            "solution's. The solution's entries are alike, or scaled like the gradients. Regret is that of linear "
            f"losses on a domain, over {size.rounds} rounds, with projections in the metric of each step. A task and "
            "its transpose exchange rows and columns exactly, so one of the two was run on the Frobenius ball and on "
            "the box.",
            "Sharing a scale pays where the entries that share it are alike in the size of their gradients and in "
            "their distance from the solution: it is then a better estimate than one entry's own. It costs where they "
            "are not alike. So rows pay where rows differ in size or frequency. That only one is active at a time does "
            "not decide it. The domain sets the distances: on one ball for all, one scale for all pays.",
        ),
        (_winners(evidence), _correlation(evidence), _all(evidence), *_checks(evidence), _costs(evidence)),
    )


def _winners(evidence: Evidence) -> HeatMap:
    names = list(dict.fromkeys(name for task in evidence.tasks for name in evidence.structures(task)))
    values: list[tuple[float | None, ...]] = []
    labels = []
    for name in names:
        found = [evidence.outcome(t, name) if name in evidence.structures(t) else None for t in evidence.tasks]
        values.append(tuple(None if outcome is None else outcome.worst for outcome in found))
        labels.append(tuple("" if outcome is None else _words(outcome) for outcome in found))
    grid = Grid(
        "",
        Axis("task", names=tuple(SHORT.get(task, task) for task in evidence.tasks)),
        Axis("structure", names=tuple(names)),
        tuple(map(float, range(len(evidence.tasks)))),
        tuple(map(float, range(len(names)))),
        tuple(values),
        tuple(labels),
    )
    said = [f"{name}: {' '.join(row).replace(chr(10), ', ')}" for name, row in zip(names, labels, strict=True)]
    return HeatMap(
        "structure-winners",
        "Which geometry pays. Brighter: the wrong one costs more",
        "For each structure and task, the geometries that none beats. In the order of the tasks. " + "; ".join(said),
        f"Words: the geometries that no other beats by {LEVEL:.0%} and beyond noise (95 % intervals, paired over "
        "seeds). Colour: loss or regret of the worst of the five, over the best's. Grey was not tried.",
        "worst geometry / best geometry",
        (Plate("", (grid,)),),
    )


def _words(outcome: Outcome) -> str:
    unbeaten = outcome.unbeaten
    if len(unbeaten) == len(GEOMETRIES):
        return "any"
    if len(unbeaten) == len(GEOMETRIES) - 1:
        return f"any but\n{next(name for name in GEOMETRIES if name not in unbeaten)}"
    return "\n".join(unbeaten)


def _correlation(evidence: Evidence) -> Figure:
    panels = []
    for task in (task for task in evidence.tasks if task != PROPORTIONAL):
        found = [(share, evidence.outcome(task, Structure(within_rows=share))) for share in evidence.size.correlations]
        lines = []
        for name in ("row", "column", "entry", "factored"):
            shares, outcomes = zip(*found, strict=True)
            excesses = [outcome.excess(name, "whole") for outcome in outcomes]
            middle, low, high = ([1 + end for end in ends] for ends in zip(*map(_ends, excesses), strict=True))
            lines.append(Line(name, shares, tuple(middle), tuple(low), tuple(high)))
        reference = Line("one scale for the whole", (shares[0], shares[-1]), (1.0, 1.0), reference=True)
        panels.append(Panel(f"{'loss' if task == TRAINING else 'regret'}, {task}", (*lines, reference)))
    first, last = (evidence.outcome(TRAINING, Structure(within_rows=s)) for s in (shares[0], shares[-1]))
    return Figure(
        "structure-correlation",
        "Correlation within rows makes entries as good as rows, not rows better",
        "Loss or regret over that of one scale for the whole matrix, by the correlation within rows. In training, "
        f"entries have {first.excess('entry', 'row').mean:+.0%} more loss than rows at correlation {shares[0]:g}, and "
        f"{last.excess('entry', 'row').mean:+.0%} at {shares[-1]:g}.",
        "Bands are 95 % intervals, paired over seeds. At correlation 1, all entries of a row have the same gradient, "
        "and rows and entries take the same steps at rates that differ by √n.",
        Axis("correlation of two entries in a row"),
        Axis("relative to one scale for the whole"),
        tuple(panels),
        "task",
    )


def _ends(found: Interval) -> tuple[float, float, float]:
    return found.mean, found.low, found.high


def _shown(outcome: Outcome, geometry: str) -> str:
    if geometry == outcome.best:
        return "best"
    found = outcome.excess(geometry, outcome.best)
    return f"{found.mean:+.1%} [{found.low:+.1%}, {found.high:+.1%}]"


def _all(evidence: Evidence) -> Table:
    rows: list[tuple[str | float, ...]] = []
    for task in evidence.tasks:
        for name in evidence.structures(task):
            outcome = evidence.outcome(task, name)
            unit = statistics.fmean(outcome.scores[outcome.best])
            shown = [_shown(outcome, each) for each in GEOMETRIES]
            rows.append((SHORT.get(task, task), name, unit, *shown))
    return Table(
        "structure-all",
        "Every structure in every task",
        "The best geometry's loss, relative to the start's, or regret; and how much more the others have, with 95 % "
        "intervals, paired over seeds. Losses are compared by their geometric mean over seeds.",
        ("task", "structure", "best", *GEOMETRIES),
        tuple(rows),
    )


def _checks(evidence: Evidence) -> list[Table]:
    rows = []
    for task, change, outcome in evidence.checks():
        before = evidence.outcome(task, LONGER).unbeaten
        rows.append((SHORT.get(task, task), change, ", ".join(before), ", ".join(outcome.unbeaten), *_both(outcome)))
    table = Table(
        "structure-checks",
        f"Does the order last? {LONGER}, with one thing changed",
        "The geometries that none beats before the change and after it, and how much more loss or regret than rows "
        "columns and entries have after it.",
        ("task", "change", "unbeaten before", "unbeaten after", "column over row", "entry over row"),
        tuple(rows),
    )
    return [table] if rows else []


def _both(outcome: Outcome) -> tuple[str, str]:
    column, entry = (outcome.excess(name, "row") for name in ("column", "entry"))
    return str(column), str(entry)


def _costs(evidence: Evidence) -> Table:
    rows = []
    for result in evidence.costs():
        times = result.seconds or (None,) * len(result.state)
        columns = (cost.GEOMETRIES, result.state, result.products, result.roots, times)
        for name, state, products, roots, seconds in zip(*columns, strict=True):
            ratio = None if seconds is None or times[0] is None else f"{seconds / times[0]:.1f}"
            shape = f"{result.config.m} × {result.config.n}"
            rows.append((shape, name, f"{state:,}", f"{products:,}", roots, ratio))
    return Table(
        "structure-cost",
        "What a step costs, next to one-sided Shampoo",
        "Bytes of state in float32; multiplications in matrix products and matrix roots of one step, as counted; and "
        "its time over that of rows, medians of steps taken in turn. Times differ from run to run, and decide nothing.",
        ("shape", "geometry", "bytes", "multiplications in products", "roots", "time / row's"),
        tuple(rows),
    )
