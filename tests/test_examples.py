"""The examples are short, and the documentation lists them all; tests/integration/test_examples.py runs them."""

import re
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"
PAGE = EXAMPLES.parent / "docs" / "examples.md"


def test_examples_are_short():
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) < 80


def test_the_page_lists_every_example_and_no_other():
    listed = re.findall(r"^\| \[`(\w+)\.py`\]", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert sorted(listed) == sorted(path.stem for path in EXAMPLES.glob("*.py"))
