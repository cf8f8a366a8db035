"""The page of a report, without a browser."""

import dataclasses
import html.parser
import json
import math
import re

import pytest

from matrix_adagrad.report import page
from matrix_adagrad.report.document import Axis, Line, Table
from tests.report.documents import CLAIM_COLUMNS, NASTY, document, figure, line, table


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


def test_what_cannot_be_told_apart_is_refused():
    with pytest.raises(ValueError, match="share their names: loss"):
        page.render(document((figure(), table("loss"))))
    with pytest.raises(ValueError, match="leading figures: nowhere"):
        page.render(document(leading=("nowhere",)))
