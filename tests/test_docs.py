"""Every Python block of the README and of the documentation runs as printed."""

import json
import re
import runpy
from pathlib import Path

import pytest

from matrix_adagrad import __version__
from matrix_adagrad.experiments.claims import CLAIMS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# Pages whose code needs other packages: tests/integration/test_docs.py runs it.
ELSEWHERE = {"migrating-torchrec.md", "optax.md", "trainers.md"}


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def run(page):
    names = {"__name__": "docs"}
    for number, code in enumerate(blocks(page, "python")):
        exec(compile(code, f"{page.name}, block {number}", "exec"), names)


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in ELSEWHERE], ids=lambda page: page.name)
def test_code_runs_as_printed(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(page)


@pytest.mark.parametrize(("page", "number"), [("README.md", 1), ("docs/muon.md", 0)])
def test_the_page_prints_what_its_example_prints(page, number, capsys):
    example, printed = blocks(ROOT / page, "python")[number], blocks(ROOT / page, "text")[0]
    exec(example, {})
    assert capsys.readouterr().out == printed


def test_the_readme_has_the_claims_of_the_published_run():
    publish = runpy.run_path(str(ROOT / "docs" / "publish.py"))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    published = json.loads((ROOT / "docs" / "results" / "claims.json").read_text(encoding="utf-8"))
    assert publish["with_claims"](readme, published) == readme
    assert [claim["id"] for claim in published["claims"]] == [claim.id for claim in CLAIMS]
    assert not published["quick"]


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_pictures_are_drawn_from_the_geometries_as_they_are():
    for name, draw in runpy.run_path(str(ROOT / "docs" / "pictures.py"))["PICTURES"].items():
        assert (ROOT / "docs" / "pictures" / name).read_text(encoding="utf-8") == draw()


def test_the_changelog_begins_with_the_version():
    assert re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)[1] == __version__


def test_every_page_is_in_the_table_of_contents():
    contents = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for page in PAGES[1:]:
        assert page.stem == "index" or f"\n{page.stem}\n" in contents
