"""The examples run as they are; each checks its own result."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
# Run by `make test-integrations`, and by tests/distributed, under torchrun.
ELSEWHERE = {"nonnegative_movielens", "embedding_shards", "fsdp2_train", "jax_rows"}


@pytest.mark.separate_process
@pytest.mark.parametrize("name", sorted({path.stem for path in EXAMPLES.glob("*.py")} - ELSEWHERE))
def test_the_example_runs(name):
    run = subprocess.run([sys.executable, "-W", "error", EXAMPLES / f"{name}.py"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout


def test_examples_are_short():
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text().splitlines()) < 80
