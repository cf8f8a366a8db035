"""The C kernels and their loader. They are optional: without a C compiler at installation there are none."""

from __future__ import annotations

import ctypes
import functools
import importlib.machinery
import itertools
import logging
import os
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

__all__ = [
    "DTYPES",
    "FEATURE",
    "INTERFACE",
    "LIBRARY",
    "MOST_ROWS",
    "MOVE",
    "NO_MEMORY",
    "READ",
    "TENSOR",
    "expect_config",
    "load",
    "missing",
    "pack_config",
    "threads",
]

# The dtypes that the kernels support, and their codes in C.
DTYPES = {dtype: i for i, dtype in enumerate((torch.float32, torch.float64, torch.bfloat16, torch.float16))}

# A table with a sparse gradient must have fewer rows: a row and its position share 64 bits.
MOST_ROWS = 1 << 32

# The version of the functions' interface.
INTERFACE = 5

# The fields of the struct `tensor` of kernels.h, and their types.
_ARRAYS = {"data": "pointer", "batch": "int64_t", "outer": "int64_t", "inner": "int64_t"}
TENSOR = {
    **{f"{array}.{part}": of for array in ("x", "g", "average", "statistic") for part, of in _ARRAYS.items()},
    **dict.fromkeys(("outer", "inner", "kind", "dtype"), "int64_t"),
    "step": "pointer",
    "step_is_f64": "int64_t",
    "index": "pointer",
    "nnz": "int64_t",
    "divisor": "int64_t",
    "sums": "pointer",
    "stream": "uint64_t",
    "offsets": "pointer",
    "bags": "int64_t",
    "offset": "int64_t",
    "weights": "pointer",
    "touched": "pointer",
    "matrices": "int64_t",
    **{f"{array}.{part}": of for array in ("columns", "whole") for part, of in _ARRAYS.items()},
    **dict.fromkeys(("columns_divisor", "whole_divisor", "combine"), "int64_t"),
}

# Those of the struct `feature`.
FEATURE = {"table": "pointer", **dict.fromkeys(("rows", "columns", "row_stride", "column", "is_mean"), "int64_t")}

# Those of the struct `config` of update.h: the configuration of an update says what they are.
_config: dict[str, str] = {}
_FORMATS = {"double": "d", "int64_t": "q", "uint64_t": "Q"}  # of `struct`

# The two halves of a step. They run separately if parts of a block are on other machines.
READ, MOVE = 1, 2

# What `sum_bags` returns if it runs out of memory.
NO_MEMORY = -1

# Where the installation puts the library. Its suffix is that of Python's own extensions.
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
    """Why the native kernels are missing; an empty string if they are not. The first call also logs a warning."""
    reason = ""
    if LIBRARY is None:
        reason = "they were not built: install from source, with a C compiler that supports OpenMP"
    else:
        try:
            load()
        except (OSError, AttributeError) as error:
            reason = f"{LIBRARY.name} cannot be loaded ({error})"
    if reason:
        _logger.warning("matrix-adagrad runs on torch's operators, without its native kernels: %s", reason)
    return reason


@functools.cache
def load() -> ctypes.CDLL:
    """Load the library. Torch must be imported first, so that both share its threads."""
    library = ctypes.CDLL(str(LIBRARY))
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_Process.forked)
    library.matrix_adagrad_interface.restype = ctypes.c_int64
    library.matrix_adagrad_fields.restype, library.matrix_adagrad_fields.argtypes = ctypes.c_char_p, [ctypes.c_int64]
    if (found := library.matrix_adagrad_interface()) != INTERFACE:
        raise OSError(f"it belongs to another version, with interface {found} instead of {INTERFACE}: reinstall")
    for i, (name, expected) in enumerate({"config": _config, "tensor": TENSOR, "feature": FEATURE}.items()):
        _check_fields(name, expected, library.matrix_adagrad_fields(i).decode())
    pointer, number, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
    signatures = {
        "step": (number, [ctypes.c_char_p, number, ctypes.c_char_p, number, number, pointer, number]),
        "sparse_step": (number, [ctypes.c_char_p, number, ctypes.c_char_p, number, pointer, number]),
        "bags_step": (
            number,
            [
                *(pointer, number, pointer, pointer, number, pointer, number, pointer, pointer, number),
                *(ctypes.c_char_p, number, pointer, number),
            ],
        ),
        "sum_bags": (
            number,
            [pointer, number, number, pointer, number, pointer, pointer, number, pointer, number, number],
        ),
        "check_bags": (number, [pointer, number, pointer, number, pointer, number, number]),
        "catch_up": (number, [ctypes.c_char_p, number, number]),
        "use_at_most": (None, [number]),
        "shrink": (None, [pointer, pointer, number, number, real, pointer, number]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, f"matrix_adagrad_{name}")
        function.restype, function.argtypes = result, arguments
    return library


def expect_config(fields: Mapping[str, str]) -> None:
    """Say which fields the struct `config` must have, in order, with their types in C. This is checked on loading."""
    _config.update(fields)


def _check_fields(name_of_struct: str, expected: Mapping[str, str], described: str) -> None:
    """Compare the fields that Python packs with the library's own description, ``name:type name:type …``."""
    found = [field.split(":") for field in described.split()]
    for own, needed in itertools.zip_longest(found, map(list, expected.items())):
        if own != needed:
            own, needed = (" ".join(reversed(field or ["no field"])) for field in (own, needed))
            raise OSError(f"it belongs to another version: its {name_of_struct} has {own}, not {needed}: reinstall")


@functools.cache
def _config_format() -> tuple[dict[str, type[float]], Callable[..., bytes]]:
    types = {name: float if type_ == "double" else int for name, type_ in _config.items()}
    return types, struct.Struct("".join(_FORMATS[type_] for type_ in _config.values())).pack


def pack_config(numbers: Mapping[str, Any]) -> bytes:
    """The struct `config` with these numbers, by name."""
    types, pack = _config_format()
    return pack(*[as_type(numbers[name]) for name, as_type in types.items()])


class _Process:
    """Whether this process is a fork of one that had loaded the kernels."""

    is_fork = False

    @classmethod
    def forked(cls) -> None:
        cls.is_fork = True


def threads() -> int:
    """How many threads share the work of a kernel: as many as torch uses, but only one in a forked process.

    A fork has a single thread. OpenMP would wait forever for those of its parent.
    """
    return 1 if _Process.is_fork else torch.get_num_threads()
