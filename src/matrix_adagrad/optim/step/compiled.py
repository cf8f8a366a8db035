"""The fused step as one operator, which torch.compile and fake tensors know: ``torch.ops.matrix_adagrad.step``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from matrix_adagrad.geometry import Entry
from matrix_adagrad.optim.step.backend import refusal
from matrix_adagrad.optim.step.config import AdaGradConfig, Config, MomentumConfig
from matrix_adagrad.optim.step.native import Native
from matrix_adagrad.optim.step.triton import Triton
from matrix_adagrad.optim.step.update import NARROW, Update

__all__: list[str] = []  # its import registers the operator

_NATIVE, _TRITON = Native(), Triton()


@torch.library.custom_op("matrix_adagrad::step", mutates_args=("params", "averages", "statistics", "steps"))
def _step(
    params: list[Tensor],
    grads: list[Tensor],
    averages: list[Tensor],
    statistics: list[Tensor],
    steps: list[Tensor],
    divisors: list[int],
    lr: Tensor,
    numbers: list[float],
    stochastic_rounding: bool,
) -> None:
    config = _config(lr, numbers, stochastic_rounding)
    is_random = stochastic_rounding and any(param.dtype in NARROW for param in params)
    # Where counts are on a GPU, a captured graph must draw from torch's own generator.
    is_seeded = is_random and all(step.is_cpu for step in steps)
    stream = int(torch.randint(1, 1 << 62, (), device="cpu")) if is_seeded else 0
    updates = [
        Update(
            param,
            grad,
            averages[i] if averages else None,
            (statistics[i],),
            steps[i],
            Entry(),  # the statistic's shape says enough about the partition
            (divisors[i],),
            stream + i if is_seeded else 0,
        )
        for i, (param, grad) in enumerate(zip(params, grads, strict=True))
    ]
    backend = _TRITON if _TRITON.runs_on(params[0].device) else _NATIVE
    for update in updates:
        if reason := backend.reason_against(update, config):
            raise refusal("fused", reason)
    backend.step(updates, config)


@_step.register_fake
def _(*_: object) -> None:
    return


def _config(lr: Tensor, numbers: list[float], stochastic_rounding: bool) -> Config:
    """The configuration again, from its numbers."""
    named = dict(zip((name for name in Config().numbers if name != "lr"), numbers, strict=True))
    options: dict[str, Any] = {
        "eps": named["eps"],
        "weight_decay": named["weight_decay"],
        "decoupled_weight_decay": bool(named["decoupled_weight_decay"]),
        "maximize": bool(named["maximize"]),
        "stochastic_rounding": stochastic_rounding,
    }
    if not named["momentum"]:
        return AdaGradConfig(lr, **options)
    flags: dict[str, Any] = {name: bool(named[name]) for name in ("bias_correction", "nesterov")}
    return MomentumConfig(lr, betas=(named["beta1"], named["beta2"]), **flags, **options)
