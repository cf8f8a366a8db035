"""Triton's interpreter, which runs kernels on a CPU. It has to be chosen before Triton is imported."""

import os

import numpy as np
import pytest
import torch

from matrix_adagrad.optim.step import triton as backend
from matrix_adagrad.optim.step import triton_tensors

WANTED = os.environ.get("TRITON_INTERPRET") == "1"
REASON = "Triton's interpreter is not on: make test-integrations"
collect_ignore_glob = [] if WANTED else ["test_*.py"]


def interpret() -> None:
    """Let the backend take tensors on a CPU, and correct what the interpreter does otherwise than the hardware."""
    from triton.runtime import interpreter

    backend.DEVICES = ("cuda", "cpu")
    convert = interpreter._convert_float

    def converted(data, source, target, rounding):
        """To bfloat16, the interpreter cuts off; hardware rounds to nearest, ties to even."""
        if (source.name, target.name) != ("fp32", "bf16"):
            return convert(data, source, target, rounding)
        x = torch.from_numpy(np.ascontiguousarray(data, dtype=np.float32))
        return x.bfloat16().view(torch.int16).numpy().view(np.uint16)

    interpreter._convert_float = converted


if WANTED:
    interpret()


@pytest.fixture
def small_tiles(monkeypatch):
    """Tiles so small that a matrix of a few rows and columns has many of them, of every kind."""
    sizes = {"TILE": 32, "LONGEST": 32, "SUMMED_TILE": 32, "SUMMED_COLUMNS": 8, "PROGRAMS": 2, "TALLEST": 4}
    for name, size in {**sizes, "FINISHED": 32}.items():
        monkeypatch.setattr(triton_tensors, name, size)
    monkeypatch.setattr(backend, "RUN", 4)
