"""Heat maps in a real browser: Chromium, without a window and without a network."""

import dataclasses
import os

import pytest

from matrix_adagrad.pages.document import Axis, Plate
from tests.integration.pages import LONG, drawn, fits
from tests.pages.documents import NASTY, document, grid, heat_map

if "INTEGRATIONS" not in os.environ:
    pytest.skip("it starts a browser: make test-integrations", allow_module_level=True)


def colours(chart):
    """The colours' numbers of each grid, and the range that they have in common."""
    return chart.locator(".plot").evaluate(
        "plot => [plot.data.map(trace => trace.z), plot._fullLayout.coloraxis.cmin, plot._fullLayout.coloraxis.cmax]"
    )


def alone(*parts, **changes):
    return document(parts, leading=(), claims=None, files=False, **changes)


def test_a_page_of_heat_maps_alone_has_neither_claims_nor_files_and_draws_them_when_they_are_near(show):
    shown = show(alone(*(heat_map(f"scales-{i}") for i in range(5))))
    chart = drawn(shown, "scales-0")
    assert not shown.locator(".claims, .tally, .files, .lines").count()
    assert not shown.locator("#scales-4 .main-svg").count()
    assert drawn(shown, "scales-4").locator(".plot .heatmaplayer image").count() == 2
    shown.keyboard.press("Tab")
    assert shown.evaluate("document.activeElement.textContent") == "Skip the contents"
    assert chart.locator(".plot").get_attribute("aria-label").endswith("Shown: parameter: layer.0.")


def test_plates_are_chosen_from_buttons_or_a_list_and_each_has_colours_of_its_own(show):
    plates = tuple(Plate(f"layer.{i}", (grid(rows=i + 1), grid("by column", rows=1))) for i in range(12))
    shown = show(alone(heat_map(plates=plates[:8], start=1), heat_map("many", plates=plates, start=11)))
    chart, many = drawn(shown, "scales"), drawn(shown, "many")
    assert chart.get_by_role("radio", name="layer.1").is_checked()
    chart.get_by_role("radio", name="layer.1").focus()
    shown.keyboard.press("ArrowRight")
    values, low, high = colours(chart)
    assert [len(rows) for rows in values] == [3, 1]
    assert (low, high) == pytest.approx((-2.9, 0))
    assert chart.locator(".plot").get_attribute("aria-label").endswith("Shown: parameter: layer.2.")
    assert len(colours(many)[0][0]) == 12
    many.get_by_role("combobox", name="parameter").select_option("layer.5")
    assert len(colours(many)[0][0]) == 6


def test_gaps_are_grey_and_named_and_what_is_not_positive_is_one_on_a_logarithmic_scale(show):
    odd = dataclasses.replace(grid(rows=1, columns=4), values=((0.01, 0.0, 100.0, 1.0),))
    shown = show(alone(heat_map(grids=[odd], count=1), heat_map("gaps", grids=[grid(gaps=[(0, 0)])], log=False)))
    chart = drawn(shown, "scales")
    assert colours(chart) == [[[[-2, None, 2, 0]]], -2, 2]
    assert chart.get_by_text("No value").is_visible()
    chart.get_by_role("button", name="log colours").focus()
    shown.keyboard.press("Enter")
    assert colours(chart) == [[[[0.01, 0, 100, 1]]], 0, 100]
    assert not chart.get_by_text("No value").is_visible()
    gaps = drawn(shown, "gaps")
    assert gaps.get_by_text("No value").is_visible()
    assert gaps.locator(".plot").evaluate("plot => plot._fullLayout.plot_bgcolor") == "#d5d7da"
    shown.emulate_media(color_scheme="dark")
    shown.wait_for_timeout(200)
    assert gaps.locator(".plot").evaluate("plot => plot._fullLayout.plot_bgcolor") == "#4b4e54"


def test_the_value_of_a_cell_is_shown_under_the_pointer_and_in_a_matrix(show):
    shown = show(alone(heat_map(grids=[grid(rows=3, columns=3, gaps=[(0, 0)])], count=1)))
    chart = drawn(shown, "scales")
    area = chart.locator(".nsewdrag")
    area.hover()
    shown.wait_for_selector("#scales .hoverlayer .hovertext")
    assert chart.locator(".hoverlayer").text_content() == "step 20row 1mean square 0.04642"
    area.hover(position={"x": 5, "y": 5})
    shown.wait_for_function("document.querySelector('#scales .hoverlayer').textContent.endsWith('no value')")
    chart.locator(".numbers summary").click()
    rows = chart.locator(".numbers tbody tr")
    rows.first.wait_for()
    assert rows.nth(0).locator("td").all_text_contents() == ["0", "", "0.4642", "0.2154"]
    assert chart.locator(".numbers thead th").all_text_contents()[1:] == ["10", "20", "30"]
    assert chart.locator(".numbers caption").text_content() == "by row"


@pytest.mark.parametrize("width", [360, 390, 768, 1280])
def test_no_heat_map_is_wider_than_the_screen(show, width):
    grids = [grid(LONG, y=Axis(LONG)), grid(x=Axis("step", log=True), columns=60)]
    plates = tuple(Plate(f"{i}.{LONG}", tuple(grids)) for i in range(9))
    parts = heat_map(plates=plates, scale=LONG), heat_map("few", plates=plates[:3], selector=LONG)
    shown = show(alone(*parts, quick=True), width=width, height=740)
    for name in ("scales", "few"):
        drawn(shown, name).locator(".numbers summary").click()
        left, right = (shown.locator(f"#{name} .nsewdrag").nth(i).bounding_box() for i in range(2))
        assert (left["x"] + left["width"] < right["x"]) == (width > 736)
        assert (left["y"] + left["height"] < right["y"]) == (width <= 736)
    assert fits(shown)


def test_names_in_heat_maps_are_text_wherever_they_appear(show):
    made = grid(NASTY, x=Axis(NASTY), y=Axis(NASTY))
    chart = drawn(show(alone(heat_map(scale=NASTY, plates=(Plate(NASTY, (made,)),) * 2))), "scales")
    chart.locator(".numbers summary").click()
    chart.locator(".nsewdrag").hover()
    chart.locator(".hoverlayer .hovertext").wait_for()
    for place in (".hoverlayer", ".infolayer", ".numbers caption", ".choice"):
        assert "<b>bold</b>" in chart.locator(place).first.text_content()
    assert not chart.locator("b, script").count()


def test_heat_maps_print_side_by_side_in_the_colours_of_paper(show):
    shown = show(alone(heat_map(), heat_map("far")), width=390, color_scheme="dark")
    shown.emulate_media(media="print")
    shown.evaluate("dispatchEvent(new Event('beforeprint'))")
    shown.wait_for_selector("#far .main-svg")
    found = shown.locator("#far .plot").evaluate(
        "plot => [plot._fullLayout.plot_bgcolor, plot._fullLayout.yaxis2.domain]"
    )
    assert found == ["#d5d7da", [0, 1]]
    assert shown.pdf().startswith(b"%PDF")
