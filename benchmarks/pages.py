"""Tables in Markdown, and their places in the documentation's pages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from matrix_adagrad.files import write

__all__ = ["DOCS", "put", "table", "written"]

DOCS = Path(__file__).parents[1] / "docs"
_BLOCK = re.compile(r"(<!-- begin: (\S+) -->\n).*?(<!-- end: \2 -->)", re.DOTALL)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *rows])


def written(page: str, blocks: Mapping[str, Callable[[], str]]) -> str:
    """The page with these blocks made anew; the others stay. A block that has no place in the page is an error."""
    missing = [name for name in blocks if name not in {match[2] for match in _BLOCK.finditer(page)}]
    if missing:
        raise SystemExit(f"the page has no place for {', '.join(missing)}: <!-- begin: … --> and <!-- end: … -->")

    def made(match: re.Match[str]) -> str:
        return f"{match[1]}{blocks[match[2]]()}\n{match[3]}" if match[2] in blocks else match[0]

    return _BLOCK.sub(made, page)


def put(page: Path, blocks: Mapping[str, Callable[[], str]]) -> None:
    """Make these blocks of a page anew."""
    write(page, written(page.read_text(encoding="utf-8"), blocks))
