"""The page of a report, without a browser."""

import dataclasses
import html.parser
import json
import math
import re

import pytest

from matrix_adagrad.pages import html_page
from matrix_adagrad.pages.document import Axis, Line, Plate, Table
from tests.pages.documents import CLAIM_COLUMNS, NASTY, document, figure, grid, heat_map, line, table


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


def test_the_page_loads_nothing():
    elements = Elements(html_page.render(document(quick=True)))
    for tag, attributes in elements.tags:
        assert "src" not in attributes, tag
        link = attributes.get("href") or ""
        assert tag in ("a", "link") or not link
        assert re.match(r"#|data:,|figures/|data/", link) or not link, link
    assert "@import" not in html_page._file("style.css")
    assert "url(" not in html_page._file("style.css")
    policy = next(a["content"] for _, a in elements.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none';")


def test_the_page_says_all_there_is():
    made = document()
    text = " ".join(Elements(html_page.render(made)).text.split())
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
    text = html_page.render(made)
    elements = Elements(text)
    assert [tag for tag, _ in elements.tags].count("script") == 3
    assert "<b>bold</b>" not in text.split("<script", 1)[0]
    assert "<b>bold</b>" in elements.text
    assert embedded(text)["figures"]["loss"]["panels"][0]["lines"][0]["name"] == NASTY


def test_a_page_without_claims_has_no_word_of_them():
    text = html_page.render(document(claims=None))
    elements = Elements(text)
    assert not [a for _, a in elements.tags if "claims" in (a.get("id") or "") or a.get("href") == "#claims"]
    assert "tally" not in {a.get("class") for _, a in elements.tags}
    assert "#section-first" in {a.get("href") for _, a in elements.tags if a.get("class") == "skip"}
    assert "First section" in elements.text


def test_a_page_without_files_links_to_none():
    parts = (figure(), heat_map(), table())
    assert html_page.render(document(parts)).count('class="files"') == 3
    elements = Elements(html_page.render(document(parts, files=False)))
    links = [a["href"] for tag, a in elements.tags if tag == "a"]
    assert links
    assert all(link.startswith("#") for link in links)
    assert "next to this page" not in elements.text
    assert "The charts need JavaScript." in elements.text


def test_a_heat_map_is_on_the_page_with_its_words_and_choices():
    elements = Elements(html_page.render(document((heat_map(), heat_map("many", count=9)), leading=())))
    text = " ".join(elements.text.split())
    for part in ("The scales differ.", "They differ by five powers of ten.", "Sixty steps.", "log colours", "layer.8"):
        assert part in text
    inputs = [a for tag, a in elements.tags if tag == "input"]
    assert [a["name"] for a in inputs] == ["panel-scales"] * 3
    assert [tag for tag, _ in elements.tags].count("option") == 9
    plots = [a for _, a in elements.tags if a.get("class") == "plot"]
    assert {(a["role"], a["aria-label"]) for a in plots} == {("img", "They differ by five powers of ten.")}


def test_names_in_a_heat_map_are_not_read_as_html():
    nasty = grid(NASTY, x=Axis(NASTY), y=Axis(NASTY))
    plates = (Plate(NASTY, (nasty,)), Plate("plain", (nasty,)))
    made = heat_map(title=NASTY, text=NASTY, caption=NASTY, scale=NASTY, selector=NASTY, plates=plates)
    text = html_page.render(document((made,), leading=()))
    assert [tag for tag, _ in Elements(text).tags].count("script") == 3
    assert "<b>bold</b>" not in text.split("<script", 1)[0]
    kept = embedded(text)["figures"]["scales"]
    assert kept["scale"] == kept["panels"][0]["grids"][0]["y"]["label"] == NASTY


def test_the_numbers_of_a_heat_map_are_finite_and_gaps_stay_gaps():
    odd = dataclasses.replace(grid(rows=1, columns=5), values=((0.123456, None, math.nan, -math.inf, 0.0),))
    kept = embedded(html_page.render(document((heat_map(count=1, grids=[odd]),), leading=())))
    panel = kept["figures"]["scales"]["panels"][0]
    assert panel["grids"][0]["values"] == [[0.1235, None, None, None, 0]]
    assert panel["grids"][0]["x"]["edges"] == [5, 15, 25, 35, 45, 55]
    assert panel["limits"]["linear"] == [0, 0.123456]


def test_the_numbers_of_the_page_are_finite_and_gaps_stay_gaps():
    values = (1.0, math.nan, None, math.inf, 2.0)
    odd = Line("odd", (1.0, 2.0, 3.0, 4.0, math.nan), values, values, values)
    curves = embedded(html_page.render(document((figure(lines=[odd, line("plain", band=False)]),))))
    odd, plain = curves["figures"]["loss"]["panels"][0]["lines"]
    assert odd["x"] == [1, 2, 3, 4]
    assert odd["y"] == odd["low"] == odd["high"] == [1, None, None, None]
    assert plain["low"] == plain["high"] == []


def test_what_cannot_be_told_apart_is_refused():
    with pytest.raises(ValueError, match="repeated: loss"):
        html_page.render(document((figure(), table("loss"))))
    with pytest.raises(ValueError, match="leading figures: nowhere"):
        html_page.render(document(leading=("nowhere",)))
    with pytest.raises(ValueError, match="leading figures: scales"):
        html_page.render(document((heat_map(),), leading=("scales",)))
