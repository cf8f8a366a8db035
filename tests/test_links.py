"""Links between the pages lead to a page, a heading or a file that is there. Those to other sites are not followed."""

import re

import pytest

from tests.test_docs import PAGES, ROOT

DOCS = ROOT / "docs"
LINK = re.compile(r"(!?)\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)")


def prose(page):
    """The page without its code."""
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"^ *```\w+\n.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", lambda code: "·" * len(code[0]), text)


def slug(heading):
    """The anchor that GitHub and MyST give a heading."""
    heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", heading).replace(" ", "-")


def anchors(page, deepest):
    """The anchors of a page's headings down to a level; a heading that comes twice has a number."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    found = [slug(words) for marks, words in re.findall(r"^(#+) (.*)$", text, re.MULTILINE) if len(marks) <= deepest]
    return {f"{name}-{found[:i].count(name)}" if name in found[:i] else name for i, name in enumerate(found)}


@pytest.fixture(scope="module")
def deepest():
    """How far down the site makes anchors, from docs/conf.py."""
    conf = (DOCS / "conf.py").read_text(encoding="utf-8")
    return int(re.search(r"^myst_heading_anchors = (\d)$", conf, re.MULTILINE)[1])


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"], ids=lambda page: page.name)
def test_links_lead_to_pages_and_headings(page, deepest):
    found = [target for _, target in LINK.findall(prose(page)) if not re.match(r"(https?|mailto):", target)]
    for target in found:
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{target} is not there"
        assert ROOT in file.parents, f"{target} leads out of the repository"
        if anchor:
            assert file.suffix == ".md", f"{target}: only pages have headings"
            assert anchor in anchors(file, deepest), f"{target}: {file.name} has no such heading"
        if page.parent == DOCS and file.suffix == ".md":
            assert file.parent == DOCS, f"{target} is not a page of the site"


def test_all_links_are_seen():
    """What looks like a link and is none of those that the test above follows."""
    for page in PAGES:
        text = prose(page)
        assert text.count("](") == len(LINK.findall(text)), page.name


def test_pictures_say_what_they_show():
    """Except those on cards, whose text does."""
    for page in PAGES:
        for words in re.findall(r"!\[([^\]]*)\]", re.sub(r"\{container\} card\n!\[\]", "", prose(page))):
            assert len(words) > 20, page.name


def test_links_to_other_sites_are_encrypted():
    for page in PAGES:
        assert "](http:" not in page.read_text(encoding="utf-8"), page.name
