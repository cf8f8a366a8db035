"""Checks on saved state. Files get edited and mixed up, so every value is checked before anything changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from matrix_adagrad.version import __version__

__all__ = [
    "FORMAT",
    "FORMAT_KEY",
    "SHAPE",
    "STEP",
    "check_array",
    "check_count",
    "check_format",
    "check_shape",
    "plain",
    "words_for_lost",
    "words_for_other_rows",
]

FORMAT_KEY = "state_format"  # in each saved group
# 1: the first edition's, which saved no number. 2: shapes where the state does not tell them, counters of rows, and
# averages that may be absent or bfloat16.
FORMAT = 2
STEP = "step"
_MOST_STEPS = 1 << 53  # the most that a float can count
SHAPE = "shape"  # the parameter's shape, saved where the rest of the state does not determine it


def plain(value: Any) -> Any:
    """The same value with Python numbers, also inside dicts, lists and tuples: files hold no others, such as NumPy's.

    >>> plain({"lr": 0.1, "betas": (0.9, 0.99)})
    {'lr': 0.1, 'betas': (0.9, 0.99)}
    """
    if type(value) is dict:
        return {key: plain(inner) for key, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    if type(value) in (int, float, bool) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def check_format(saved_group: Mapping[str, Any]) -> None:
    """Check that this version can read a saved group and the state of its parameters.

    >>> check_format({"lr": 0.1})  # of the first edition
    >>> check_format({"lr": 0.1, FORMAT_KEY: FORMAT})
    """
    found = saved_group.get(FORMAT_KEY, 1)
    if isinstance(found, bool) or not isinstance(found, int) or found < 1:
        raise ValueError(f"the saved {FORMAT_KEY!r} must be a whole number, at least 1, but is {found!r}")
    if found > FORMAT:
        raise ValueError(
            f"the saved state has format {found}, and matrix-adagrad {__version__} reads formats up to {FORMAT}: "
            "install the version that saved it, or a newer one; nothing was loaded"
        )


def check_count(value: Any) -> None:
    """Check the number of steps."""
    number = value
    if isinstance(value, Tensor) and value.numel() == 1 and not (value.is_complex() or value.is_meta):
        number = value.item()
    is_valid = isinstance(number, int | float) and 0 <= number <= _MOST_STEPS and number == int(number)
    _require(is_valid, STEP, "one whole number, at least 0", value)


def check_array(key: str, value: Any, is_complex: bool) -> None:
    """Check a statistic or an average of gradients. The geometry checks its shape."""
    is_array = isinstance(value, Tensor) and value.layout is torch.strided
    is_valid = is_array and (value.is_complex() if is_complex else value.is_floating_point())
    _require(is_valid, key, f"a dense {'complex' if is_complex else 'floating-point'} tensor", value)


def check_shape(value: Any, shape: tuple[int, ...]) -> None:
    """Check the parameter's saved shape, which older versions did not save."""
    if value is None:
        return
    is_shape = isinstance(value, Tensor) and value.dim() == 1 and value.dtype is torch.int64
    _require(is_shape, SHAPE, "a vector of int64", value)
    if tuple(value.tolist()) != shape:
        raise ValueError(
            f"the saved parameter is of shape {tuple(value.tolist())}, but here it has shape {shape}"
            f"{words_for_other_rows(value.tolist(), shape)}"
        )


def words_for_other_rows(saved: Sequence[int], here: Sequence[int]) -> str:
    """What to do if a saved table has another number of rows; nothing if it differs in more."""
    if not (saved and here) or saved[0] == here[0] or tuple(saved[1:]) != tuple(here[1:]):
        return ""
    return f"; if the table gained or lost rows, load into one of {saved[0]} rows and call resize_table then"


def words_for_lost(average: str, group: Mapping[str, Any]) -> str:
    """What to do about an average that a saved run had, and that was not loaded into an optimizer made without one."""
    option = "betas" if "betas" in group else "momentum"
    return (
        f"the saved run had {option}={group[option]}, but what was loaded of its state has no {average!r}: make the "
        f"optimizer with the {option} of the saved run, load, and edit it then"
    )


def _require(is_valid: bool, key: str, kind: str, value: Any) -> None:
    if not is_valid:
        shown = repr(value)
        if isinstance(value, Tensor) and value.numel() != 1:
            shown = f"a tensor of shape {tuple(value.shape)}, {value.dtype}, {value.layout}"
        raise ValueError(f"the saved {key!r} must be {kind}, but is {shown}")
