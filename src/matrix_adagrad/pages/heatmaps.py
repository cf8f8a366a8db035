"""Heat maps as pictures: one row per plate, with its grids side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure as Canvas
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

from matrix_adagrad.pages import grids
from matrix_adagrad.pages.captions import headline, without_formulas, wrapped
from matrix_adagrad.pages.document import Axis, Grid, HeatMap
from matrix_adagrad.pages.palette import LIGHT
from matrix_adagrad.pages.tables import panel_title

__all__ = ["canvas"]

MOST = 12  # plates in a picture: more would make it a poster
FEW = 8  # up to this many rows or columns are all labelled
WIDTHS = (6.6, 10.2)  # of a picture with one grid in each row, or two
NAMED = 0.4  # the height of a row that has a name


def canvas(heat: HeatMap, quick: bool) -> Any:
    """A canvas with the first plates, and a note if there are more."""
    plates = heat.plates[:MOST]
    columns = max(len(plate.grids) for plate in plates)
    width = WIDTHS[columns - 1]
    title = wrapped(heat.title, width)
    rows = [max(len(grid.y.names) for grid in plate.grids) for plate in plates]
    height = sum(max(2.7, NAMED * named + 0.6) for named in rows) + 0.3 * title.count("\n") + 0.7
    engine = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.06)
    made = Canvas(figsize=(width, height), layout=engine, facecolor=LIGHT.paper)
    for index, cells in enumerate(made.subplots(len(plates), columns, squeeze=False)):
        _plate(cells, heat, index, quick)
    headline(made, title)
    if len(heat.plates) > MOST:
        note = f"The first {MOST} of {len(heat.plates)}; the data file has all."
        made.supxlabel(note, x=0.01, ha="left", fontsize=9, color=LIGHT.muted)
    return made


def _plate(cells: Sequence[Any], heat: HeatMap, index: int, quick: bool) -> None:
    plate = heat.plates[index]
    low, high = grids.limits(plate, heat.log)
    norm = (LogNorm if heat.log else Normalize)(low, high)
    for cell, grid in zip(cells, plate.grids, strict=False):
        colours = _grid(cell, grid, heat.log, norm)
        if quick:
            cell.set_title("QUICK RUN", loc="right", color=LIGHT.alert, fontweight="bold")
    for cell in cells[len(plate.grids) :]:
        cell.set_axis_off()
    name = wrapped(panel_title(heat, index), WIDTHS[len(cells) - 1])
    cells[0].set_title(
        without_formulas("\n".join(filter(None, (name, plate.grids[0].title)))), loc="left", color=LIGHT.ink
    )
    bar = cells[0].figure.colorbar(colours, ax=list(cells), label=without_formulas(heat.scale), pad=0.02)
    bar.outline.set_visible(False)
    if heat.log and high < 100 * low:  # powers of ten are too far apart
        bar.ax.yaxis.set_major_formatter("{x:g}")
        bar.ax.yaxis.set_minor_formatter("{x:g}")


def _grid(cell: Any, grid: Grid, log: bool, norm: Any) -> Any:
    values = [[math.nan if v is None else v for v in row] for row in grids.drawable(grid, log)]
    across, down = grids.edges(grid.x, grid.xs), grids.edges(grid.y, grid.ys)
    cell.grid(visible=False)
    cell.set_facecolor(LIGHT.gap)
    # Thousands of cells as vector shapes would make a large file that opens slowly.
    colours = cell.pcolormesh(across, down, values, norm=norm, cmap="viridis", rasterized=True)
    _ticks(cell.xaxis, cell.set_xscale, grid.x, grid.xs, "\n")
    _ticks(cell.yaxis, cell.set_yscale, grid.y, grid.ys, " ")
    cell.set_xlim(across[0], across[-1])
    cell.set_ylim(down[-1], down[0])
    cell.set_title(without_formulas(grid.title), loc="left", color=LIGHT.ink)
    cell.set_xlabel(without_formulas(grid.x.label))
    cell.set_ylabel(without_formulas(grid.y.label))
    _labels(cell, grid, values, norm)
    return colours


def _labels(cell: Any, grid: Grid, values: Sequence[Sequence[float]], norm: Any) -> None:
    for y, row, words in zip(grid.ys, values, grid.labels, strict=False):
        for x, value, word in zip(grid.xs, row, words, strict=True):
            is_dark = math.isfinite(value) and norm(value) < 0.6
            look = {"fontsize": 8, "color": LIGHT.paper if is_dark else LIGHT.ink}
            cell.text(x, y, without_formulas(word), ha="center", va="center", **look)


def _ticks(which: Any, scale: Any, axis: Axis, places: Sequence[float], space: str) -> None:
    """Names, whose words are separated by ``space``, or numbers."""
    if axis.names:
        which.set_ticks(places, [without_formulas(name).replace(" ", space) for name in axis.names])
    elif grids.is_log(axis, places):
        scale("log")
    elif len(places) <= FEW:
        which.set_ticks(places)
    else:
        which.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
