"""Figures and heat maps as pictures. The same input gives the same bytes, whenever and wherever it is drawn."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure as Canvas
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator

from matrix_adagrad.files import write
from matrix_adagrad.pages import heatmaps, palette
from matrix_adagrad.pages.captions import headline, without_formulas, wrapped
from matrix_adagrad.pages.document import Axis, Document, Figure, HeatMap, Line, Panel, Table
from matrix_adagrad.pages.palette import LIGHT, Style
from matrix_adagrad.pages.tables import panel_title, points

__all__ = ["draw", "draw_all"]

DPI = 130
MARKERS = 8  # at most this many per curve, to identify it without its colour
IN_A_CELL = 9  # the legend goes into an empty cell of the grid
SETTINGS = {
    "svg.hashsalt": "matrix-adagrad",
    "font.size": 10.0,
    "axes.titlesize": 10.0,
    "axes.edgecolor": LIGHT.muted,
    "axes.labelcolor": LIGHT.ink,
    "text.color": LIGHT.ink,
    "xtick.color": LIGHT.muted,
    "ytick.color": LIGHT.muted,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": LIGHT.grid,
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "lines.scale_dashes": False,
}


def draw_all(document: Document, folder: Path) -> list[Path]:
    """Draw every figure and heat map in the document. Each name has the same colour as on the page."""
    styles = palette.styles_of_document(document)
    drawn = [part for part in document.parts if not isinstance(part, Table)]
    return [path for part in drawn for path in draw(part, document.quick, folder, styles)]


def draw(part: Figure | HeatMap, quick: bool, folder: Path, styles: Mapping[str, Style] | None = None) -> list[Path]:
    """Draw all panels of a figure, or the plates of a heat map, as ``<name>.png`` and ``<name>.svg``.

    Args:
        part: what to draw.
        quick: whether to mark it as from a quick run.
        folder: where the files go. It is created if missing.
        styles: the styles of the document. Without them, colours follow the order in this figure.
    """
    png, svg = io.BytesIO(), io.BytesIO()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # ignore the user's matplotlib settings
        matplotlib.rcParams.update(SETTINGS)
        if isinstance(part, HeatMap):
            canvas = heatmaps.canvas(part, quick)
        else:
            canvas = _canvas(part, quick, styles or palette.styles(palette.names(part)))
        canvas.savefig(png, format="png", dpi=DPI, metadata={"Software": None})
        canvas.savefig(svg, format="svg", dpi=DPI, metadata={"Date": None, "Creator": None})
    made = (("png", png), ("svg", svg))
    return [write(folder / f"{part.name}.{ending}", picture.getvalue()) for ending, picture in made]


def _canvas(figure: Figure, quick: bool, styles: Mapping[str, Style]) -> Any:
    count = len(figure.panels)
    columns = count if count <= 3 else 2 if count == 4 else 3
    rows = math.ceil(count / columns)
    width = (6.6, 8.6, 10.2)[columns - 1]
    names = palette.names(figure)
    legend_columns = _legend_columns(names, width)
    title = wrapped(figure.title, width)
    height = rows * (3.4 if columns == 1 else 2.7) + 0.3 * title.count("\n") + 0.7
    inside = rows * columns > count and len(names) <= IN_A_CELL
    if not inside:
        height += 0.25 * math.ceil(len(names) / legend_columns)
    engine = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.06)
    canvas = Canvas(figsize=(width, height), layout=engine, facecolor=LIGHT.paper)
    cells = list(canvas.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat)
    _fill(cells, columns, figure, styles)
    for cell in cells[count:]:
        cell.set_axis_off()
    if quick:
        for cell in cells[:count]:
            _quick_note(cell)
    headline(canvas, title)
    if inside:
        _legend(cells[-1], names, styles, loc="upper left", fontsize=10)
    else:
        _legend(canvas, names, styles, loc="outside lower left", ncols=legend_columns)
    return canvas


def _fill(cells: Sequence[Any], columns: int, figure: Figure, styles: Mapping[str, Style]) -> None:
    count, edge = len(figure.panels), _edge(figure)
    for index, (cell, panel) in enumerate(zip(cells, figure.panels, strict=False)):
        _scale(cell, figure)
        for line in panel.lines:
            _curve(cell, line, figure, edge, styles)
        cell.set_title(without_formulas(panel_title(figure, index)), loc="left", color=LIGHT.muted)
        # Shared axes show numbers only in the last row, which may not reach this column.
        cell.tick_params(labelbottom=index + columns >= count)
        if index + columns >= count:
            cell.set_xlabel(without_formulas(figure.x.label))
        if index % columns == 0:
            cell.set_ylabel(without_formulas(figure.y.label))
    _limits(cells[0], figure)
    for cell, panel in zip(cells, figure.panels, strict=False):
        _name_references(cell, panel, figure)


def _scale(cell: Any, figure: Figure) -> None:
    for axis, which, scale in ((figure.x, cell.xaxis, cell.set_xscale), (figure.y, cell.yaxis, cell.set_yscale)):
        if axis.log:
            scale("log", nonpositive="mask")
            which.set_major_locator(LogLocator(10.0, numticks=7))
            which.set_minor_locator(LogLocator(10.0, subs=tuple(range(2, 10)), numticks=99))
        else:
            which.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))


def _curve(cell: Any, line: Line, figure: Figure, edge: float, styles: Mapping[str, Style]) -> None:
    x, y, low, high = _drawable(line, figure, edge)
    if line.reference:
        cell.plot(x, y, color=LIGHT.muted, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1.5)
        return
    style = styles[line.name]
    band = [math.isfinite(a) and math.isfinite(b) for a, b in zip(low, high, strict=True)]
    if any(band):
        cell.fill_between(x, low, high, where=band, color=style.light, alpha=0.16, linewidth=0)
    every = math.ceil(len(x) / MARKERS) if len(x) > 2 * MARKERS else 1
    cell.plot(x, y, markevery=every, **_look(style))


def _look(style: Style) -> dict[str, Any]:
    dash = (0, style.dash) if style.dash else "solid"
    marks = {"marker": style.symbol, "markersize": 4.5, "markeredgewidth": 0}
    return {"color": style.light, "linewidth": 1.6, "linestyle": dash, **marks}


def _drawable(line: Line, figure: Figure, edge: float) -> tuple[list[float], ...]:
    """The columns x, y, low and high, with NaN for gaps and for values that a logarithmic axis cannot show.

    A band that reaches down to zero goes to the edge instead.
    """
    table = [[_number(value) for value in point] for point in points(line)]
    x, y, low, high = ([row[i] for row in table] for i in range(4))
    if figure.x.log:
        x = _positive(x)
    if figure.y.log:
        y, low, high = _positive(y), [max(value, edge) for value in low], _positive(high)
    return x, y, low, high


def _number(value: float | None) -> float:
    return math.nan if value is None or not math.isfinite(value) else float(value)


def _positive(values: Sequence[float]) -> list[float]:
    return [value if value > 0 else math.nan for value in values]


def _edge(figure: Figure) -> float:
    """The lowest positive value in the figure."""
    values = [v for panel in figure.panels for line in panel.lines for point in points(line) for v in point[1:]]
    return min((v for v in values if v is not None and 0 < v < math.inf), default=1.0)


def _limits(cell: Any, figure: Figure) -> None:
    for axis, limit in ((figure.x, cell.set_xlim), (figure.y, cell.set_ylim)):
        low, high = _usable(axis, axis.floor), _usable(axis, axis.ceiling)
        if low is not None or high is not None:
            limit(low, high)


def _usable(axis: Axis, value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) or (axis.log and value <= 0) else value


def _gap(curves: Sequence[Line], at: int, level: float) -> float:
    """How far the nearest curve is above a level, at its first or last point."""
    return min((_number(curve.y[at]) - level for curve in curves if curve.y), key=abs, default=math.inf)


def _name_references(cell: Any, panel: Panel, figure: Figure) -> None:
    """Put each name at its first or last point, whichever is farther from curves: above the top, below the others."""
    left, right = sorted(cell.get_xlim())
    bottom, top = sorted(cell.get_ylim())
    curves, ends = [line for line in panel.lines if not line.reference], []
    for line in (line for line in panel.lines if line.reference):
        x, y, *_ = _drawable(line, figure, bottom)
        visible = [(b, a) for a, b in zip(x, y, strict=True) if left <= a <= right and bottom <= b <= top]
        if visible:
            gaps = _gap(curves, 0, visible[0][0]), _gap(curves, -1, visible[-1][0])
            start = abs(gaps[0]) > abs(gaps[1])
            is_below = 0 < (gaps[0] if start else gaps[1]) < math.inf
            ends.append((*visible[0 if start else -1], line.name, "left" if start else "right", is_below))
    for rank, (y_end, x_end, name, ha, is_below) in enumerate(sorted(ends, reverse=True)):
        below = rank > 0 if len(ends) > 1 else is_below  # a single name goes where the nearest curve is not
        side = {"va": "top", "xytext": (0, -2)} if below else {"va": "bottom", "xytext": (0, 2)}
        note = cell.annotate(
            without_formulas(name), (x_end, y_end), textcoords="offset points", ha=ha, fontsize=8.5, **side
        )
        note.set(color=LIGHT.muted, in_layout=False)


def _legend_columns(names: Sequence[str], width: float) -> int:
    """As many columns as fit, each as wide as its longest name, with rows of about equal length."""
    for rows in range(1, len(names)):
        columns = [names[i : i + rows] for i in range(0, len(names), rows)]
        if sum(0.75 + 0.085 * max(map(len, column)) for column in columns) <= width:
            return len(columns)
    return 1


def _legend(place: Any, names: Sequence[str], styles: Mapping[str, Style], **where: Any) -> None:
    if names:
        handles = [Line2D([], [], **_look(styles[name])) for name in names]
        place.legend(handles, [without_formulas(name) for name in names], handlelength=2.6, frameon=False, **where)


def _quick_note(cell: Any) -> None:
    """Write a large, pale note behind the curves, where it hides none of them."""
    look = {"fontsize": 22, "fontweight": "bold", "color": LIGHT.alert, "alpha": 0.28, "zorder": 0.5}
    middle = {"ha": "center", "va": "center", "transform": cell.transAxes, "in_layout": False}
    cell.text(0.5, 0.5, "QUICK RUN", rotation=18, **look, **middle)
