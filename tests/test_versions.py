"""The versions of the site side by side: docs/versions.py."""

import json
import re
import runpy

import pytest

from tests.test_docs import ROOT

VERSIONS = runpy.run_path(str(ROOT / "docs" / "versions.py"))


@pytest.fixture
def site(tmp_path):
    for version in ("0.9.0", "0.10.0", "1.0.0rc1", "1.0.0", "static", "1.0"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "index.html").touch()
    (tmp_path / "1.0.0" / "new.html").touch()
    return tmp_path


def test_versions_are_listed_from_the_newest_on_with_their_pages(site):
    VERSIONS["write"](site)
    listed = re.fullmatch(r"window\.VERSIONS = (.*);\n", (site / "versions.js").read_text(encoding="utf-8"))
    versions = json.loads(listed[1])
    assert list(versions) == ["1.0.0", "1.0.0rc1", "0.10.0", "0.9.0"]
    assert versions["1.0.0"] == ["index.html", "new.html"]
    assert versions["0.9.0"] == ["index.html"]


def test_the_front_leads_to_the_newest_version(site):
    VERSIONS["write"](site)
    front = (site / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"(?:url|href)=\"?([^\"]+)\"", front) == ["1.0.0/index.html"] * 2


def test_the_makefile_builds_the_folder_of_this_version():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "-b html -d build/doctrees docs site/$(VERSION)\n\t@$(BIN)/python docs/versions.py site\n" in makefile
