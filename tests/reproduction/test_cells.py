"""What is kept of a cell is found again, if nothing that it depends on has changed, and is never damaged."""

import json
import math
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from reproduction import cells
from reproduction.cells import Store
from reproduction.games import identities, motivating, theorems
from reproduction.movielens import factorisation
from reproduction.networks import mlp
from reproduction.pool import Pool
from reproduction.structure import cost, regret, training
from tests.reproduction.movielens.fakes import ratings
from tests.reproduction.processes import ENVIRONMENT

SMALL = [
    motivating.Config(3, 2, 2),
    theorems.Config(rounds=5),
    identities.Config(3, 2, 2),
    mlp.Config(depth=2, steps=3, seeds=(0, 1)),
    factorisation.Config(
        (factorisation.Run("row", (0,), (0.1, 1e30)),), batch=64, epochs=2, measured=(2,), trained=(2,)
    ),
]


@pytest.fixture(autouse=True)
def _drawn(monkeypatch):
    drawn = ratings()
    monkeypatch.setattr(factorisation, "_ratings", lambda _: drawn)


@pytest.mark.parametrize("cell", SMALL, ids=lambda cell: type(cell).__module__.rpartition(".")[2])
def test_a_result_is_kept_exactly(cell, tmp_path):
    store, result = Store(tmp_path), cells.run(cell)
    assert store.load(cell) is None
    store.save(result)
    assert store.load(cell) == result
    others = {"m": 5, "lr": 1.0, "depth": 3, "decay": 1.0}
    name = next(name for name in others if hasattr(cell, name))
    assert store.load(replace(cell, **{name: others[name]})) is None


def test_infinite_numbers_are_kept(tmp_path):
    result = cells.run(SMALL[-1])
    assert result.held_out[0][0][1][-1] == math.inf
    Store(tmp_path).save(result)
    assert Store(tmp_path).load(SMALL[-1]) == result


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"result": {}}', "cut", "altered"])
def test_a_damaged_file_is_as_good_as_none(damage, tmp_path):
    store, cell = Store(tmp_path), SMALL[0]
    store.save(cells.run(cell))
    (file,) = tmp_path.iterdir()
    text = file.read_text(encoding="utf-8")
    changed = {"cut": text[: len(text) // 2], "altered": text.replace('"regret": ', '"regret": 1')}.get(damage, damage)
    assert changed != text
    file.write_text(changed, encoding="utf-8")
    assert store.load(cell) is None
    with Pool(store, 1) as pool:
        assert pool.run([cell])[cell] == store.load(cell)


@pytest.mark.parametrize("what", ["version", "torch", "code", "kernels"])
def test_results_of_another_version_are_not_found(what, tmp_path, monkeypatch):
    store, cell = Store(tmp_path), SMALL[0]
    store.save(cells.run(cell))
    cells.dependency_hash.cache_clear()
    if what == "version":
        monkeypatch.setattr(cells, "__version__", "another")
    elif what == "torch":
        monkeypatch.setattr(torch, "__version__", "another")
    elif what == "kernels":
        monkeypatch.setattr(cells.native, "LIBRARY", None)
    else:
        read = Path.read_text
        monkeypatch.setattr(
            Path, "read_text", lambda file, encoding: read(file, encoding) + "#" * (file.name == "partitions.py")
        )
    found = store.load(cell)
    monkeypatch.undo()
    cells.dependency_hash.cache_clear()
    assert found is None
    assert store.load(cell) is not None


def test_a_change_of_one_experiment_leaves_the_others_alone(monkeypatch):
    def fingerprints():
        cells.dependency_hash.cache_clear()
        modules = (mlp, motivating, theorems, regret, training, cost)
        return {module: cells.dependency_hash(module) for module in modules} | {"all": cells.source_hash()}

    def changed_by(name):
        before, read = fingerprints(), Path.read_text
        monkeypatch.setattr(Path, "read_text", lambda file, encoding: read(file, encoding) + "#" * (file.name == name))
        after = fingerprints()
        monkeypatch.undo()
        cells.dependency_hash.cache_clear()
        return {name for name in before if before[name] != after[name]}

    assert changed_by("mlp.py") == {mlp, "all"}
    assert changed_by("planted.py") == {regret, training, "all"}


def test_a_pool_runs_the_longest_cells_first_and_keeps_each_result(tmp_path):
    seen, store = [], Store(tmp_path)
    with Pool(store, 1, seen.append) as pool:
        results = pool.run(SMALL[:3])
    assert [result.config for result in seen] == sorted(SMALL[:3], key=lambda cell: -cell.cost)
    assert results == {cell: store.load(cell) for cell in SMALL[:3]}


@pytest.mark.separate_process
def test_several_workers_give_the_same_bytes_as_one(tmp_path):
    configs = [motivating.Config(m, 2, 2) for m in (2, 3, 4)] + [mlp.Config(depth=3, steps=4, seeds=(0, 1))]
    for workers in (1, 2):
        with Pool(Store(tmp_path / str(workers)), workers) as pool:
            pool.run(configs)
    serial, parallel = ({file.name: file.read_bytes() for file in (tmp_path / w).iterdir()} for w in "12")
    assert serial == parallel


@pytest.mark.separate_process
def test_an_error_of_a_cell_is_told_and_the_others_are_kept(tmp_path):
    good, bad = motivating.Config(2, 2, 2), motivating.Config(2, 2, 2, "diagonal")
    store = Store(tmp_path)
    with Pool(store, 2) as pool:
        pool.run([good])
        with pytest.raises(ValueError, match="diagonal"):
            pool.run([bad])
    assert store.load(good) is not None


@pytest.mark.separate_process
@pytest.mark.parametrize("signal_", [signal.SIGINT, signal.SIGKILL])
def test_workers_do_not_outlive_a_run_that_ends_early(signal_, tmp_path):
    program = textwrap.dedent("""
        import sys
        from pathlib import Path
        from reproduction.networks import mlp
        from reproduction.cells import Store
        from reproduction.pool import Pool

        if __name__ == "__main__":
            import signal
            signal.signal(signal.SIGINT, signal.default_int_handler)
            with Pool(Store(Path(sys.argv[1])), 2, lambda _: print("one is done", flush=True)) as pool:
                pool.run([mlp.Config(depth=2, steps=steps) for steps in (2, 10**9)])
    """)
    file = tmp_path / "program.py"
    file.write_text(program, encoding="utf-8")
    command = [sys.executable, file, tmp_path / "cells"]
    run = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert run.stdout.readline() == b"one is done\n"
    workers = subprocess.run(["pgrep", "-P", str(run.pid)], capture_output=True, encoding="utf-8").stdout.split()
    assert len(workers) >= 2
    run.send_signal(signal_)
    run.wait(20)
    run.stdout.close()
    assert run.returncode != 0
    until = time.monotonic() + 20
    while any(_lives(int(worker)) for worker in workers):
        assert time.monotonic() < until
        time.sleep(0.1)
    assert len(list((tmp_path / "cells").iterdir())) == 1


def _lives(process):
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_kept_file_says_what_it_is_of(tmp_path):
    Store(tmp_path).save(cells.run(SMALL[3]))
    (file,) = tmp_path.iterdir()
    assert file.name.startswith("mlp-")
    assert json.loads(file.read_text(encoding="utf-8"))["config"]["depth"] == 2
