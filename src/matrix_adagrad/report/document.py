"""What a report consists of: figures, tables and prose, described once and drawn twice, as pictures and as a page."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Axis", "Document", "Figure", "Line", "Panel", "Section", "Table"]


@dataclass(frozen=True)
class Axis:
    """A label, and whether the axis starts logarithmic; ``floor`` and ``ceiling`` cut off what would flatten it."""

    label: str
    log: bool = False
    floor: float | None = None
    ceiling: float | None = None


@dataclass(frozen=True)
class Line:
    """A curve, with the band from ``low`` to ``high`` around it; ``None`` in ``y`` is a gap.

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
    """Panels with common axes. A page shows one of them at a time, chosen by ``selector``; a picture shows them all.

    Args:
        name: a file's name without an ending, and the anchor on the page.
        title: what is seen, as a sentence.
        text: what it shows in words, for those who do not see it.
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
class Table:
    """Rows of text and numbers; ``None`` is an empty field."""

    name: str
    title: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | float | int | None, ...], ...]


@dataclass(frozen=True)
class Section:
    """Paragraphs of prose, then figures and tables in their order."""

    name: str
    title: str
    prose: tuple[str, ...]
    parts: tuple[Figure | Table, ...]


@dataclass(frozen=True)
class Document:
    """The whole report.

    Args:
        title: of the page.
        summary: a sentence or two under the title.
        settings: how it was made, for the foot of the page: version, fingerprint of the code, versions of libraries.
        quick: whether it is of a quick run, which every figure then says.
        claims: the table of the first screen; the columns are id, place, statement, rule, figures, verdict, command.
        leading: the names of the figures of the first screen.
        sections: everything else.
    """

    title: str
    summary: str
    settings: tuple[tuple[str, str], ...]
    quick: bool
    claims: Table
    leading: tuple[str, ...]
    sections: tuple[Section, ...]
