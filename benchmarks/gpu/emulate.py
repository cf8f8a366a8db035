"""Tensors on a CPU as the Triton backend sees them: it takes their steps in place of the C kernels."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

from matrix_adagrad.optim.step import triton as backend
from matrix_adagrad.optim.step.dispatch import NATIVE

__all__ = ["backend_takes_cpu_tensors"]


@contextlib.contextmanager
def backend_takes_cpu_tensors() -> Iterator[None]:
    """Steps of tensors on a CPU are taken by the Triton backend wherever the C kernels would take them."""
    devices = mock.patch.object(backend, "DEVICES", ("cuda", "cpu"))
    with devices, mock.patch.object(type(NATIVE), "runs_on", lambda *_: False):
        yield
