"""The numbers behind figures and tables: as CSV, and in the few forms shared by the pictures and the page."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from matrix_adagrad.pages.document import Figure, HeatMap, Line, Table

__all__ = ["Field", "Point", "csv_text", "field", "finite", "is_numeric", "panel_title", "points", "titles"]

Field: TypeAlias = str | float | int | None
Point: TypeAlias = tuple[float, float | None, float | None, float | None]


def csv_text(part: Figure | HeatMap | Table) -> str:
    """A table as it is, or a figure or heat map with one row per point.

    Numbers read back as exactly the same values.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    match part:
        case Figure():
            writer.writerow(("panel", "line", "x", "y", "low", "high"))
            writer.writerows(_figure_rows(part))
        case HeatMap():
            writer.writerow(("plate", "grid", "x", "y", "value"))
            writer.writerows(_heat_map_rows(part))
        case Table():
            writer.writerow(part.columns)
            writer.writerows(part.rows)
    return text.getvalue()


def points(line: Line) -> Iterator[Point]:
    """Each ``(x, y, low, high)`` of a curve. Missing values are ``None``."""
    count = len(line.x)
    for x, *rest in zip(line.x, *(_padded(values, count) for values in (line.y, line.low, line.high)), strict=True):
        y, low, high = rest
        yield x, y, low, high


def finite(value: float | None) -> float | None:
    """The value, or ``None`` if it cannot be drawn or written as JSON: NaN and infinities."""
    return value if value is not None and math.isfinite(value) else None


def field(value: Field) -> str:
    """A table field as displayed: four significant digits, a dash for NaN, nothing for ``None``."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case float() if math.isnan(value):
            return "–"
        case float() if math.isinf(value):
            return "∞" if value > 0 else "-∞"
        case float():
            return _readable(value)
        case _:
            return str(value)


def is_numeric(values: Iterable[Field]) -> bool:
    """Whether a column holds only numbers, fractions and empty fields, so that its digits line up."""
    kept = [field(value) for value in values if value not in (None, "")]
    return bool(kept) and all(re.fullmatch(r"[-+]?[\d.,/%e+-]*\d%?|[-+]?∞|–", text) for text in kept)


def titles(part: Figure | HeatMap) -> list[str]:
    """The titles of the panels or plates that a page lets you choose from."""
    return [panel.title for panel in (part.panels if isinstance(part, Figure) else part.plates)]


def panel_title(part: Figure | HeatMap, index: int) -> str:
    """The title of a panel or plate, prefixed with the selector if the title lacks it: "layers: 15"."""
    title, selector = titles(part)[index], part.selector
    if len(titles(part)) == 1 or not selector or selector.casefold() in title.casefold():
        return title
    return f"{selector}: {title}"


def _readable(value: float) -> str:
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.4g}"


def _figure_rows(figure: Figure) -> Iterator[tuple[Field, ...]]:
    for panel in figure.panels:
        for line in panel.lines:
            for point in points(line):
                yield (panel.title, line.name, *point)


def _heat_map_rows(heat: HeatMap) -> Iterator[tuple[Field, ...]]:
    for plate in heat.plates:
        for grid in plate.grids:
            across: Sequence[Field] = grid.x.names or grid.xs
            down: Sequence[Field] = grid.y.names or grid.ys
            for y, row in zip(down, grid.values, strict=True):
                for x, value in zip(across, row, strict=True):
                    yield plate.title, grid.title, x, y, value


def _padded(values: Sequence[float | None], count: int) -> Sequence[float | None]:
    return values or (None,) * count
