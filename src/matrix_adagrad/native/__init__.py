"""The C kernels and their loader. They are optional: without a C compiler at installation there are none."""

from __future__ import annotations

import ctypes
import functools
import importlib.machinery
import logging
import struct
from pathlib import Path

__all__ = ["LIBRARY", "MOVE", "READ", "RULE", "TENSOR_FIELDS", "load", "missing"]

# The structs `tensor`, with so many fields of 8 bytes, and `rule` of kernels.h.
TENSOR_FIELDS = 23
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
    for function, others in ((library.matrix_adagrad_step, [ctypes.c_int64]), (library.matrix_adagrad_sparse_step, [])):
        function.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_char_p, ctypes.c_int64, *others]
        function.restype = ctypes.c_int64
    library.matrix_adagrad_shrink.argtypes = [
        *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64),
        *(ctypes.c_double, ctypes.c_void_p, ctypes.c_int64),
    ]
    library.matrix_adagrad_shrink.restype = None
    return library
