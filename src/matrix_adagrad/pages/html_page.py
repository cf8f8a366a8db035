"""A page as one self-contained HTML file, including charts, styles and numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from matrix_adagrad.pages import grids, palette, tables
from matrix_adagrad.pages.document import Axis, Document, Figure, Grid, HeatMap, Line, Plate, Table

__all__ = ["render"]

SCRIPTS = ("common.js", "curves.js", "heat.js", "page.js")  # each uses those before it
CLAIM = ("id", "place", "statement", "rule", "figures", "verdict", "command")
LONG = 24  # letters: a table is too narrow for longer words
# How a verdict begins, longer before shorter, and the kind that determines its icon and colour.
VERDICTS = {"holds only if": "condition", "does not hold": "fails", "holds": "holds"}
KINDS = {
    "holds": "hold",
    "condition": "hold only under a condition",
    "fails": "do not hold here",
    "other": "not decided, or not run",
}


def render(document: Document) -> str:
    """The page as the text of an HTML file that opens offline.

    Pictures and data are expected next to it, unless the document says that there are none.
    """
    figures = {figure.name: figure for figure in palette.figures(document)}
    _check(document, figures)
    styles = palette.styles_of_document(document)
    claims = [_claim(row) for row in document.claims.rows] if document.claims else []
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["code"] = _code
    environment.filters["field"] = tables.field
    environment.tests["unwieldy"] = _is_unwieldy
    template = environment.from_string(_file("template.html"))
    return template.render(
        document=document,
        claims=claims,
        tally=_tally(claims),
        leading=[figures[name] for name in document.leading],
        styles=styles,
        light=palette.LIGHT,
        dark=palette.DARK,
        is_heat=lambda part: isinstance(part, HeatMap),
        is_table=lambda part: isinstance(part, Table),
        titles=tables.titles,
        panel_title=tables.panel_title,
        lines=_lines,
        numeric=_numeric,
        css=Markup(_file("style.css")),
        library=Markup(_script(_file("package_data/plotly.min.js", "plotly"))),
        code=Markup(_script("\n".join(map(_file, SCRIPTS)))),
        data=Markup(_json(_data(document, styles))),
    )


def _check(document: Document, figures: Mapping[str, Figure]) -> None:
    names = [part.name for part in document.parts]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"figures and tables must have different names, but these are repeated: {', '.join(twice)}")
    missing = [name for name in document.leading if name not in figures]
    if missing:
        raise ValueError(f"no section has these leading figures: {', '.join(missing)}")


def _file(name: str, package: str = __name__.rpartition(".")[0]) -> str:
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def _script(text: str) -> str:
    """Code that cannot end its own element: neither escape changes the meaning inside a string or a pattern."""
    return re.sub(r"<(?=/script|!--)", r"\\x3c", text, flags=re.IGNORECASE)


def _json(value: object) -> str:
    """JSON without any character that HTML interprets: it stays data, whatever names it contains."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _data(document: Document, styles: Mapping[str, palette.Style]) -> dict[str, Any]:
    return {
        "themes": {"light": asdict(palette.LIGHT), "dark": asdict(palette.DARK)},
        "styles": {name: asdict(style) for name, style in styles.items()},
        "figures": {part.name: _chart(part) for part in document.parts if not isinstance(part, Table)},
    }


def _chart(part: Figure | HeatMap) -> dict[str, Any]:
    """What all charts have in common, plus what is specific to this kind."""
    own = _curves(part) if isinstance(part, Figure) else _heat(part)
    for i, panel in enumerate(own["panels"]):
        panel["title"] = tables.panel_title(part, i)
    return {"start": part.start, "text": part.text, **own}


def _curves(figure: Figure) -> dict[str, Any]:
    panels = [{"lines": [_line(line) for line in panel.lines]} for panel in figure.panels]
    axes = {"x": asdict(figure.x), "y": asdict(figure.y)}
    return {"kind": "curves", "logs": {"x": figure.x.log, "y": figure.y.log}, **axes, "panels": panels}


def _heat(heat: HeatMap) -> dict[str, Any]:
    panels = [_plate(plate) for plate in heat.plates]
    return {"kind": "heat", "logs": {"z": heat.log}, "scale": heat.scale, "panels": panels}


def _plate(plate: Plate) -> dict[str, Any]:
    limits = {"log": grids.limits(plate, log=True), "linear": grids.limits(plate, log=False)}
    return {"limits": limits, "grids": [_grid(grid) for grid in plate.grids]}


def _grid(grid: Grid) -> dict[str, Any]:
    """A grid, rounded to the four digits that the tooltip shows."""
    values = [[_rounded(value, 4) for value in row] for row in grid.values]
    axes = {"x": _grid_axis(grid.x, grid.xs), "y": _grid_axis(grid.y, grid.ys)}
    return {"title": grid.title, **axes, "values": values, "labels": grid.labels}


def _grid_axis(axis: Axis, places: Sequence[float]) -> dict[str, Any]:
    log, edges = grids.is_log(axis, places), grids.edges(axis, places)
    return {"label": axis.label, "log": log, "places": places, "edges": edges, "names": axis.names}


def _line(line: Line) -> dict[str, Any]:
    """Columns of numbers. Six digits are more than a screen shows, and the data file has them all."""
    kept = [point for point in tables.points(line) if tables.finite(point[0]) is not None]
    columns = {key: [_rounded(point[i]) for point in kept] for i, key in enumerate(("y", "low", "high"), start=1)}
    if not any(value is not None for value in columns["low"] + columns["high"]):
        columns["low"] = columns["high"] = []
    return {"name": line.name, "reference": line.reference, "x": [point[0] for point in kept], **columns}


def _rounded(value: float | None, digits: int = 6) -> float | None:
    return None if value is None or tables.finite(value) is None else float(f"{value:.{digits}g}")


def _lines(figure: Figure) -> list[Line]:
    """The first line with each name, over all panels: one button each."""
    first: dict[str, Line] = {}
    for panel in figure.panels:
        for line in panel.lines:
            first.setdefault(line.name, line)
    return list(first.values())


def _numeric(table: Table) -> list[bool]:
    return [tables.is_numeric(row[i] for row in table.rows) for i in range(len(table.columns))]


def _claim(row: Iterable[tables.Field]) -> dict[str, Any]:
    claim: dict[str, Any] = {key: tables.field(value) for key, value in zip(CLAIM, row, strict=True)}
    claim["kind"], claim["head"], claim["rest"] = _verdict(claim["verdict"])
    claim["figures"] = claim["figures"].splitlines()
    return claim


def _verdict(text: str) -> tuple[str, str, str]:
    """The kind of a verdict, the words that state it, and the rest of the sentence."""
    for start, kind in VERDICTS.items():
        found = re.match(rf"({start}\b(?: here)?[:;,.]?)\s*(.*)", text, flags=re.IGNORECASE | re.DOTALL)
        if found:
            return kind, found[1], found[2]
    return "other", text, ""


def _tally(claims: Iterable[Mapping[str, Any]]) -> list[tuple[str, int, str]]:
    kinds = [claim["kind"] for claim in claims]
    return [(kind, kinds.count(kind), label) for kind, label in KINDS.items() if kind in kinds]


def _code(text: str) -> Markup:
    """Escaped text. Anything between backticks is set as code, and long names may break at their dots."""
    parts = map(_breakable, re.split(r"`([^`]+)`", text))
    return Markup().join(Markup("<code>{}</code>").format(p) if i % 2 else p for i, p in enumerate(parts))


def _breakable(text: str) -> Markup:
    words = (re.split(r"(?<=[._/])", word) if len(word) > LONG else [word] for word in re.split(r"(\s+)", text))
    return Markup().join(Markup("<wbr>").join(pieces) for pieces in words)


def _is_unwieldy(text: object) -> bool:
    """Whether a line may have to break inside a word."""
    return any(len(piece) > LONG for piece in re.split(r"[\s._/-]", str(text)))
