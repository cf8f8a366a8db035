"""Illustrations, drawn from the geometries: `python docs/pictures.py` writes them to docs/pictures/."""

from html import escape
from pathlib import Path

import torch

from matrix_adagrad.geometry import Blocks, Column, Entry, Row, Whole
from matrix_adagrad.pages.palette import COLOURS, LIGHT

FOLDER = Path(__file__).parent / "pictures"
SHAPE = (6, 8)
GEOMETRIES = {
    'Row(), "row"': Row(),
    'Column(), "column"': Column(),
    'Entry(), "entry"': Entry(),
    'Whole(), "whole"': Whole(),
    "Blocks(rows=3)": Blocks(rows=3),
    "Blocks(columns=2)": Blocks(columns=2),
}
HUES = [colour[0] for colour in COLOURS[:5]]
CELL, GAP, CAPTION = 20, 48, 40


def text(x, y, words, *, size=13, colour=LIGHT.ink, anchor="start", weight="normal"):
    """A line of text."""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}" text-anchor="{anchor}" '
        f'font-weight="{weight}">{escape(words)}</text>'
    )


def rectangle(x, y, width, height, fill, opacity=1.0):
    """A filled rectangle."""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}" fill-opacity="{opacity:g}"/>'


def picture(width, height, title, parts):
    """An SVG file with a description for screen readers."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'aria-label="{escape(title)}" font-family="system-ui, sans-serif">'
    )
    return "\n".join([head, rectangle(0, 0, width, height, LIGHT.paper), *parts, "</svg>", ""])


def shade(block, blocks):
    """The shade of a block. Neighbours differ in colour and, if there are many blocks, in opacity too."""
    return HUES[block % len(HUES)], 0.85 if blocks <= len(HUES) else (0.85, 0.6, 0.38)[block // len(HUES) % 3]


def matrix(x, y, caption, geometry):
    """A matrix whose entries have the colour of their block."""
    numbers = torch.arange(geometry.scales(SHAPE)).view(geometry.statistic_shape(SHAPE))
    blocks = numbers.expand(geometry.cut(SHAPE)).reshape(SHAPE).tolist()
    scales = geometry.scales(SHAPE)
    yield text(x, y - 24, caption, weight="600")
    yield text(x, y - 8, f"{scales} scale{'s' * (scales > 1)} for 48 entries", size=11, colour=LIGHT.muted)
    for i, row in enumerate(blocks):
        for j, block in enumerate(row):
            yield rectangle(x + j * CELL, y + i * CELL, CELL - 1.5, CELL - 1.5, *shade(block, scales))


def geometries():
    """What shares a scale."""
    width, height = SHAPE[1] * CELL + GAP, SHAPE[0] * CELL + CAPTION + 26
    parts = []
    for number, (caption, geometry) in enumerate(GEOMETRIES.items()):
        x, y = 24 + number % 3 * width, CAPTION + 12 + number // 3 * height
        parts += matrix(x, y, caption, geometry)
    title = "Six by eight matrices; entries of one colour share one scale, in each geometry"
    return picture(3 * width, 2 * height + 8, title, parts)


def readable(numbers):
    """The size in bytes of this many float32 numbers."""
    size = 4 * numbers
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def memory():
    """The state of optimizers side by side."""
    cases = {
        "State for a table of 1,000,000 × 64 (256 MB of float32)": (1_000_000, 64),
        "State for a weight of 4096 × 4096 (67 MB)": (4096, 4096),
    }
    bar, left, right, space = 20, 190, 460, 30
    parts, y = [], 26
    for caption, (m, n) in cases.items():
        entries = m * n
        states = {
            "Adam": 2 * entries,
            "RowMomentum": entries + Row().scales((m, n)),
            "AdaGrad": Entry().scales((m, n)),
            "RowAdaGrad": Row().scales((m, n)),
            "ColumnAdaGrad": Column().scales((m, n)),
        }
        parts.append(text(24, y, caption, weight="600"))
        y += 14
        for name, numbers in states.items():
            length = max(1, right * numbers / states["Adam"])
            ours = name.startswith(("Row", "Column"))
            parts.append(text(left - 10, y + 14, name, anchor="end", colour=LIGHT.ink if ours else LIGHT.muted))
            parts.append(rectangle(left, y, length, bar - 4, HUES[0] if ours else LIGHT.muted, 0.85))
            parts.append(text(left + length + 8, y + 13, readable(numbers), size=12))
            y += bar
        y += space
    return picture(left + right + 90, y - 8, "Bytes of state of five optimizers, for a table and for a weight", parts)


PICTURES = {"geometries.svg": geometries, "memory.svg": memory}

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw(), encoding="utf-8")
