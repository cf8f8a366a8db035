"""Colours, markers and dashes: one style for each name, the same in the pictures and on the page.

The palette is Okabe and Ito's, which colour-blind readers can tell apart. Each colour is adjusted to a contrast of at
least 3 : 1 with its background, light or dark. Each colour has a marker, so that none is identified by colour alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from matrix_adagrad.pages.document import Document, Figure

__all__ = ["DARK", "LIGHT", "Style", "Theme", "figures", "names", "styles", "styles_of_document"]


@dataclass(frozen=True)
class Theme:
    """The colours around the curves.

    ``muted`` is for captions, axes and references, ``grid`` for hairlines, ``gap`` for missing values in a heat map.
    """

    paper: str
    ink: str
    muted: str
    grid: str
    gap: str
    alert: str


LIGHT = Theme(paper="#ffffff", ink="#1b1f24", muted="#5d6470", grid="#e4e7eb", gap="#d5d7da", alert="#b3261e")
DARK = Theme(paper="#14171c", ink="#e8eaed", muted="#9aa3af", grid="#2b313a", gap="#4b4e54", alert="#ff8f85")


@dataclass(frozen=True)
class Style:
    """How the curves with one name look.

    Args:
        light: the colour on a light background.
        dark: the colour on a dark one.
        marker: its name for the page.
        symbol: its name for the pictures.
        dash: lengths of dashes and gaps in points; empty for a solid line.
    """

    light: str
    dark: str
    marker: str
    symbol: str
    dash: tuple[int, ...]


COLOURS = (
    ("#0072b2", "#56b4e9", "circle", "o"),
    ("#d55e00", "#ff8a3d", "square", "s"),
    ("#00875f", "#35c99b", "diamond", "D"),
    ("#b4548a", "#e68fc0", "triangle-up", "^"),
    ("#a87400", "#e9b44c", "triangle-down", "v"),
    ("#6a4fb3", "#b7a3f5", "cross", "P"),
    ("#2b8cbe", "#9ad1f5", "x", "X"),
    ("#555555", "#c8ccd2", "star", "*"),
)
DASHES = ((), (6, 3), (2, 2), (8, 3, 2, 3), (12, 4))


def styles(names: Iterable[str]) -> dict[str, Style]:
    """A style for each name, in order of first appearance: first all colours, then all of them again, dashed."""
    order = dict.fromkeys(names)
    return {name: Style(*COLOURS[i % len(COLOURS)], DASHES[_turn(i)]) for i, name in enumerate(order)}


def styles_of_document(document: Document) -> dict[str, Style]:
    """One style for each name in the document, so that a name looks the same in all figures."""
    return styles(name for figure in figures(document) for name in names(figure))


def figures(document: Document) -> list[Figure]:
    """All figures, in page order."""
    return [part for part in document.parts if isinstance(part, Figure)]


def names(figure: Figure) -> list[str]:
    """The names of a figure's curves that need a colour: all but the references."""
    return list(dict.fromkeys(line.name for panel in figure.panels for line in panel.lines if not line.reference))


def _turn(index: int) -> int:
    return index // len(COLOURS) % len(DASHES)
