"""The pictures of a report, and what they share with its page."""

import dataclasses
import math
import re

import pytest

from matrix_adagrad.pages import figures, heatmaps, html_page, palette
from matrix_adagrad.pages.document import Axis, Grid, Line, Plate
from tests.pages.documents import document, figure, grid, heat_map, line, table


def test_page_and_pictures_are_the_same_bytes_each_time(tmp_path):
    made = document((figure(), table(), heat_map()), quick=True)
    assert html_page.render(made) == html_page.render(made)
    first, second = (figures.draw_all(made, tmp_path / name) for name in ("first", "second"))
    assert [path.name for path in first] == ["loss.png", "loss.svg", "scales.png", "scales.svg"]
    for file, again in zip(first, second, strict=True):
        assert file.read_bytes() == again.read_bytes()
    for svg in (first[1].read_text(encoding="utf-8"), first[3].read_text(encoding="utf-8")):
        assert "<dc:date>" not in svg
        assert "<dc:creator>" not in svg
    assert b"Software" not in first[0].read_bytes() + first[2].read_bytes()


def test_a_quick_run_says_so_everywhere(tmp_path):
    made = document((figure("one"), figure("two", panels=1)), quick=True, leading=("two",))
    text = html_page.render(made)
    assert "Quick run: fewer seeds and a coarser grid" in text
    assert text.count(">QUICK RUN<") == 3
    for part in palette.figures(made):
        _, marked = figures.draw(part, True, tmp_path / "quick")
        _, plain = figures.draw(part, False, tmp_path / "full")
        # Letters are drawn as outlines; what is written stays as a comment beside them.
        assert marked.read_text(encoding="utf-8").count("<!-- QUICK RUN -->") == len(part.panels)
        assert "QUICK" not in plain.read_text(encoding="utf-8")


AXES = {
    "limits": (Axis("x", floor=2.0, ceiling=9.0), Axis("y", floor=0.0, ceiling=0.5)),
    "log": (Axis("x", log=True), Axis("y", log=True)),
    "log with limits": (Axis("x", log=True, floor=0.0), Axis("y", log=True, floor=-1.0, ceiling=2.0)),
}
LINES = {
    "one": [line()],
    "twenty-five": [line(f"line {i}", scale=i + 1.0) for i in range(25)],
    "gaps": [line(gaps=(0, 1, 5, 19)), line("nothing but gaps", gaps=range(20))],
    "zeros and negatives": [
        Line("odd", (-1.0, 0.0, 1.0, 2.0), (0.0, -1.0, 0.5, 2.0), (-1.0,) * 4, (0.0, 0.0, 1.0, 3.0))
    ],
    "nothing positive": [Line("below", (-2.0, -1.0), (-1.0, -2.0), (-3.0, -3.0), (0.0, 0.0))],
    "empty": [Line("empty", (), ())],
    "references alone": [Line("bound", (1.0, 2.0), (1.0, 1.0), reference=True)],
    "not finite": [Line("odd", (1.0, 2.0, 3.0), (math.nan, math.inf, 1.0), (None, 1.0, -math.inf), (None, 2.0, 2.0))],
    "formula": [line("cost in $ or $", count=3)],
}


@pytest.mark.parametrize("lines", LINES.values(), ids=LINES)
@pytest.mark.parametrize("axes", AXES.values(), ids=AXES)
def test_every_figure_is_drawn(axes, lines, tmp_path):
    made = figure(panels=1, lines=lines, x=axes[0], y=axes[1])
    for path in figures.draw(made, False, tmp_path):
        assert path.stat().st_size > 1000
    assert "falls" in html_page.render(document((made,)))


@pytest.mark.parametrize("panels", [1, 3, 4, 5])
def test_all_panels_are_in_the_picture(panels, tmp_path):
    _, svg = figures.draw(figure(panels=panels), False, tmp_path)
    assert len(set(re.findall(r'id="axes_(\d+)"', svg.read_text(encoding="utf-8")))) >= panels
    for i in range(panels):
        assert svg.read_text(encoding="utf-8").count(f"<!-- {'layers: ' if panels > 1 else ''}{10 * (i + 1)} -->") >= 1


def test_limits_are_those_of_the_axis():
    made = figure(x=Axis("x", floor=2.0, ceiling=9.0), y=Axis("y", ceiling=0.5))
    canvas = figures._canvas(made, False, palette.styles(palette.names(made)))
    for cell in canvas.axes[:3]:
        assert cell.get_xlim() == (2.0, 9.0)
        assert cell.get_ylim()[1] == 0.5


NAMED = Grid(
    "", Axis("$x", names=("one two", "b")), Axis("y", names=("c",)), (0, 1), (0,), ((1.0, None),), (("$w", ""),)
)
HEAT_MAPS = {
    "one grid": heat_map(count=1, grids=[grid()]),
    "one cell": heat_map(count=1, grids=[grid(rows=1, columns=1)]),
    "nothing but gaps": heat_map(grids=[grid(rows=1, columns=2, gaps=[(0, 0), (0, 1)])]),
    "linear": heat_map(log=False),
    "logarithmic axes": heat_map(grids=[grid(x=Axis("x", log=True), y=Axis("y", log=True), rows=20)]),
    "one and two grids": heat_map(plates=(Plate("one", (grid(),)), Plate("two", (grid(), grid())))),
    "names and labels": heat_map(count=1, grids=[NAMED], log=False),
    "formula": heat_map(title="$x$", scale="$", grids=[grid("$x$", x=Axis("in $ or $"))]),
}


@pytest.mark.parametrize("made", HEAT_MAPS.values(), ids=HEAT_MAPS)
def test_every_heat_map_is_drawn(made, tmp_path):
    for path in figures.draw(made, True, tmp_path):
        assert path.stat().st_size > 1000
    assert html_page.render(document((made,), leading=()))


def test_a_picture_has_the_first_plates_and_says_that_there_are_more(tmp_path, monkeypatch):
    monkeypatch.setattr(heatmaps, "MOST", 2)
    _, svg = figures.draw(heat_map(count=4), True, tmp_path)
    text = svg.read_text(encoding="utf-8")
    assert "<!-- parameter: layer.1 -->" in text
    assert "<!-- parameter: layer.2 -->" not in text
    assert "The first 2 of 4" in text
    assert text.count("<!-- QUICK RUN -->") == 4
    assert "The first" not in figures.draw(heat_map(count=2), False, tmp_path)[1].read_text(encoding="utf-8")


def test_the_first_row_is_at_the_top_whichever_way_the_places_go():
    upward = grid(rows=3)
    for variant in (upward, dataclasses.replace(upward, ys=(2.0, 1.0, 0.0))):
        cell = heatmaps.canvas(heat_map(count=1, grids=[variant]), False).axes[0]
        assert cell.get_ylim() == ((2.5, -0.5) if variant is upward else (-0.5, 2.5))
        assert cell.get_xlim() == (5.0, 105.0)
