"""The examples run as they are; each checks its own result."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

# Run below, by test_frameworks.py, test_migration.py and, under torchrun, test_elastic.py and test_embedding_shards.py.
ELSEWHERE = {"nonnegative_movielens", "fsdp2_train", "embedding_shards", "leave_torchrec"}
ELSEWHERE |= {"accelerate_train", "lightning_train", "transformers_train"}

if "INTEGRATIONS" not in os.environ:
    pytest.skip("it needs what examples need, and fetches MovieLens: make test-integrations", allow_module_level=True)


def run(name, *arguments):
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / f"{name}.py", *arguments], capture_output=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", sorted({path.stem for path in EXAMPLES.glob("*.py")} - ELSEWHERE))
def test_the_example_runs(name):
    assert run(name)


def test_movielens_is_factorised_into_non_negative_factors():
    free, inside = (float(line.split("RMSE ")[1].split(",")[0]) for line in run("nonnegative_movielens").splitlines())
    assert free < 1.0
    assert inside < 1.0


def test_films_are_recommended_with_their_titles(tmp_path, monkeypatch):
    from matrix_adagrad.datasets.movielens import movielens

    data = movielens()
    columns = (data.users + 1, data.items + 1, data.ratings, data.timestamps)
    lines = ("\t".join(map(str, row)) for row in zip(*(column.tolist() for column in columns), strict=True))
    (tmp_path / "u.data").write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "u.item").write_text("\n".join(f"{n}|Título {n}|01-Jan-1995||" for n in range(1, 1683)), "latin-1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # these titles are not for other runs
    printed = run("recommender", tmp_path, "42")
    errors = [float(error) for error in re.findall(r"RMSE (.*)", printed)]
    assert len(errors) == 10
    assert errors[-1] < 0.93
    seen = set((data.items[data.users == 41] + 1).tolist())
    films = [int(film) for film in re.findall(r"Título (\d+): ", printed.partition("Person 42 may like")[2])]
    assert len(films) == 5
    assert not seen & set(films)
