"""Tensors on a CPU as the Triton backend sees them: it takes their steps, and Triton's interpreter runs its kernels."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch

from matrix_adagrad.optim.step import triton as backend
from matrix_adagrad.optim.step.dispatch import NATIVE

__all__ = ["backend_takes_cpu_tensors", "choose_interpreter", "interpreted"]


@contextlib.contextmanager
def backend_takes_cpu_tensors() -> Iterator[None]:
    """Steps of tensors on a CPU are taken by the Triton backend wherever the C kernels would take them."""
    devices = mock.patch.object(backend, "DEVICES", ("cuda", "cpu"))
    with devices, mock.patch.object(type(NATIVE), "runs_on", return_value=False):
        yield


def choose_interpreter() -> str:
    """Have Triton interpret its kernels, and return why it cannot. It decides when it is imported."""
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        return "Triton has been imported without its interpreter: set TRITON_INTERPRET=1"
    os.environ["TRITON_INTERPRET"] = "1"
    reason = backend.missing()
    return f"{reason}: pip install triton" if reason else ""


@contextlib.contextmanager
def interpreted() -> Iterator[None]:
    """Kernels run in Triton's interpreter, which rounds to bfloat16 as the hardware does and not by cutting off."""
    from triton.runtime import interpreter

    convert = interpreter._convert_float

    def converted(data: Any, source: Any, target: Any, rounding: Any) -> Any:
        if (source.name, target.name) != ("fp32", "bf16"):
            return convert(data, source, target, rounding)
        x = torch.frombuffer(bytearray(data.astype("float32").tobytes()), dtype=torch.float32)
        return x.bfloat16().view(torch.int16).numpy().view("uint16").reshape(data.shape)

    with backend_takes_cpu_tensors(), mock.patch.object(interpreter, "_convert_float", converted):
        yield
