"""Triton is optional, and imported by the first step of a tensor on a GPU. A meta tensor stands for one here."""

import importlib
import logging
import subprocess
import sys
import types

import pytest
import torch

from matrix_adagrad import RowAdaGrad
from matrix_adagrad.optim.step import triton as backend
from matrix_adagrad.optim.step.dispatch import FOREACH, TRITON


@pytest.fixture
def on_meta(monkeypatch, caplog):
    """A step of an optimizer with tensors that the backend takes for those of a GPU."""
    caplog.set_level(logging.WARNING, "matrix_adagrad")
    monkeypatch.setattr(backend, "DEVICES", ("meta",))
    cached = (backend.missing, backend.failure, backend._logged, backend._kernels)
    for function in cached:
        function.cache_clear()

    def step():
        param = torch.nn.Parameter(torch.empty(4, 3, device="meta"))
        optimizer = RowAdaGrad([param], lr=0.1)
        for _ in range(2):
            param.grad = torch.empty_like(param)
            optimizer.step()
        (cache,) = optimizer._kept
        return cache

    yield step
    for function in cached:
        function.cache_clear()


@pytest.mark.separate_process
def test_a_step_on_a_cpu_imports_no_kernels():
    """Torch's own optimizers import Triton with their compiler."""
    program = (
        "import sys, torch, matrix_adagrad as m; p = torch.nn.Parameter(torch.ones(4, 3)); p.grad = torch.ones(4, 3);"
        "m.RowAdaGrad([p]).step(); m.SteepestDescent([p]).step();"
        "print([name for name in sys.modules if name.startswith('matrix_adagrad.optim.step.triton')])"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, encoding="utf-8", check=True)
    modules = ["matrix_adagrad.optim.step.triton_tensors", "matrix_adagrad.optim.step.triton"]
    assert said.stdout.strip() == str(modules), said.stderr


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (None, "Triton is not installed"),
        (types.SimpleNamespace(__version__="3.4.0+git"), "Triton 3.4.0+git is older than 3.5"),
        (types.SimpleNamespace(__version__="3.9.0"), "Triton does not work here (RuntimeError: no compiler)"),
    ],
    ids=["none", "old", "broken"],
)
def test_where_triton_cannot_run_foreach_does_and_the_logger_says_so_once(monkeypatch, caplog, on_meta, module, reason):
    def kernels():
        raise RuntimeError("no compiler")

    monkeypatch.setitem(sys.modules, "triton", module)
    monkeypatch.setattr(backend, "_kernels", kernels)
    stepped = []
    monkeypatch.setattr(type(FOREACH), "move", lambda _, updates, __: stepped.extend(updates))
    for _ in range(2):
        on_meta()
    assert len(stepped) == 4
    assert [record.getMessage() for record in caplog.records] == [f"{reason}: steps on a GPU run on torch's operators"]


@pytest.mark.usefixtures("on_meta")
def test_a_differentiable_step_is_for_torchs_operators(monkeypatch):
    monkeypatch.setattr(importlib, "import_module", lambda name: pytest.fail(f"{name} is imported"))
    param = torch.empty(4, 3, device="meta")
    optimizer = RowAdaGrad([param], lr=torch.tensor(0.1), differentiable=True)
    param.grad = torch.empty_like(param)
    optimizer.step()
    assert TRITON.runs_on(param.device)
