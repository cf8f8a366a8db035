"""Titles and labels of figures."""

from __future__ import annotations

import textwrap
from typing import Any

__all__ = ["headline", "without_formulas", "wrapped"]


def without_formulas(text: str) -> str:
    """Text with its dollar signs escaped, so that matplotlib does not typeset a formula between them."""
    return text.replace("$", r"\$")


def wrapped(title: str, width: float) -> str:
    """A title wrapped to a width in inches."""
    return textwrap.fill(title, int(width * 9))


def headline(canvas: Any, title: str) -> None:
    """Set the title of a figure."""
    canvas.suptitle(without_formulas(title), x=0.01, ha="left", fontsize=11.5, fontweight="bold")
