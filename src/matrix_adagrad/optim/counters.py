"""The counters that ``lazy="exact"`` keeps for the rows of a parameter, in its state and in saved ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from matrix_adagrad.geometry import wide_dtype
from matrix_adagrad.optim.step.config import Config
from matrix_adagrad.optim.step.lazy import DECAY, LAST_DECAY, LAST_STEP
from matrix_adagrad.optim.step.update import is_sharded

__all__ = ["COUNTERS", "check_counters", "check_fits_exact", "counter_keys", "new_counter", "received_counter"]

COUNTERS = (LAST_STEP, LAST_DECAY, DECAY)


def counter_keys(config: Config, param: Tensor) -> tuple[str, ...]:
    """The keys of the counters that a parameter has: for what its rows can miss. A number has no rows."""
    if not param.dim():
        return ()
    return (LAST_STEP,) * config.keeps_last_steps + (LAST_DECAY, DECAY) * config.keeps_decays


def new_counter(key: str, param: Tensor, steps: Tensor | int) -> Tensor:
    """A counter for rows that are up to date after so many steps."""
    if key == DECAY:
        return torch.zeros((), dtype=torch.float64, device="cpu")
    if key == LAST_STEP:
        return torch.full((len(param),), int(steps), dtype=torch.int32, device=param.device)
    return torch.zeros(len(param), dtype=wide_dtype(param.dtype).to_real(), device=param.device)


def received_counter(key: str, value: Any, param: Tensor) -> Tensor:
    """A saved counter, in the form that it has here."""
    return new_counter(key, param, 0).copy_(torch.as_tensor(value))


def check_fits_exact(name: str, param: Tensor, group: Mapping[str, Any]) -> None:
    """Raise an error if what the rows of a parameter miss cannot be caught up row by row."""
    if is_sharded(param):
        raise ValueError(f"{name} is sharded, and lazy='exact' is for whole tables: use lazy='touched'")
    domain = group["domain"]
    if domain is None or param.is_meta or not param.dim():
        return
    if not domain.is_separable_by_rows(param.shape):
        raise ValueError(f"lazy='exact' cannot catch up rows one by one: {domain!r} ties those of {name} together")
    start = torch.zeros((), dtype=param.dtype, device=param.device).expand(param.shape)
    if group["weight_decay"] != 0 and not domain.contains(start):
        raise ValueError(
            f"lazy='exact' cannot catch up weight_decay={group['weight_decay']!r} of {name}: {domain!r} does not "
            "contain 0, and every step would project every row; set weight_decay=0, or lazy='touched'"
        )


def check_counters(saved: Mapping[str, Any], keys: tuple[str, ...], param: Tensor, steps: int) -> None:
    """Check the saved counters of a parameter that will have these, and that none which it will not have is needed."""
    for key in (key for key in COUNTERS if key in saved):
        value, shape = saved[key], () if key == DECAY else (len(param),)
        is_tensor = isinstance(value, Tensor) and value.layout is torch.strided and tuple(value.shape) == shape
        whole = key == LAST_STEP
        is_kind = is_tensor and (value.dtype in (torch.int32, torch.int64) if whole else value.is_floating_point())
        if not is_kind:
            kind = "whole numbers" if whole else "floating-point numbers"
            found = f"{tuple(value.shape)}, {value.dtype}" if isinstance(value, Tensor) else repr(value)
            raise ValueError(f"the saved {key!r} must be a dense tensor of {kind} of shape {shape}, but is {found}")
        most = steps if whole else torch.finfo(value.dtype).max
        if not ((value >= 0) & (value <= most)).all():
            raise ValueError(f"the saved {key!r} must be at least 0, and {f'at most {steps}' if whole else 'finite'}")
    if (LAST_DECAY in saved) != (DECAY in saved):
        raise ValueError(f"the saved state has one of {LAST_DECAY!r} and {DECAY!r}, which belong together")
    is_behind = (LAST_STEP in saved and LAST_STEP not in keys and bool((saved[LAST_STEP] != steps).any())) or (
        LAST_DECAY in saved
        and LAST_DECAY not in keys
        and bool((saved[LAST_DECAY] != saved[DECAY].to(saved[LAST_DECAY].dtype)).any())
    )
    if is_behind:
        raise ValueError(
            "the saved run had lazy='exact', and some rows have yet to catch up: make the optimizer with lazy='exact', "
            "load, and edit the group then; or save after catch_up()"
        )
