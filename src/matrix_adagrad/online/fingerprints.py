"""Tells runs apart: a ``repr`` with everything that an object is made of, including the contents of tensors."""

from __future__ import annotations

import ctypes
import zlib
from typing import Any

from torch import Tensor

__all__ = ["fingerprint", "full_repr"]


def fingerprint(*tensors: Tensor) -> str:
    """A checksum of the tensors' contents."""
    total = 0
    for x in tensors:
        data = x.detach().cpu().contiguous()
        total = zlib.crc32(ctypes.string_at(data.data_ptr(), data.nbytes), total)
    return f"{total:08x}"


def full_repr(instance: Any) -> str:
    """The class of an object and all of its attributes, tensors by their fingerprints."""
    shown = {name: fingerprint(v) if isinstance(v, Tensor) else repr(v) for name, v in vars(instance).items()}
    return f"{type(instance).__name__}({', '.join(f'{name}={value}' for name, value in shown.items())})"
