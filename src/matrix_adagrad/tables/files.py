"""Tensors in files that are mapped into memory, for tables that are larger than it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from pathlib import Path
from secrets import token_hex

import torch
from torch import Tensor

from matrix_adagrad.optim.step.update import empty_like

__all__ = ["empty_as", "empty_in_file", "folder_of"]


def empty_in_file(folder: Path, shape: Sequence[int], dtype: torch.dtype, like: Tensor | None = None) -> Tensor:
    """Zeros in a new file, laid out as a tensor ``like``. The file has no name: it is gone when the tensor is."""
    entries = math.prod(shape)
    if not entries:
        return torch.empty(tuple(shape), dtype=dtype, device="cpu")
    file = folder / f".table.{token_hex(8)}"
    try:
        flat = torch.from_file(str(file), shared=True, size=entries, dtype=dtype, device="cpu")
    finally:
        with contextlib.suppress(OSError):  # some systems keep the names of mapped files
            file.unlink()
    order = sorted(range(len(shape)), key=lambda d: 0 if like is None else -like.stride()[d])
    in_memory = flat.view([shape[d] for d in order])
    return in_memory.permute([order.index(d) for d in range(len(shape))])


def folder_of(x: Tensor) -> Path | None:
    """The folder with the file that a tensor is mapped from; ``None`` for a tensor in memory."""
    name = x.untyped_storage().filename if x.is_cpu else None
    return None if name is None else Path(name).parent


def empty_as(x: Tensor, shape: Sequence[int]) -> Tensor:
    """An empty tensor where ``x`` is, in memory or in a file, and laid out as ``x``."""
    folder = folder_of(x)
    return empty_like(x, tuple(shape), x.dtype) if folder is None else empty_in_file(folder, shape, x.dtype, x)
