"""The probe's measurements as a section of the advice's page: tables, and heat maps over the run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from matrix_adagrad.advisor.probe_report import ProbeReport
from matrix_adagrad.advisor.summary import GEOMETRIES, HEADINGS, ParameterSummary, Spread
from matrix_adagrad.pages.document import Axis, Grid, HeatMap, Plate, Section, Table

__all__ = ["probe_section"]

SHOWN = 60  # parameters with heat maps: those with the largest squared gradients


def probe_section(report: ProbeReport) -> Section:
    """What the probe measured."""
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
        ("parameter", *HEADINGS),
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
