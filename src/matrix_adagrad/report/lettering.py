"""The letters of pictures."""

from __future__ import annotations

import textwrap
from typing import Any

__all__ = ["headline", "plain", "wrapped"]


def plain(text: str) -> str:
    """Text that matplotlib takes as it is: it would set what is between two dollar signs as a formula."""
    return text.replace("$", r"\$")


def wrapped(title: str, width: float) -> str:
    """A picture's title in as many lines as it needs, for a width in inches."""
    return textwrap.fill(title, int(width * 9))


def headline(canvas: Any, title: str) -> None:
    """Set the title of a picture."""
    canvas.suptitle(plain(title), x=0.01, ha="left", fontsize=11.5, fontweight="bold")
