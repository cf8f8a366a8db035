"""Triton's interpreter, which runs kernels on a CPU. It has to be chosen before Triton is imported."""

import os

import numpy as np
import pytest
import torch

from matrix_adagrad.optim.step import triton as backend
from matrix_adagrad.optim.step import triton_tensors
from tests.triton.steps import Recorded


@pytest.fixture(scope="package", autouse=True)
def _interpreter():
    """Let the backend take tensors on a CPU, and correct what the interpreter does otherwise than the hardware."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("Triton's interpreter is not on: make test-integrations")
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    convert = interpreter._convert_float

    def converted(data, source, target, rounding):
        """To bfloat16, the interpreter cuts off; hardware rounds to nearest, ties to even."""
        if (source.name, target.name) != ("fp32", "bf16"):
            return convert(data, source, target, rounding)
        x = torch.from_numpy(np.ascontiguousarray(data, dtype=np.float32))
        return x.bfloat16().view(torch.int16).numpy().view(np.uint16)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(backend, "DEVICES", ("cuda", "cpu"))
        patched.setattr(interpreter, "_convert_float", converted)
        yield


@pytest.fixture
def small_tiles(monkeypatch):
    """Tiles so small that a matrix of a few rows and columns has many of them, of every kind."""
    sizes = {"TILE": 32, "LONGEST": 32, "SUMMED_TILE": 32, "SUMMED_COLUMNS": 8, "PROGRAMS": 2, "TALLEST": 4}
    for name, size in {**sizes, "FINISHED": 32}.items():
        monkeypatch.setattr(triton_tensors, name, size)
    monkeypatch.setattr(backend, "RUN", 4)


@pytest.fixture
def ran(monkeypatch):
    """The names of the kernels that ran."""
    assert not backend.failure(torch.device("cpu"))  # tried once
    recorded = Recorded()
    monkeypatch.setattr(backend, "_kernels", lambda: recorded)
    return recorded.ran
