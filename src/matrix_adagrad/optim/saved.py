"""Checks on saved state. Files get edited and mixed up, so every value is checked before anything changes."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

__all__ = ["SHAPE", "STEP", "check_array", "check_count", "check_shape", "plain"]

STEP = "step"
_MOST_STEPS = 1 << 53  # the most that a float can count
SHAPE = "shape"  # the parameter's shape, saved where the rest of the state does not determine it


def plain(value: Any) -> Any:
    """The same value with Python numbers, also inside dicts, lists and tuples: files hold no others, such as NumPy's.

    >>> plain({"lr": 0.1, "betas": (0.9, 0.99)})
    {'lr': 0.1, 'betas': (0.9, 0.99)}
    """
    if type(value) is dict:
        return {key: plain(one) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    if type(value) in (int, float, bool) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def check_count(name: str, value: Any) -> None:
    """Check the number of steps."""
    number = value
    if isinstance(value, Tensor) and value.numel() == 1 and not (value.is_complex() or value.is_meta):
        number = value.item()
    if not (isinstance(number, int | float) and 0 <= number <= _MOST_STEPS and number == int(number)):
        raise ValueError(
            f"{name}: the saved {STEP!r} must be one whole number, at least 0, but is {_shown(value)}; "
            "nothing was loaded"
        )


def check_array(name: str, key: str, value: Any, is_complex: bool) -> None:
    """Check a statistic or an average of gradients. The geometry checks its shape."""
    if (
        not isinstance(value, Tensor)
        or value.layout is not torch.strided
        or value.is_complex() != is_complex
        or not (is_complex or value.is_floating_point())
    ):
        kind = "complex" if is_complex else "floating-point"
        raise ValueError(
            f"{name}: the saved {key!r} must be a dense {kind} tensor, but is {_shown(value)}; nothing was loaded"
        )


def check_shape(name: str, value: Any, shape: tuple[int, ...]) -> None:
    """Check the parameter's saved shape, which older versions did not save."""
    if value is None:
        return
    if not isinstance(value, Tensor) or value.dim() != 1 or value.dtype is not torch.int64:
        raise ValueError(
            f"{name}: the saved {SHAPE!r} must be a vector of int64, but is {_shown(value)}; nothing was loaded"
        )
    if tuple(value.tolist()) != shape:
        raise ValueError(
            f"{name}: the saved state is for a parameter of shape {tuple(value.tolist())}, but here it has shape "
            f"{shape}; nothing was loaded"
        )


def _shown(value: Any) -> str:
    if isinstance(value, Tensor) and value.numel() != 1:
        return f"a tensor of shape {tuple(value.shape)}, {value.dtype}, {value.layout}"
    return repr(value)
