"""Sums of squares, in a dtype wide enough for them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["lean_sum_squares", "sum_squares", "wide_dtype"]

_WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.complex32: torch.complex64}


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of statistics and arithmetic: float32 or wider, since sums in bfloat16 stall (256 + 1 = 256)."""
    return _WIDE.get(dtype, dtype)


def sum_squares(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """The sum of squared magnitudes over ``dims``, which stay as dimensions of size 1."""
    squares = x.abs().square() if x.is_complex() else x.square()
    return squares.sum(dims, keepdim=True) if dims else squares  # torch reads empty dims as all of them


# On a CPU, torch's norm sums float32 in a fixed number of running sums: accurate for this many terms, and fastest.
_SHORT = 1 << 14
# Longer blocks, and columns, are squared and summed in pieces of this many entries, which stay in cache.
_PIECE = 1 << 18


def lean_sum_squares(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """`sum_squares` up to rounding, without a temporary of the tensor's size."""
    if not dims or torch.compiler.is_compiling():  # the compiler fuses the square and the sum into one loop
        return sum_squares(x, dims)
    short_rows = 0 not in dims and math.prod([x.shape[d] for d in dims]) <= _SHORT
    if short_rows or x.device.type != "cpu":
        norm: Tensor = torch.linalg.vector_norm(x, 2, dims, keepdim=True)
        return norm.square()
    shape = [1 if d in dims else size for d, size in enumerate(x.shape)]
    total = torch.zeros(shape, dtype=x.dtype.to_real(), device=x.device)
    _add_squares(x, dims, total)
    return total


def _add_squares(x: Tensor, dims: tuple[int, ...], total: Tensor) -> None:
    """Add the squares of ``x``, summed over ``dims``, to ``total``: piece by piece along the first dimension."""
    if x.numel() <= _PIECE:
        total.add_(sum_squares(x, dims))
        return
    together = _PIECE // (x.numel() // x.shape[0])
    for i in range(0, x.shape[0], max(1, together)):
        if together:
            _add_squares(x[i : i + together], dims, total if 0 in dims else total[i : i + together])
        else:  # even one slice is too large: recurse along its first dimension
            _add_squares(x[i], tuple(d - 1 for d in dims if d), total[0 if 0 in dims else i])
