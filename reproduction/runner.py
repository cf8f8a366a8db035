"""Runs missing cells, and writes claims, data, figures and the report."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from matrix_adagrad.datasets.movielens import movielens
from matrix_adagrad.files import write
from matrix_adagrad.optional import OptionalOutput
from matrix_adagrad.pages.tables import csv_text, finite
from matrix_adagrad.version import __version__
from reproduction.cells import Cell, Store, source_hash
from reproduction.experiments import Results
from reproduction.pool import Pool
from reproduction.progress import Progress
from reproduction.report import document
from reproduction.verdict import Verdict

__all__ = ["FIGURES", "REPORT", "run", "save", "table"]

LOOKS = {  # by how a verdict starts: its short word, and its colour
    "holds only if": ("only if", "yellow"),
    "holds": ("holds", "green"),
    "does not hold here": ("does not", "red"),
    "not decided": ("undecided", "gray"),
    "not run": ("not run", "gray"),
}
FIGURES = OptionalOutput("figures/", ("matplotlib", "numpy"), "reproduction")
REPORT = OptionalOutput("report.html", ("jinja2", "plotly"), "reproduction")


def run(
    what: str,
    quick: bool,
    store: Store,
    *,
    workers: int = 1,
    data: Path | None = None,
    progress: Progress | None = None,
) -> Results:
    """Run the missing cells of an experiment, and load the stored cells of the others.

    Raises:
        OSError: if MovieLens is needed and cannot be found or downloaded, or a result cannot be stored.
        ValueError: if the file at ``data`` is not MovieLens 100K.
    """
    progress = progress or Progress()
    if what in ("all", "movielens"):
        movielens(data)  # fail before anything runs; workers find it in the cache
    store.prepare()
    known: dict[Cell, Any] = {}
    with Pool(store, workers, progress.done, {"factorisation": {"path": data}}) as pool:
        while wanted := [cell for cell in Results(known, quick).needed(what) if cell not in known]:
            found = _stored(store, wanted)
            missing = [cell for cell in wanted if cell not in found]
            progress.add(list(found), missing)
            known |= found | pool.run(missing)
    while found := _stored(store, [cell for cell in Results(known, quick).needed() if cell not in known]):
        known |= found
    return Results(known, quick)


def _stored(store: Store, cells: Sequence[Cell]) -> dict[Cell, Any]:
    return {cell: result for cell in cells if (result := store.load(cell)) is not None}


# ------------------------------------------------------------------------------------------------------------ results


def save(results: Results, verdicts: Sequence[Verdict], out: Path) -> Path | None:
    """Write claims.json and the data and, unless packages are missing, the figures and the report. Return its path."""
    made = {
        "version": __version__,
        "code": source_hash()[:12],
        "torch": torch.__version__,
        "quick": results.is_quick,
    }
    claims = {**made, "claims": [verdict.to_dict(results.is_quick) for verdict in verdicts]}
    write(out / "claims.json", json.dumps(claims, indent=1, ensure_ascii=False) + "\n")
    content = document(results, verdicts)
    for part in content.parts:
        write(out / "data" / f"{part.name}.csv", csv_text(part))
        write(out / "data" / f"{part.name}.json", _json(part))
    if not FIGURES.missing:
        from matrix_adagrad.pages import figures

        figures.draw_all(content, out / "figures")
    if REPORT.missing:
        return None
    from matrix_adagrad.pages import html_page

    return write(out / "report.html", html_page.render(content))


def _json(part: Any) -> str:
    return json.dumps(_clean(asdict(part)), ensure_ascii=False, allow_nan=False) + "\n"


def _clean(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    return finite(value) if isinstance(value, float) else value


def table(verdicts: Sequence[Verdict], paint: Callable[[str, str], str] = lambda text, _: text, width: int = 0) -> str:
    """The claims for a terminal; ``paint`` takes a text and a colour."""
    width = width or min(120, max(60, shutil.get_terminal_size().columns))
    lines = []
    for verdict in verdicts:
        word, colour = next(look for start, look in LOOKS.items() if verdict.text.startswith(start))
        body = textwrap.wrap(f"{verdict.claim.place}. {verdict.claim.statement}", width - 10)
        if word == "only if":
            body += textwrap.wrap(verdict.text, width - 12, initial_indent="→ ", subsequent_indent="  ")
        for figures in verdict.figures.splitlines():
            body += textwrap.wrap(figures, width - 10, initial_indent="  ", subsequent_indent="    ")
        lines += [paint(f"{word:<10}", colour) + body[0], *(" " * 10 + line for line in body[1:])]
    return "\n".join(lines)
