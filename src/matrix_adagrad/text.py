"""Plain text: aligned tables, sizes, shapes and JSON."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

__all__ = ["columns", "folded", "json_text", "shape_text", "show", "size"]


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


def folded(names: Collection[str]) -> dict[str, list[str]]:
    """Dotted names that differ in whole numbers alone, as one pattern with the names it stands for.

    >>> for pattern, found in folded([f"layers.{i}.w" for i in (0, 1, 2, 3, 7)] + ["layers.0.b", "w"]).items():
    ...     print(pattern, len(found))
    layers.{0…3,7}.w 5
    layers.0.b 1
    w 1
    """
    found = {tuple(name.split(".")): [name] for name in names}
    for at in range(max(map(len, found), default=0)):
        alike: dict[tuple[str, ...], dict[int, list[str]]] = {}
        merged: dict[tuple[str, ...], list[str]] = {}
        for parts, same in found.items():
            if at < len(parts) and re.fullmatch(r"0|[1-9][0-9]*", parts[at]):
                alike.setdefault((*parts[:at], "", *parts[at + 1 :]), {})[int(parts[at])] = same
            else:
                merged[parts] = same
        for parts, numbered in alike.items():
            pattern = (*parts[:at], _numbers(sorted(numbered)), *parts[at + 1 :])
            merged[pattern] = [name for same in numbered.values() for name in same]
        found = merged
    first = {name: i for i, name in enumerate(names)}
    return {".".join(parts): same for parts, same in sorted(found.items(), key=lambda item: first[item[1][0]])}


def _numbers(numbers: Sequence[int]) -> str:
    """Rising numbers, with runs of them as ``0…31``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [f"{run[0]}…{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs]
    if len(texts) > 4:
        texts = [*texts[:2], "…", texts[-1]]
    return f"{{{','.join(texts)}}}" if len(numbers) > 1 else texts[0]
