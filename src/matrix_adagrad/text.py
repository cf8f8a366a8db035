"""Plain text: aligned tables, sizes, shapes and JSON."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

__all__ = ["columns", "json_text", "shape_text", "show", "size"]


def show(text: str) -> None:
    """Print a text, with ? for characters that the terminal lacks, such as ×."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding))


def shape_text(shape: Sequence[int]) -> str:
    """A shape, readable by people.

    >>> shape_text((943, 20)), shape_text(())
    ('943×20', 'scalar')
    """
    return "×".join(map(str, shape)) or "scalar"


def size(count: int) -> str:
    """A number of bytes, readable by people.

    >>> size(999), size(25_600), size(999_999), size(3_200_000_000)
    ('999 B', '25.6 kB', '1 MB', '3.2 GB')
    """
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if float(text := f"{value:.3g}") < 1000:
            return f"{text} {unit}"
        value /= 1000
    return f"{value:.3g} TB"


def json_text(value: Any) -> str:
    """A value as JSON, with null for infinite numbers and NaN.

    >>> print(json_text({"loss": math.inf}))
    {
     "loss": null
    }
    <BLANKLINE>
    """
    return json.dumps(_finite(value), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def columns(header: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> str:
    """A header and rows as an aligned table. The columns with the indices in ``left`` are left-aligned.

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
