"""The documentation in a real browser: Chromium, without a window and without a network."""

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from contextlib import closing

import pytest

from tests.integration.pages import fits
from tests.test_docs import PAGES, ROOT

if "INTEGRATIONS" not in os.environ:
    pytest.skip("it builds the site and starts a browser: make test-integrations", allow_module_level=True)
pytest.importorskip("sphinx", reason="Sphinx is not installed: make test-integrations")

VERSIONS = runpy.run_path(str(ROOT / "docs" / "versions.py"))
NAMES = sorted({page.stem for page in PAGES[1:]} | {"api", "genindex", "search"})


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The site of two versions, of which the older one lacks a page."""
    site = tmp_path_factory.mktemp("site")
    arguments = ["-W", "--keep-going", "-q", "-b", "html", "-d", site / "doctrees", ROOT / "docs", site / "0.10.0"]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *arguments],
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert done.returncode == 0, done.stderr
    shutil.rmtree(site / "doctrees")
    shutil.copytree(site / "0.10.0", site / "0.9.0")
    (site / "0.9.0" / "inside.html").unlink()
    VERSIONS["write"](site)
    return site


@pytest.fixture
def visit(browser, built):
    """Opens a page, and checks at the end that the console stayed silent and nothing came from outside the site."""
    complaints, contexts = [], []

    def visit(name, version="0.10.0", width=1280, **options):
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, **options))
        shown = contexts[-1].new_page()
        shown.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        shown.on("pageerror", lambda error: complaints.append(str(error)))
        shown.on("request", lambda asked: asked.url.startswith(built.as_uri()) or complaints.append(asked.url))
        shown.goto((built / version / f"{name}.html").as_uri())
        return shown

    yield visit
    for context in contexts:
        context.close()
    assert not complaints


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", NAMES)
def test_nothing_scrolls_sideways_but_tables_code_and_plots(visit, name, width):
    shown = visit(name, width=width)
    assert fits(shown)
    cut = shown.locator("article table, article pre, article img").evaluate_all("""all => all.filter(one => {
        if (one.getBoundingClientRect().right <= document.documentElement.clientWidth) return false;
        for (let box = one; box; box = box.parentElement)
            if (["auto", "scroll"].includes(getComputedStyle(box).overflowX)) return false;
        return true;
    }).map(one => one.outerHTML.slice(0, 200))""")
    assert not cut


def test_pictures_follow_the_colours_that_the_reader_chooses(visit):
    """With the theme's switch, whatever the system prefers: the picture asks the page."""
    shown = visit("index", color_scheme="light")
    picture = shown.locator(".card img").first

    def colours():
        return shown.evaluate("getComputedStyle(document.body).backgroundColor"), picture.screenshot()

    light = colours()
    shown.evaluate("document.body.dataset.theme = 'dark'")
    dark = colours()
    assert light[0] != dark[0]
    assert light[1] != dark[1]
    assert shown.evaluate("getComputedStyle(document.querySelector('.card img')).colorScheme") == "dark"


def test_versions_are_offered_and_lead_to_the_same_page_if_there_is_one(visit):
    shown = visit("geometry")
    select = shown.locator(".versions select")
    assert select.locator("option").all_text_contents() == ["0.10.0", "0.9.0"]
    assert select.locator("option:checked").text_content() == "0.10.0"
    select.select_option(label="0.9.0")
    shown.wait_for_url("**/0.9.0/geometry.html")
    assert shown.locator(".versions option:checked").text_content() == "0.9.0"
    shown = visit("inside")
    shown.locator(".versions select").select_option(label="0.9.0")
    shown.wait_for_url("**/0.9.0/index.html")


def test_one_version_alone_offers_nothing(visit, built):
    listed = (built / "versions.js").read_text(encoding="utf-8")
    pages = json.loads(re.search(r"{.*}", listed)[0])
    (built / "versions.js").write_text(f"window.VERSIONS = {json.dumps({'0.10.0': pages['0.10.0']})};", "utf-8")
    try:
        shown = visit("index")
        shown.wait_for_function("window.VERSIONS")
        assert shown.locator(".versions").count() == 0
    finally:
        (built / "versions.js").write_text(listed, "utf-8")


def test_the_front_of_the_site_goes_to_the_newest_version(visit):
    shown = visit("../index")
    shown.wait_for_url("**/0.10.0/index.html")


def test_search_finds_a_name(browser, built):
    """Its excerpts need a server: opened from a disk, the browser forbids it to fetch them, and says so."""
    with closing(browser.new_page()) as shown:
        shown.goto((built / "0.10.0" / "index.html").as_uri())
        shown.locator(".sidebar-search").fill("keep_rows_current")
        shown.locator(".sidebar-search").press("Enter")
        shown.wait_for_selector("#search-results li a")
        found = shown.locator("#search-results li a").evaluate_all("all => all.map(one => one.getAttribute('href'))")
    assert any("optimizers.html" in address or "api.html" in address for address in found)
