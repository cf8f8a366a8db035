"""A browser for the tests that need one, and what opens a report in it."""

import shutil

import pytest

from matrix_adagrad.pages import html_page


@pytest.fixture(scope="session")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make test-integrations")
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no browser: none of chromium, chromium-browser and google-chrome is on the path")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def show(browser, tmp_path):
    """Opens a document, and checks at the end that the console stayed silent and nothing was fetched."""
    complaints, contexts = [], []

    def show(made, width=1280, height=900, **options):
        path = tmp_path / "report.html"
        path.write_text(html_page.render(made), encoding="utf-8")
        contexts.append(browser.new_context(viewport={"width": width, "height": height}, **options))
        shown = contexts[-1].new_page()
        shown.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        shown.on("pageerror", lambda error: complaints.append(str(error)))
        shown.on("dialog", lambda dialog: complaints.append(dialog.message))
        shown.on("request", lambda request: request.url == path.as_uri() or complaints.append(request.url))
        shown.goto(path.as_uri())
        return shown

    yield show
    for context in contexts:
        context.close()
    assert not complaints
