"""The report's page in a real browser: Chromium, without a window and without a network."""

import dataclasses
import os

import pytest

from matrix_adagrad.pages.document import Axis, Line, Panel
from tests.integration.pages import LONG, broken_words, drawn, fits, names
from tests.pages.documents import NASTY, document, figure, line, table

if "INTEGRATIONS" not in os.environ:
    pytest.skip("it starts a browser: make test-integrations", allow_module_level=True)


def whole():
    others = tuple(figure(f"figure-{i}") for i in range(8))
    return document((figure(), table(), *others), leading=("loss", "figure-0", "figure-1"))


def test_the_first_screen_has_summary_figures_and_claims_and_charts_are_drawn_when_they_are_near(show):
    shown = show(whole())
    shown.wait_for_selector("[data-leading=figure-1] .main-svg")
    tops = [
        shown.locator(selector).bounding_box()["y"]
        for selector in ("h1", ".tally", ".leading", ".claims tbody tr >> nth=0")
    ]
    assert tops == sorted(tops)
    assert tops[-1] < 900
    cards = shown.locator(".card .plot").evaluate_all("plots => plots.map(plot => plot.getBoundingClientRect().top)")
    assert len(cards) == 3
    assert len(set(cards)) == 1
    assert not shown.locator("#figure-7 .main-svg").count()
    assert names(drawn(shown, "figure-7"))


def test_panels_are_chosen_and_hidden_curves_stay_hidden(show):
    made = figure()
    made = dataclasses.replace(made, panels=(*made.panels, Panel("40", (line("row"),))))
    chart = drawn(show(document((made,))), "loss")
    assert names(chart) == ["bound", "row", "adam"]
    chart.get_by_role("button", name="adam").click()
    assert chart.get_by_role("button", name="adam").get_attribute("aria-pressed") == "false"
    assert names(chart) == ["bound", "row"]
    chart.get_by_role("radio", name="20").check()
    assert names(chart) == ["bound", "row"]
    assert chart.locator(".plot").get_attribute("aria-label").endswith("Shown: layers: 20.")
    chart.get_by_role("radio", name="40").check()
    assert names(chart) == ["row"]
    assert chart.get_by_role("button", name="bound").is_disabled()
    chart.get_by_role("radio", name="10").check()
    chart.get_by_role("button", name="adam").click()
    assert names(chart) == ["bound", "row", "adam"]


def test_many_panels_come_as_a_list(show):
    chart = drawn(show(document((figure(panels=12),))), "loss")
    chart.get_by_role("combobox", name="layers").select_option("110")
    assert chart.locator(".plot").get_attribute("aria-label").endswith("Shown: layers: 110.")


def test_everything_works_from_the_keyboard(show):
    shown = show(document())
    shown.keyboard.press("Tab")
    assert shown.evaluate("document.activeElement.className") == "skip"
    chart = drawn(shown, "loss")
    chart.get_by_role("button", name="adam").focus()
    shown.keyboard.press("Space")
    assert names(chart) == ["bound", "row"]
    chart.get_by_role("radio", name="10").focus()
    shown.keyboard.press("ArrowRight")
    assert chart.get_by_role("radio", name="20").is_checked()
    assert chart.locator(".plot").get_attribute("aria-label").endswith("Shown: layers: 20.")


def test_axes_change_between_logarithmic_and_linear_within_their_limits(show):
    odd = Line("odd", (0.0, 1.0, 2.0, 4.0), (-1.0, 0.0, 1.0, 3.0), (-2.0, -1.0, 0.5, 2.0), (0.0, 1.0, 2.0, 4.0))
    made = figure(lines=[odd, line()], x=Axis("x", ceiling=10.0), y=Axis("y", log=True, floor=0.1))
    chart = drawn(show(document((made,))), "loss")

    def axis(key):
        return chart.locator(".plot").evaluate(f"p => [p._fullLayout.{key}axis.type, ...p._fullLayout.{key}axis.range]")

    assert axis("x")[0] == "linear"
    assert axis("x")[2] == 10
    assert axis("y")[:2] == ["log", -1]
    chart.get_by_role("button", name="log x").click()
    chart.get_by_role("button", name="log y").click()
    assert axis("x")[0] == "log"
    assert axis("x")[2] == 1
    assert axis("y")[:2] == ["linear", 0.1]


def test_values_are_shown_under_the_pointer(show):
    shown = show(document())
    box = drawn(shown, "loss").locator(".nsewdrag").bounding_box()
    shown.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    shown.wait_for_selector("#loss .hoverlayer .legend")
    label = shown.locator("#loss .hoverlayer").text_content()
    assert "row" in label
    assert " to " in label


def test_the_numbers_are_a_table_of_the_panel_that_is_shown(show):
    chart = drawn(show(document()), "loss")
    chart.locator(".numbers summary").click()
    rows = chart.locator(".numbers tbody tr")
    rows.first.wait_for()  # it is filled when it unfolds
    assert rows.count() == 20 + 20 + 2
    assert rows.nth(1).locator("td").all_text_contents() == ["row", "2", "0.5", "0.4", "0.65"]


def test_the_charts_follow_a_change_to_dark_colours(show):
    shown = show(document(), color_scheme="light")
    chart = drawn(shown, "loss")

    def colour():
        return chart.locator(".plot").evaluate("plot => plot.data.at(-1).line.color")

    light = colour(), shown.evaluate("getComputedStyle(document.body).backgroundColor")
    shown.emulate_media(color_scheme="dark")
    shown.wait_for_timeout(200)
    dark = colour(), shown.evaluate("getComputedStyle(document.body).backgroundColor")
    assert light == ("#d55e00", "rgb(255, 255, 255)")
    assert dark == ("#ff8a3d", "rgb(20, 23, 28)")


@pytest.mark.parametrize("width", [360, 390, 768, 1280])
def test_nothing_scrolls_sideways(show, width):
    curves = [line(LONG), line("adam"), Line("bound of " + LONG, (1.0, 2.0), (1.0, 1.0), reference=True)]
    wide = dataclasses.replace(table(), columns=tuple(f"column {i}" for i in range(8)), rows=((LONG, *range(7)),))
    shown = show(document((figure(lines=curves, panels=8), wide), quick=True), width=width, height=740)
    drawn(shown, "loss").locator(".numbers summary").click()
    for summary in shown.locator(".unfold summary").all():
        summary.click()
    assert fits(shown)


@pytest.mark.parametrize("width", [360, 768, 1000, 1280])
def test_no_word_is_broken_where_a_line_can_break_beside_it(show, width):
    """Ids at their hyphens, names of parameters at their dots."""
    words = ("Appendix", "Generalisations hold substantially. " * 5, "", "loss, 0.12 of 0.13\n" * 3, "holds", "")
    name = "transformer.embeddings.position_embeddings.weight"
    values = dataclasses.replace(table(), rows=(("degeneration-of-the-bound", 1, 0.5, name), (name, 2, 0.5, None)))
    made = document((figure(), values))
    claims = dataclasses.replace(made.claims, rows=(("degeneration-of-the-bound", *words), *made.claims.rows))
    shown = show(dataclasses.replace(made, claims=claims), width=width)
    assert broken_words(shown, ".claims .id, .claims .place, .claims td, .sheet td") == []
    assert fits(shown)


def test_names_are_text_wherever_they_appear(show):
    made = figure(lines=[line(NASTY), Line("bound " + NASTY, (1.0, 20.0), (1.0, 1.0), reference=True)])
    made = dataclasses.replace(made, title=NASTY, y=Axis(NASTY), x=Axis(NASTY))
    shown = show(document((made,)))
    chart = drawn(shown, "loss")
    chart.locator(".numbers summary").click()
    assert "<b>bold</b>" in chart.locator(".lines button").first.text_content()
    assert "<b>bold</b>" in chart.locator(".gtitle").text_content()
    assert "<b>bold</b>" in chart.locator(".numbers td").first.text_content()
    assert not chart.locator("b, script").count()


def test_on_paper_all_is_open_and_drawn_and_nothing_is_left_to_press(show):
    shown = show(whole(), color_scheme="dark")
    shown.emulate_media(media="print")
    shown.evaluate("dispatchEvent(new Event('beforeprint'))")
    shown.wait_for_function("document.querySelectorAll('.plot .main-svg').length >= 2 * 12")
    assert shown.locator(".unfold:not([open]), .words:not([open])").count() == 0
    assert shown.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert shown.locator("#figure-7 .plot").evaluate("plot => plot.data.at(-1).line.color") == "#d55e00"
    assert not shown.locator(".scales").first.is_visible()
    shown.evaluate("dispatchEvent(new Event('afterprint'))")
    assert shown.locator(".unfold[open]").count() == 0
    assert shown.pdf().startswith(b"%PDF")


def test_a_quick_run_says_so_in_every_figure(show):
    shown = show(document(quick=True))
    drawn(shown, "loss")
    assert shown.locator(".quick-banner").is_visible()
    assert shown.locator(".frame").count() == shown.locator(".frame .quick-mark:visible").count() == 2
