"""What a saved state may hold: each value is checked before anything changes, for files are edited, and mixed up."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

__all__ = ["SHAPE", "STEP", "check_array", "check_count", "check_shape"]

STEP = "step"
SHAPE = "shape"  # of the parameter: it is saved where the rest of a state does not tell it


def check_count(name: str, value: Any) -> None:
    """The number of steps."""
    number = value
    if isinstance(value, Tensor) and value.numel() == 1 and not (value.is_complex() or value.is_meta):
        number = value.item()
    if not (isinstance(number, int | float) and math.isfinite(number) and number >= 0):
        raise ValueError(
            f"{name}: the saved {STEP!r} must be one number, at least 0, and it is {_shown(value)}; nothing was loaded"
        )


def check_array(name: str, key: str, value: Any, is_complex: bool) -> None:
    """A statistic, or an average of gradients; its shape is the geometry's affair."""
    if (
        not isinstance(value, Tensor)
        or value.layout is not torch.strided
        or value.is_complex() != is_complex
        or not (is_complex or value.is_floating_point())
    ):
        kind = "complex" if is_complex else "floating-point"
        raise ValueError(
            f"{name}: the saved {key!r} must be a dense {kind} tensor, and it is {_shown(value)}; nothing was loaded"
        )


def check_shape(name: str, value: Any, shape: tuple[int, ...]) -> None:
    """The parameter's shape when it was saved; older versions did not save it."""
    if value is None:
        return
    if not isinstance(value, Tensor) or value.dim() != 1 or value.dtype is not torch.int64:
        raise ValueError(
            f"{name}: the saved {SHAPE!r} must be a vector of int64, and it is {_shown(value)}; nothing was loaded"
        )
    if tuple(value.tolist()) != shape:
        raise ValueError(
            f"{name}: the saved state is of a parameter of shape {tuple(value.tolist())}, and here it has shape "
            f"{shape}; nothing was loaded"
        )


def _shown(value: Any) -> str:
    if isinstance(value, Tensor) and value.numel() != 1:
        return f"a tensor of shape {tuple(value.shape)}, {value.dtype}, {value.layout}"
    return repr(value)
