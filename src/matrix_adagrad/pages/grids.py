"""Where the cells of a grid end and the range of its colours: shared by the pictures and the page."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from matrix_adagrad.pages.document import Axis, Grid, Plate
from matrix_adagrad.pages.tables import finite

__all__ = ["drawable", "edges", "is_log", "limits"]


def is_log(axis: Axis, places: Sequence[float]) -> bool:
    """Whether the axis is logarithmic, and can be."""
    return axis.log and min(places) > 0


def edges(axis: Axis, places: Sequence[float]) -> list[float]:
    """The cell edges, one more than there are positions: halfway between two positions, on the axis's scale."""
    log = is_log(axis, places)
    at = [math.log10(place) if log else place for place in places]
    middles = [(before + after) / 2 for before, after in itertools.pairwise(at)]
    ends = [2 * at[0] - middles[0], *middles, 2 * at[-1] - middles[-1]] if middles else [at[0] - 0.5, at[0] + 0.5]
    return [10**end if log else end for end in ends]


def drawable(grid: Grid, log: bool) -> list[list[float | None]]:
    """The values, with ``None`` for those that the colour scale cannot show."""
    return [[_drawable(value, log) for value in row] for row in grid.values]


def limits(plate: Plate, log: bool) -> tuple[float, float]:
    """The lowest and highest value of all grids, with some margin if there is only one value."""
    values = [v for grid in plate.grids for row in drawable(grid, log) for v in row if v is not None] or [1.0]
    low, high = min(values), max(values)
    if low < high:
        return low, high
    return (low / 2, high * 2) if log else (low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2)


def _drawable(value: float | None, log: bool) -> float | None:
    kept = finite(value)
    return None if kept is None or (log and kept <= 0) else kept
