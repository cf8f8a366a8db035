"""The C kernels and their loader. They are optional: without a C compiler at installation there are none."""

from __future__ import annotations

import ctypes
import functools
import importlib.machinery
import logging
import struct
from pathlib import Path

import torch

__all__ = ["DTYPES", "LIBRARY", "MOST_ROWS", "MOVE", "READ", "RULE", "TENSOR_FIELDS", "load", "missing"]

# The dtypes that the kernels know, and their numbers.
DTYPES = {dtype: i for i, dtype in enumerate((torch.float32, torch.float64, torch.bfloat16, torch.float16))}

# A table with a sparse gradient has fewer: a row and its place share 64 bits.
MOST_ROWS = 1 << 32

# The structs `tensor`, with so many fields of 8 bytes, and `rule` of kernels.h.
TENSOR_FIELDS = 25
RULE = "5d4qQ"

# What a step does to its tensors: one of both is asked for where parts of a block lie on other machines.
READ, MOVE = 1, 2

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
    library.matrix_adagrad_layout.restype = ctypes.c_int64
    if library.matrix_adagrad_layout() != 8 * TENSOR_FIELDS << 32 | struct.calcsize(RULE):
        raise OSError("it is of another version: reinstall")
    pointer, number, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
    signatures = {
        "step": (number, [pointer, number, ctypes.c_char_p, number, number]),
        "sparse_room": (number, [pointer, number, number]),
        "sparse_step": (None, [pointer, number, ctypes.c_char_p, number, pointer]),
        "sum_bags": (number, [pointer, *[number] * 4, pointer, number, pointer, number, pointer, number]),
        "use_at_most": (None, [number]),
        "shrink": (None, [pointer, pointer, number, number, real, pointer, number]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, f"matrix_adagrad_{name}")
        function.restype, function.argtypes = result, arguments
    return library
