"""Tables of plain text, with columns that stand below one another."""

from __future__ import annotations

from collections.abc import Collection, Sequence

__all__ = ["columns"]


def columns(header: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> str:
    """A header and rows, each column as wide as need be; those of the numbers ``left`` are words and start at the left.

    >>> print(columns(("name", "bytes"), [("row", "40"), ("entry", "2560")]))
    name   bytes
    row       40
    entry   2560
    """
    table = [tuple(header), *map(tuple, rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "  ".join(text.ljust(width) if i in left else text.rjust(width) for i, (text, width) in enumerate(padded))
        for padded in (zip(row, widths, strict=True) for row in table)
    ]
    return "\n".join(line.rstrip() for line in lines)
