"""Illustrations, drawn from the geometries: `python docs/pictures.py` writes them to docs/pictures/.

Each has the colours of a light and of a dark page in it. The page chooses, by the CSS property `color-scheme`.
"""

from functools import partial
from html import escape
from pathlib import Path

import torch

from matrix_adagrad.geometry import Blocks, Column, Entry, Row, Whole
from matrix_adagrad.pages.palette import COLOURS, DARK, LIGHT

FOLDER = Path(__file__).parent / "pictures"
SHAPE = (6, 8)
GEOMETRIES = {
    "row": ('Row(), "row"', Row()),
    "column": ('Column(), "column"', Column()),
    "entry": ('Entry(), "entry"', Entry()),
    "whole": ('Whole(), "whole"', Whole()),
    "blocks-of-rows": ("Blocks(rows=3)", Blocks(rows=3)),
    "blocks-of-columns": ("Blocks(columns=2)", Blocks(columns=2)),
}
HUES = 5
CELL, GAP, CAPTION = 20, 48, 48


def fills(number, theme):
    """The classes of a theme: 0 is light, 1 is dark."""
    hues = [(f"hue{hue}", colours[number]) for hue, colours in enumerate(COLOURS[:HUES])]
    parts = [("paper", theme.paper), ("ink", theme.ink), ("muted", theme.muted), *hues]
    return "".join(f".{name}{{fill:{colour}}}" for name, colour in parts)


STYLE = f"<style>{fills(0, LIGHT)}@media(prefers-color-scheme:dark){{{fills(1, DARK)}}}</style>"


def text(x, y, words, *, size=15, colour="ink", anchor="start", weight="normal"):
    """A line of text."""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" class="{colour}" text-anchor="{anchor}" '
        f'font-weight="{weight}">{escape(words)}</text>'
    )


def rectangle(x, y, width, height, fill, opacity=1.0):
    """A filled rectangle."""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" class="{fill}" fill-opacity="{opacity:g}"/>'
    )


def picture(width, height, title, parts):
    """An SVG file with a description for screen readers."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(title)}" '
        f'font-family="system-ui, sans-serif">'
    )
    return "\n".join([head, STYLE, rectangle(0, 0, width, height, "paper"), *parts, "</svg>", ""])


def shade(block, blocks):
    """The shade of a block. Neighbours differ in colour and, if there are many blocks, in opacity too."""
    return f"hue{block % HUES}", 0.85 if blocks <= HUES else (0.85, 0.6, 0.38)[block // HUES % 3]


def matrix(x, y, geometry):
    """A matrix whose entries have the colour of their block."""
    scales = geometry.scales(SHAPE)
    numbers = torch.arange(scales).view(geometry.statistic_shape(SHAPE))
    blocks = numbers.expand(geometry.cut(SHAPE)).reshape(SHAPE).tolist()
    for i, row in enumerate(blocks):
        for j, block in enumerate(row):
            yield rectangle(x + j * CELL, y + i * CELL, CELL - 1.5, CELL - 1.5, *shade(block, scales))


def geometry_alone(geometry):
    """A matrix without words, which the page adds."""
    title = f"A matrix of six by eight entries, with {geometry.scales(SHAPE)} scales"
    return picture(SHAPE[1] * CELL - 1.5, SHAPE[0] * CELL - 1.5, title, matrix(0, 0, geometry))


def geometries():
    """What shares a scale."""
    width, height = SHAPE[1] * CELL + GAP, SHAPE[0] * CELL + CAPTION + 26
    parts = []
    for number, (caption, geometry) in enumerate(GEOMETRIES.values()):
        x, y = 24 + number % 3 * width, CAPTION + 12 + number // 3 * height
        scales = geometry.scales(SHAPE)
        parts.append(text(x, y - 28, caption, size=16, weight="600"))
        parts.append(text(x, y - 9, f"{scales} scale{'s' * (scales > 1)} for 48 entries", size=14, colour="muted"))
        parts += matrix(x, y, geometry)
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
        "A table of 1,000,000 × 64 (256 MB of float32)": (1_000_000, 64),
        "A weight of 4096 × 4096 (67 MB of float32)": (4096, 4096),
    }
    bar, left, right, space = 26, 144, 230, 34
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
        parts.append(text(12, y, caption, weight="600"))
        y += 14
        for name, numbers in states.items():
            length = max(1, right * numbers / states["Adam"])
            ours = name.startswith(("Row", "Column"))
            parts.append(text(left - 10, y + 17, name, anchor="end", colour="ink" if ours else "muted"))
            parts.append(rectangle(left, y, length, bar - 4, "hue0" if ours else "muted", 0.85))
            parts.append(text(left + length + 8, y + 16, readable(numbers)))
            y += bar
        y += space
    return picture(left + right + 80, y - 14, "Bytes of state of five optimizers, for a table and for a weight", parts)


PICTURES = {"geometries.svg": geometries, "memory.svg": memory}
PICTURES |= {f"geometry-{name}.svg": partial(geometry_alone, own) for name, (_, own) in GEOMETRIES.items()}

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw(), encoding="utf-8")
