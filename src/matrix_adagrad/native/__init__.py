"""The C kernels and their loader. They are optional: without a C compiler at installation there are none."""

from __future__ import annotations

import ctypes
import functools
import importlib.machinery
import logging
import os
import struct
from pathlib import Path

import torch

__all__ = [
    "DTYPES",
    "INTERFACE",
    "LIBRARY",
    "MOST_ROWS",
    "MOVE",
    "NO_MEMORY",
    "READ",
    "RULE",
    "TENSOR_FIELDS",
    "load",
    "missing",
    "threads",
]

# The dtypes that the kernels know, and their numbers.
DTYPES = {dtype: i for i, dtype in enumerate((torch.float32, torch.float64, torch.bfloat16, torch.float16))}

# A table with a sparse gradient has fewer: a row and its place share 64 bits.
MOST_ROWS = 1 << 32

# The number of the interface of kernels.h, and its structs: `tensor`, with so many fields of 8 bytes, and `rule`.
INTERFACE = 1
TENSOR_FIELDS = 25
RULE = "5d4qQ"

# What a step does to its tensors: one of both is asked for where parts of a block lie on other machines.
READ, MOVE = 1, 2

# What can be wrong with bags that are to be summed, besides their rows.
NO_MEMORY = 2

# Where the installation leaves the library; the suffix is that of Python's own extensions.
LIBRARY = next(
    (
        path
        for suffix in importlib.machinery.EXTENSION_SUFFIXES
        if (path := Path(__file__).with_name(f"_kernels{suffix}")).exists()
    ),
    None,
)

_logger = logging.getLogger("matrix_adagrad")


@functools.cache
def missing() -> str:
    """Why there are no native kernels, in words; empty if there are. The first to ask is told by a warning too."""
    reason = ""
    if LIBRARY is None:
        reason = "they were not built: install from the sources, with a C compiler that knows OpenMP"
    else:
        try:
            load()
        except (OSError, AttributeError) as error:
            reason = f"{LIBRARY.name} cannot be loaded ({error})"
    if reason:
        _logger.warning("matrix-adagrad runs without its native kernels, on torch's operators: %s", reason)
    return reason


@functools.cache
def load() -> ctypes.CDLL:
    """The library; torch must be imported before, so that both share its threads."""
    library = ctypes.CDLL(str(LIBRARY))
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_Process.forked)
    library.matrix_adagrad_layout.restype = ctypes.c_int64
    if library.matrix_adagrad_layout() != INTERFACE << 48 | 8 * TENSOR_FIELDS << 32 | struct.calcsize(RULE):
        raise OSError("it is of another version: reinstall")
    pointer, number, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
    signatures = {
        "step": (number, [pointer, number, ctypes.c_char_p, number, number, pointer, number]),
        "sparse_step": (number, [pointer, number, ctypes.c_char_p, number, pointer, number]),
        "sum_bags": (number, [pointer, *[number] * 4, pointer, number, pointer, number, pointer, number]),
        "use_at_most": (None, [number]),
        "shrink": (None, [pointer, pointer, number, number, real, pointer, number]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, f"matrix_adagrad_{name}")
        function.restype, function.argtypes = result, arguments
    return library


class _Process:
    """Whether this process is a fork of one that had loaded the kernels."""

    is_fork = False

    @classmethod
    def forked(cls) -> None:
        cls.is_fork = True


def threads() -> int:
    """How many threads share the work of a kernel: as many as torch uses, but one in a fork.

    A fork has a single thread, while OpenMP still counts on those of its parent and would wait for them forever.
    """
    return 1 if _Process.is_fork else torch.get_num_threads()
