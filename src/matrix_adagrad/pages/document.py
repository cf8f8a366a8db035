"""The content of a page: figures, heat maps, tables and prose, independent of how they are drawn."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Axis", "Document", "Figure", "Grid", "HeatMap", "Line", "Panel", "Plate", "Section", "Table"]


@dataclass(frozen=True)
class Axis:
    """A label, and whether the axis starts logarithmic. ``floor`` and ``ceiling`` cut off what would flatten it.

    The positions of a grid may have ``names``, which are then shown instead of numbers.
    """

    label: str
    log: bool = False
    floor: float | None = None
    ceiling: float | None = None
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Line:
    """A curve, with a band from ``low`` to ``high`` around it. ``None`` in ``y`` is a gap.

    The same name has the same colour in every figure. A ``reference`` is drawn thin and grey.
    """

    name: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]
    low: tuple[float | None, ...] = ()
    high: tuple[float | None, ...] = ()
    reference: bool = False


@dataclass(frozen=True)
class Panel:
    """The curves that share one pair of axes."""

    title: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Figure:
    """Panels with common axes. A page shows one at a time, chosen by ``selector``. A picture shows them all.

    Args:
        name: the file name without extension, and the anchor on the page.
        title: what the figure shows, as a sentence.
        text: alternative text, for readers who cannot see it.
        caption: how it was made.
        x: the horizontal axis.
        y: the vertical axis.
        panels: at least one.
        selector: what tells the panels apart ("layers"); not needed for one panel.
        start: the index of the panel that the page shows first.
    """

    name: str
    title: str
    text: str
    caption: str
    x: Axis
    y: Axis
    panels: tuple[Panel, ...]
    selector: str = ""
    start: int = 0


@dataclass(frozen=True)
class Grid:
    """A matrix of numbers as colours, ``values[row][column]``. ``None`` is a gap. The axes end where the matrix ends.

    Args:
        title: what the numbers describe.
        x: the horizontal axis. It can be logarithmic only if all column positions are positive.
        y: the vertical axis, likewise. Row 0 is at the top.
        xs: the column positions, in increasing or decreasing order.
        ys: the row positions, in increasing or decreasing order.
        values: one row for each of ``ys``, with a number for each of ``xs``.
        labels: words to write on the colours, in the same order; a few that are short.
    """

    title: str
    x: Axis
    y: Axis
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    values: tuple[tuple[float | None, ...], ...]
    labels: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        for name, places in (("xs", self.xs), ("ys", self.ys)):
            if not _in_one_direction(places):
                raise ValueError(f"{name} must be finite, and increasing or decreasing; got {places}")
        wrong = len(self.values) != len(self.ys) or any(len(row) != len(self.xs) for row in self.values)
        if wrong:
            raise ValueError(f"values must be {len(self.ys)} rows of {len(self.xs)} numbers")
        for axis, places in ((self.x, self.xs), (self.y, self.ys)):
            if axis.names and len(axis.names) != len(places):
                raise ValueError(f"there must be {len(places)} names along {axis.label!r}, got {len(axis.names)}")


@dataclass(frozen=True)
class Plate:
    """One or two grids with a common colour scale, side by side."""

    title: str
    grids: tuple[Grid, ...]

    def __post_init__(self) -> None:
        if len(self.grids) not in (1, 2):
            raise ValueError(f"a plate has one grid or two, got {len(self.grids)}")


@dataclass(frozen=True)
class HeatMap:
    """Matrices as colours. A page shows one plate at a time, chosen by ``selector``. A picture shows the first dozen.

    Args:
        name: the file name without extension, and the anchor on the page.
        title: what the heat map shows, as a sentence.
        text: alternative text, for readers who cannot see it.
        caption: how it was made.
        scale: what the colours stand for.
        plates: at least one.
        selector: what tells the plates apart ("parameter"); not needed for one plate.
        start: the index of the plate that the page shows first.
        log: whether the colours start logarithmic. Values that are not positive are then gaps.
    """

    name: str
    title: str
    text: str
    caption: str
    scale: str
    plates: tuple[Plate, ...]
    selector: str = ""
    start: int = 0
    log: bool = True


@dataclass(frozen=True)
class Table:
    """Rows of text and numbers. ``None`` is an empty field."""

    name: str
    title: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | float | int | None, ...], ...]


@dataclass(frozen=True)
class Section:
    """Paragraphs of prose, then figures, heat maps and tables in order."""

    name: str
    title: str
    prose: tuple[str, ...]
    parts: tuple[Figure | HeatMap | Table, ...]


@dataclass(frozen=True)
class Document:
    """The whole page.

    Args:
        title: the title of the page.
        summary: a sentence or two under the title.
        settings: how it was made, for the page footer: version, code fingerprint, library versions.
        quick: whether it is from a quick run. Every figure then says so.
        leading: the names of the figures on the first screen.
        sections: everything else.
        claims: the table on the first screen. Its columns are id, place, statement, rule, figures, verdict, command.
        files: whether pictures and data are next to the page, which then links to them.
    """

    title: str
    summary: str
    settings: tuple[tuple[str, str], ...]
    quick: bool
    leading: tuple[str, ...]
    sections: tuple[Section, ...]
    claims: Table | None = None
    files: bool = True

    @property
    def parts(self) -> tuple[Figure | HeatMap | Table, ...]:
        """The claims, if any, and all parts of the sections, in page order."""
        claims = () if self.claims is None else (self.claims,)
        return (*claims, *itertools.chain.from_iterable(section.parts for section in self.sections))


def _in_one_direction(places: Sequence[float]) -> bool:
    steps = [after - before for before, after in itertools.pairwise(places)]
    one_way = all(step > 0 for step in steps) or all(step < 0 for step in steps)
    return bool(places) and one_way and all(map(math.isfinite, places))
