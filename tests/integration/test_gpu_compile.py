"""Every Triton kernel compiles for real GPUs, on a machine without one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.launches import kernels
from benchmarks.gpu.options import AXES, covering, is_possible
from benchmarks.gpu.specialisations import TARGETS

pytest.importorskip("triton", reason="Triton is not installed: make test-integrations")
ROOT = Path(__file__).parents[2]
QUICK = ("sm_90", "gfx942")


@pytest.fixture(scope="module")
def compiled():
    """What the command says, in a process where Triton compiles instead of interpreting."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.gpu.compile", "--quick", "--json", "--targets", *QUICK]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, encoding="utf-8")
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("target", QUICK)
def test_every_kernel_of_the_backend_is_in_the_table(compiled, target):
    assert {own["kernel"] for own in compiled if own["target"] == target} == set(kernels())


def test_nothing_spills_and_no_sum_is_atomic(compiled):
    for own in compiled:
        assert 0 < own["registers"] <= 512, own
        assert not own["spilled_bytes"], own
        assert not own["atomics"], own


def test_aligned_rows_are_moved_16_bytes_at_a_time(compiled):
    tiles = [own for own in compiled if int(own["constants"].get("BLOCK_INNER", 0)) >= 64]
    aligned = [own for own in tiles if own["constants"]["ALIGNED"] == "True" and own["kernel"] == "step_tiles"]
    assert aligned
    for own in aligned:
        assert "16" in own["loads"], own
        assert "16" in own["stores"], own


def test_every_possible_pair_of_options_is_compiled():
    found = covering()
    for a in AXES:
        for b in AXES:
            if a < b:
                pairs = {(str(chosen[a]), str(chosen[b])) for chosen in found}
                possible = {(str(i), str(j)) for i in AXES[a] for j in AXES[b] if is_possible({a: i, b: j})}
                assert pairs >= possible, f"{a}, {b}: {possible - pairs}"


def test_targets_are_those_of_the_page():
    page = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
    assert all(target in page for target in TARGETS)
