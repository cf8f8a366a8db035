"""The examples run as they are; each checks its own result."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
PAGE = EXAMPLES.parent / "docs" / "examples.md"
# Run by `make test-integrations`, because of what they need or fetch, and by tests/distributed, under torchrun.
ELSEWHERE = {
    "accelerate_train",
    "embedding_shards",
    "fsdp2_train",
    "jax_rows",
    "leave_torchrec",
    "lightning_train",
    "nonnegative_movielens",
    "recommender",
    "transformers_train",
}


@pytest.mark.separate_process
@pytest.mark.parametrize("name", sorted({path.stem for path in EXAMPLES.glob("*.py")} - ELSEWHERE))
def test_the_example_runs(name):
    run = subprocess.run([sys.executable, "-W", "error", EXAMPLES / f"{name}.py"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout


def test_examples_are_short():
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text().splitlines()) < 80


def test_the_page_lists_every_example_and_no_other():
    listed = re.findall(r"^\| \[`(\w+)\.py`\]", PAGE.read_text(), flags=re.MULTILINE)
    assert sorted(listed) == sorted(path.stem for path in EXAMPLES.glob("*.py"))
