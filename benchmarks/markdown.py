"""Markdown tables, and the blocks that benchmarks fill in on documentation pages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from matrix_adagrad.files import write

__all__ = ["DOCS", "markdown_table", "update_page", "with_blocks"]

DOCS = Path(__file__).parents[1] / "docs"
_BLOCK = re.compile(r"(<!-- begin: (\S+) -->\n).*?(<!-- end: \2 -->)", re.DOTALL)


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *rows])


def with_blocks(page: str, blocks: Mapping[str, Callable[[], str]]) -> str:
    """The page with these blocks replaced. It is an error if the page lacks one of them."""
    missing = [name for name in blocks if name not in {match[2] for match in _BLOCK.finditer(page)}]
    if missing:
        raise SystemExit(
            f"the page has no block for {', '.join(missing)}: write <!-- begin: NAME --> and <!-- end: NAME -->"
        )

    def made(match: re.Match[str]) -> str:
        return f"{match[1]}{blocks[match[2]]()}\n{match[3]}" if match[2] in blocks else match[0]

    return _BLOCK.sub(made, page)


def update_page(page: Path, blocks: Mapping[str, Callable[[], str]]) -> None:
    """Replace these blocks of a page."""
    write(page, with_blocks(page.read_text(encoding="utf-8"), blocks))
