"""The benchmark for devices runs from end to end where there is none, in Triton's interpreter."""

import math

import pytest
import torch

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import checks, times
from benchmarks.gpu.emulate import interpreted
from benchmarks.gpu.launches import kernels
from benchmarks.gpu.options import make, parameter

ROW = {"geometry": "row", "family": "AdaGrad", "shape": (5, 16)}


def test_the_command_checks_every_kernel_and_times_every_peer(tmp_path, capsys):
    assert command.main(["--interpret", "--rounds", "2", "--out", str(tmp_path)]) == 0, capsys.readouterr().err
    page = (tmp_path / "gpu.md").read_text(encoding="utf-8")
    assert page.strip() in capsys.readouterr().out
    assert all(f"| `{name}` |" in page for name in kernels())
    assert "differ**" not in page
    assert "not run" not in page
    for case in times.SMALL_CASES:
        assert case.title[1:] in page
    for name in {**times.DENSE, **times.SPARSE}:
        assert f"| {name} |" in page
        assert f"| {name} | – |" not in page  # a gap


def test_a_kernel_that_is_wrong_is_found():
    with interpreted():
        optimizer = make(ROW, [parameter(ROW)], fused=True)
        reference = make(ROW, [parameter(ROW)], foreach=False)
        optimizer.step()
        reference.step()
        assert checks.distance(optimizer, reference, ROW) <= 1
        param = optimizer.param_groups[0]["params"][0]
        param.data[2, 3] *= 1.0001
        assert checks.distance(optimizer, reference, ROW) > 1
        param.data[2, 3] = torch.nan
        assert checks.distance(optimizer, reference, ROW) == math.inf


def test_a_kernel_that_no_check_runs_is_named():
    (check,) = [checks.Check(ROW, 0.0, ("step_tiles",))]
    assert checks.unreached([check]) == set(kernels()) - {"step_tiles"}
    assert "not run" in checks.table([check])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_command_says_what_it_needs(tmp_path, capsys):
    assert command.main(["--out", str(tmp_path)]) == 1
    assert "torch sees no GPU" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
