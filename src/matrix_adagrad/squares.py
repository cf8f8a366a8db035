"""Sums of squares without a temporary of the tensor's size."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from matrix_adagrad.geometry import sum_squares

__all__ = ["lean_sum_squares"]

# On a CPU, torch's norm adds up float32 in a fixed number of running sums: good for this many terms, and the fastest.
_SHORT = 1 << 14
# Longer blocks, and columns, are squared and summed piece by piece: the entries of a piece, which stays in the cache.
_PIECE = 1 << 18


def lean_sum_squares(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """What `sum_squares` gives, up to rounding."""
    if not dims or torch.compiler.is_compiling():  # the compiler makes one loop of the square and the sum
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
        else:  # even one slice is too large: go on along its own first dimension
            _add_squares(x[i], tuple(d - 1 for d in dims if d), total[0 if 0 in dims else i])
