"""The library of kernels: what it needs besides its tensors, and what happens where it cannot be loaded."""

import ctypes
import logging
import resource
import subprocess
import sys

import pytest
import torch

from matrix_adagrad import MatrixMomentum, RowAdaGrad, native
from matrix_adagrad.optim.step import native as native_backend
from tests.optim.training import assert_bitwise, make_grads, make_params

pytestmark = pytest.mark.skipif(bool(native.missing()), reason=f"no native kernels: {native.missing()}")

MEASURED = """
import os, resource, sys, torch
from matrix_adagrad import MatrixAdaGrad, MatrixMomentum

def measure(cls, options, geometry):
    x = torch.nn.Parameter(torch.ones(20000, 1000))
    x.grad = torch.ones_like(x)
    optimizer = cls([x], geometry=geometry, fused=True, **options)
    optimizer.init_state()
    for state in optimizer.state[x].values():
        state.add_(0)  # its pages are there
    small = torch.nn.Parameter(torch.ones(300, 1000))
    small.grad = torch.ones_like(small)
    cls([small], geometry=geometry, fused=True).step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    optimizer.step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before

for case in eval(sys.argv[1]):  # each in a process of its own, since the peak of a process never falls
    if (child := os.fork()) == 0:
        print(case, measure({"adagrad": MatrixAdaGrad, "momentum": MatrixMomentum}[case[0]], *case[1:]), sep="=")
        sys.stdout.flush()
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit(f"{case} failed")
"""
MEASURED_CASES = [
    (cls, options, geometry)
    for cls, options in (("adagrad", {}), ("momentum", {"weight_decay": 0.1}))
    for geometry in ("row", "column", "entry", "whole")
]


@pytest.fixture(name="extra_kilobytes", scope="module")
def _extra_kilobytes():
    """What a large step of each case needs, by one program that imports torch once."""
    command = [sys.executable, "-c", MEASURED, repr(MEASURED_CASES)]
    run = subprocess.run(command, stdout=subprocess.PIPE, encoding="utf-8", check=True)
    return dict(line.split("=") for line in run.stdout.splitlines())


@pytest.mark.separate_process
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in kilobytes on Linux only")
@pytest.mark.parametrize("case", MEASURED_CASES, ids=lambda case: f"{case[0]}-{case[1]}-{case[2]}")
def test_a_step_needs_less_than_a_megabyte_whatever_the_size(case, extra_kilobytes):
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert int(extra_kilobytes[str(case)]) < 1024


def test_without_kernels_steps_run_on_torchs_operators_and_say_so_once(monkeypatch, caplog):
    monkeypatch.setattr(native, "LIBRARY", None)
    native.missing.cache_clear()
    try:
        (x,) = make_params(torch.float32, [(6, 4)])
        optimizer = RowAdaGrad([x])
        with caplog.at_level(logging.WARNING, logger="matrix_adagrad"):
            for t in range(3):
                (x.grad,) = make_grads([x], t)
                optimizer.step()
        assert [record.getMessage() for record in caplog.records] == [
            "matrix-adagrad runs on torch's operators, without its native kernels: "
            "they were not built: install from source, with a C compiler that supports OpenMP"
        ]
        with pytest.raises(RuntimeError, match="fused=True needs the native kernels: .*; or leave fused=None"):
            RowAdaGrad([x], fused=True)
    finally:
        monkeypatch.undo()
        native.missing.cache_clear()


def test_a_library_that_cannot_be_loaded_is_as_none(monkeypatch, tmp_path):
    broken = tmp_path / "_kernels.so"
    broken.write_bytes(b"not a library")
    monkeypatch.setattr(native, "LIBRARY", broken)
    for cached in (native.missing, native.load):
        cached.cache_clear()
    try:
        assert "_kernels.so cannot be loaded" in native.missing()
    finally:
        monkeypatch.undo()
        for cached in (native.missing, native.load):
            cached.cache_clear()


def test_a_library_with_another_interface_is_refused(monkeypatch):
    monkeypatch.setattr(native, "INTERFACE", native.INTERFACE + 1)
    with pytest.raises(OSError, match=r"it belongs to another version, with interface (\d+) instead of \d+: reinstall"):
        native.load.__wrapped__()


def test_a_library_with_other_fields_is_refused(monkeypatch):
    fields, other = list(native.TENSOR.items()), ("other", "double")
    for others in (fields[:3] + fields[4:], [*fields[:3], other, *fields[3:]], fields[:-1], [*fields, other]):
        at = next(i for i in range(99) if fields[i : i + 1] != others[i : i + 1])
        own, expected = (" ".join(reversed((*some, ("no field",))[at])) for some in (fields, others))
        monkeypatch.setattr(native, "TENSOR", dict(others))
        refusal = f"it belongs to another version: its tensor has {own}, not {expected}: reinstall"
        with pytest.raises(OSError, match=refusal):
            native.load.__wrapped__()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda fields: fields | {"warmup": "double"}, "its config has no field, not double warmup"),
        (
            lambda fields: {k: fields[k] for k in fields if k != "eps"},
            "its config has double eps, not double weight_decay",
        ),
        (lambda fields: fields | {"eps": "int64_t"}, "its config has double eps, not int64_t eps"),
        (lambda fields: dict(reversed(fields.items())), "its config has double lr, not uint64_t seed"),
    ],
    ids=["one more", "one fewer", "another type", "another order"],
)
def test_a_library_whose_options_have_other_names_types_or_another_order_is_refused(change, words, monkeypatch):
    monkeypatch.setattr(native, "_config", change(native._config))
    with pytest.raises(OSError, match=f"it belongs to another version: {words}: reinstall"):
        native.load.__wrapped__()


@pytest.mark.parametrize("geometry", ["row", "column", "entry", "whole"])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_without_memory_to_work_in_no_step_is_taken(geometry, is_sparse, monkeypatch):
    x, y = make_params(torch.float32, [(600, 900), (6, 4)])
    for param in (x, y):
        param.grad = torch.ones_like(param).to_sparse(1) if is_sparse else torch.ones_like(param)
    optimizer = MatrixMomentum([y, x], geometry=geometry, fused=True)
    optimizer.init_state()
    before = [value.clone() for param in (x, y) for value in (param, *optimizer.state[param].values())]
    monkeypatch.setattr(native_backend, "_workspace", native_backend._Workspace())

    def empty(*_, **__):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    with monkeypatch.context() as without:
        without.setattr(torch, "empty", empty)
        with pytest.raises(MemoryError, match="no step was taken: it needs .* bytes"):
            optimizer.step()
    after = [value for param in (x, y) for value in (param, *optimizer.state[param].values())]
    assert_bitwise(before, after)
    optimizer.step()
    assert not torch.equal(x, before[0])


def test_the_kernels_share_torchs_threads():
    """One OpenMP runtime in the process: two would fight for the cores."""
    if sys.platform != "linux":
        pytest.skip("the maps of a process are a matter of Linux")
    native.load()
    with open("/proc/self/maps", encoding="utf-8") as maps:
        runtimes = {line.split("/", 1)[1].strip() for line in maps if "gomp" in line or "libomp" in line}
    assert len(runtimes) == 1, runtimes
    assert isinstance(native.load(), ctypes.CDLL)
