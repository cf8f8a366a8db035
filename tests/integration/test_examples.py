"""The examples that fetch data."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "nonnegative_movielens.py"


@pytest.mark.skipif("INTEGRATIONS" not in os.environ, reason="it fetches MovieLens: make test-integrations")
def test_movielens_is_factorised_into_non_negative_factors():
    run = subprocess.run([sys.executable, "-W", "error", EXAMPLE], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    free, inside = (float(line.split("RMSE ")[1].split(",")[0]) for line in run.stdout.splitlines())
    assert free < 1.0
    assert inside < 1.0
