"""What tells one run from another: words for a game or a scheme that say all that it is made of."""

from __future__ import annotations

import ctypes
import zlib
from typing import Any

from torch import Tensor

__all__ = ["describe", "fingerprint"]


def fingerprint(*tensors: Tensor) -> str:
    """A short name for the tensors' contents."""
    total = 0
    for x in tensors:
        data = x.detach().cpu().contiguous()
        total = zlib.crc32(ctypes.string_at(data.data_ptr(), data.nbytes), total)
    return f"{total:08x}"


def describe(thing: Any) -> str:
    """The class of a thing and its attributes; tensors by their contents."""
    shown = {name: fingerprint(v) if isinstance(v, Tensor) else repr(v) for name, v in vars(thing).items()}
    return f"{type(thing).__name__}({', '.join(f'{name}={value}' for name, value in shown.items())})"
