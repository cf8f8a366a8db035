"""The report's pictures, page and data files, without a browser."""

import csv
import dataclasses
import html.parser
import io
import json
import math
import re

import pytest

from matrix_adagrad.experiments.report import page, palette, pictures, tables
from matrix_adagrad.experiments.report.document import Axis, Document, Figure, Line, Panel, Section, Table

NASTY = "</script><script>alert(1)</script><b>bold</b> & \"quoted\" '$x$' <!-- \u2028"
CLAIM_COLUMNS = ("id", "place", "statement", "rule", "figures", "verdict", "command")
VERDICTS = ("holds", "holds only if the rate is small", "does not hold here: it is the other way round")


def line(name="row", count=20, gaps=(), band=True, scale=1.0):
    x = tuple(float(i + 1) for i in range(count))
    y = tuple(None if i in gaps else scale / (i + 1) for i in range(count))
    low, high = (tuple(None if v is None else v * factor for v in y) for factor in (0.8, 1.3))
    return Line(name, x, y, low if band else (), high if band else ())


def figure(name="loss", panels=3, lines=None, x=None, y=None):
    lines = lines or (line("row"), line("adam", gaps=(3, 4)), Line("bound", (1.0, 20.0), (1.0, 0.9), reference=True))
    shown = tuple(Panel(str(10 * (i + 1)), tuple(lines)) for i in range(panels))
    axes = (x or Axis("epoch"), y or Axis("training loss", log=True))
    return Figure(
        name, f"The {name} falls.", "It falls from one to near zero.", "Ten seeds.", *axes, shown, "layers", 0
    )


def table(name="final"):
    rows = (("row", 10, 0.12345678, None), ("adam", 20, math.nan, "diverged"))
    return Table(name, "Final loss", "Medians.", ("optimizer", "layers", "loss", "note"), rows)


def document(parts=None, quick=False, leading=("loss",), **changes):
    rows = tuple(
        (
            f"C{i}",
            "Theorem 2",
            f"Statement {i}.",
            "A rule.",
            "loss, 0.12 of 0.13",
            verdict,
            f"matrix-adagrad claim C{i}",
        )
        for i, verdict in enumerate(VERDICTS)
    )
    claims = Table("claims", "Claims", "All of them.", CLAIM_COLUMNS, rows)
    sections = (Section("first", "First section", ("Prose with `code`.",), parts or (figure(), table())),)
    made = Document("A report", "What came out.", (("version", "1.0"),), quick, claims, leading, sections)
    return dataclasses.replace(made, **changes)


class Elements(html.parser.HTMLParser):
    """All start tags of a page with their attributes, and its text outside scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self.inside = [], "", ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.inside = tag

    def handle_endtag(self, _):
        self.inside = ""

    def handle_data(self, data):
        if self.inside not in ("script", "style"):
            self.text += data


def embedded(text):
    return json.loads(re.search(r'<script type="application/json" id="report">(.*?)</script>', text, re.DOTALL)[1])


def luminance(colour):
    channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_colours_stand_out_from_their_background():
    for light, dark, *_ in palette.COLOURS:
        assert contrast(light, palette.LIGHT.paper) >= 3
        assert contrast(dark, palette.DARK.paper) >= 3
    for theme in (palette.LIGHT, palette.DARK):
        for colour in (theme.ink, theme.muted, theme.alert):
            assert contrast(colour, theme.paper) >= 4.5


def test_a_name_has_one_style_in_all_figures_and_no_two_names_share_one():
    first, second = figure("one", lines=[line("a"), line("b")]), figure("two", lines=[line("b"), line("c")])
    styles = palette.styles_of_document(document((first, second), leading=()))
    assert list(styles) == ["a", "b", "c"]
    many = palette.styles(str(i) for i in range(25))
    assert len({dataclasses.astuple(style) for style in many.values()}) == 25
    assert len({style.marker for style in list(many.values())[:8]}) == 8


def test_csv_of_a_figure_reads_back_as_its_points():
    made = figure(lines=[line("Row-wise, mean", gaps=(0, 7)), line("no band", band=False, scale=1 / 3)])
    rows = list(csv.DictReader(io.StringIO(tables.csv_text(made))))
    assert list(rows[0]) == ["panel", "line", "x", "y", "low", "high"]
    expected = [
        (panel.title, curve.name, *point)
        for panel in made.panels
        for curve in panel.lines
        for point in tables.points(curve)
    ]
    numbers = ("x", "y", "low", "high")
    found = [(r["panel"], r["line"], *(float(r[k]) if r[k] else None for k in numbers)) for r in rows]
    assert found == expected


def test_csv_of_a_table_has_its_columns_and_empty_fields():
    rows = list(csv.reader(io.StringIO(tables.csv_text(table()))))
    header, first, second = rows
    assert header == ["optimizer", "layers", "loss", "note"]
    assert first == ["row", "10", "0.12345678", ""]
    assert second == ["adam", "20", "nan", "diverged"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (True, "yes"),
        (3, "3"),
        (3.0, "3"),
        (0.123456, "0.1235"),
        (1e-9, "1e-09"),
        (math.nan, "–"),
        (-math.inf, "-∞"),
        ("as it is", "as it is"),
    ],
)
def test_fields_are_short(value, text):
    assert tables.field(value) == text


def test_columns_of_numbers_and_fractions_are_known():
    assert tables.is_number([1, 2.5, None, math.nan, "7/10", "12%"])
    assert not tables.is_number([1, "diverged"])
    assert not tables.is_number([None, ""])


def test_the_page_loads_nothing():
    elements = Elements(page.render(document(quick=True)))
    for tag, attributes in elements.tags:
        assert "src" not in attributes, tag
        link = attributes.get("href") or ""
        assert tag in ("a", "link") or not link
        assert re.match(r"#|data:,|figures/|data/", link) or not link, link
    assert "@import" not in page._file("style.css")
    assert "url(" not in page._file("style.css")
    policy = next(a["content"] for _, a in elements.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none';")


def test_the_page_says_all_there_is():
    made = document()
    text = " ".join(Elements(page.render(made)).text.split())
    for part in ("A report", "What came out.", "Statement 2.", "A rule.", "matrix-adagrad claim C1", "First section"):
        assert part in text
    for part in ("The loss falls.", "It falls from one to near zero.", "Ten seeds.", "Medians.", "0.1235", "diverged"):
        assert part in text
    for part in ("holds only if the rate is small", "does not hold here: it is the other way round", "1 do not hold"):
        assert part in text
    assert "QUICK" not in text


def test_nothing_in_the_document_is_read_as_html():
    nasty = figure(lines=[line(NASTY), Line("bound" + NASTY, (1.0,), (1.0,), reference=True)])
    nasty = dataclasses.replace(nasty, title=NASTY, text=NASTY, caption=NASTY, selector=NASTY, x=Axis(NASTY))
    rows = ((NASTY,) * 7,)
    made = document(
        (nasty, Table("t", NASTY, NASTY, (NASTY,), ((NASTY,),))),
        title=NASTY,
        summary=NASTY,
        settings=((NASTY, NASTY),),
        claims=Table("claims", NASTY, NASTY, CLAIM_COLUMNS, rows),
    )
    text = page.render(made)
    elements = Elements(text)
    assert [tag for tag, _ in elements.tags].count("script") == 3
    assert "<b>bold</b>" not in text.split("<script", 1)[0]
    assert "<b>bold</b>" in elements.text
    assert embedded(text)["figures"]["loss"]["panels"][0]["lines"][0]["name"] == NASTY


def test_the_numbers_of_the_page_are_finite_and_gaps_stay_gaps():
    values = (1.0, math.nan, None, math.inf, 2.0)
    odd = Line("odd", (1.0, 2.0, 3.0, 4.0, math.nan), values, values, values)
    curves = embedded(page.render(document((figure(lines=[odd, line("plain", band=False)]),))))
    odd, plain = curves["figures"]["loss"]["panels"][0]["lines"]
    assert odd["x"] == [1, 2, 3, 4]
    assert odd["y"] == odd["low"] == odd["high"] == [1, None, None, None]
    assert plain["low"] == plain["high"] == []


def test_page_and_pictures_are_the_same_bytes_each_time(tmp_path):
    made = document(quick=True)
    assert page.render(made) == page.render(made)
    first, second = (pictures.draw_all(made, tmp_path / name) for name in ("first", "second"))
    assert [path.name for path in first] == ["loss.png", "loss.svg"]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
    svg = first[1].read_text()
    assert "<dc:date>" not in svg
    assert "<dc:creator>" not in svg
    assert b"Software" not in first[0].read_bytes()


def test_a_quick_run_says_so_everywhere(tmp_path):
    made = document((figure("one"), figure("two", panels=1)), quick=True, leading=("two",))
    text = page.render(made)
    assert "Quick run: fewer seeds and a coarser grid" in text
    assert text.count(">QUICK RUN<") == 3
    for part in palette.figures(made):
        _, marked = pictures.draw(part, True, tmp_path / "quick")
        _, plain = pictures.draw(part, False, tmp_path / "full")
        # Letters are drawn as outlines; what is written stays as a comment beside them.
        assert marked.read_text().count("<!-- QUICK RUN -->") == len(part.panels)
        assert "QUICK" not in plain.read_text()


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
    for path in pictures.draw(made, False, tmp_path):
        assert path.stat().st_size > 1000
    assert "falls" in page.render(document((made,)))


@pytest.mark.parametrize("panels", [1, 3, 4, 5])
def test_all_panels_are_in_the_picture(panels, tmp_path):
    _, svg = pictures.draw(figure(panels=panels), False, tmp_path)
    assert len(set(re.findall(r'id="axes_(\d+)"', svg.read_text()))) >= panels
    for i in range(panels):
        assert svg.read_text().count(f"<!-- {'layers: ' if panels > 1 else ''}{10 * (i + 1)} -->") >= 1


def test_limits_are_those_of_the_axis():
    made = figure(x=Axis("x", floor=2.0, ceiling=9.0), y=Axis("y", ceiling=0.5))
    canvas = pictures._canvas(made, False, palette.styles(palette.names(made)))
    for cell in canvas.axes[:3]:
        assert cell.get_xlim() == (2.0, 9.0)
        assert cell.get_ylim()[1] == 0.5


def test_what_cannot_be_told_apart_is_refused():
    with pytest.raises(ValueError, match="share their names: loss"):
        page.render(document((figure(), table("loss"))))
    with pytest.raises(ValueError, match="leading figures: nowhere"):
        page.render(document(leading=("nowhere",)))
