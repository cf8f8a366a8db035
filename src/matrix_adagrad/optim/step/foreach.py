"""The step in torch's foreach operators: one pass reads, one writes, and statistic-size work is batched over tensors.

Full-size work goes tensor by tensor, so that temporaries (a narrow parameter's wide copy, a gradient with its L2
penalty) exist for one tensor at a time. In float32 without L2 there are none. In the `Entry` geometry, the statistic is
as large as the parameter, so there is one list of that size, as in torch's own foreach optimizers.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from matrix_adagrad.geometry import lean_sum_squares
from matrix_adagrad.geometry.base import shared_dims
from matrix_adagrad.optim.step.backend import Measured, PartedBackend
from matrix_adagrad.optim.step.config import Config
from matrix_adagrad.optim.step.update import (
    Update,
    are_plain,
    count,
    direction_of,
    join_average,
    signed,
    store,
    widen,
)
from matrix_adagrad.torch_private import (
    foreach_add_,
    foreach_clamp_max_,
    foreach_div,
    foreach_div_,
    foreach_mul_,
    foreach_reciprocal_,
    foreach_sqrt,
)

__all__ = ["Foreach"]


class Foreach(PartedBackend):
    """The same computation as `Reference`, up to rounding, for plain tensors in partitions."""

    def reason_against(self, update: Update, config: Config) -> str:
        if not update.geometry.has_root_scale:
            return f"{type(update.geometry).__name__} is not a partition, or has a scale of its own"
        if config.foreach:
            return ""  # the user chose it
        if config.differentiable or not are_plain((update.param, update.grad)):
            return "its operators are not for autograd or for subclasses of tensors"
        return ""

    def read(self, updates: Sequence[Update], config: Config) -> list[Measured]:
        return [(_squares(update, config),) for update in updates]

    def accumulate(self, updates: Sequence[Update], measured: Sequence[Measured], config: Config) -> None:
        count([update.step for update in updates])
        statistics = list(itertools.chain.from_iterable([update.statistics for update in updates]))
        squares = list(itertools.chain.from_iterable(measured))
        if config.reduction == "mean":
            divisors = itertools.chain.from_iterable([update.divisors for update in updates])
            foreach_div_(squares, list(map(float, divisors)))
        if config.betas is None:
            foreach_add_(statistics, squares)
        else:
            foreach_mul_(statistics, config.betas[1])
            foreach_add_(statistics, squares, alpha=1 - config.betas[1])

    def move(self, updates: Sequence[Update], config: Config) -> None:
        for update, scale in zip(updates, _scales(updates, config), strict=True):
            _write(update, scale, config)


def _squares(update: Update, config: Config) -> Tensor:
    """The sum of squares over each block of G_t. G_t also enters its running average."""
    g = _gradient(update, config)
    if update.average is not None:
        join_average(update.average, g, config, update.stream)
    return lean_sum_squares(g, shared_dims(g, update.statistics[0]))


def _write(update: Update, scale: Tensor, config: Config) -> None:
    average = None if update.average is None else widen(update.average, update.param)
    direction = direction_of(average, lambda: _gradient(update, config), update.step, config)
    del average  # it may be a copy
    x = widen(update.param, update.param)
    if config.decay is not None:
        x.mul_(config.decay)
    x.addcmul_(direction, scale, value=-1)
    del direction  # it may be a copy, and rounding needs memory too
    if x.dtype != update.param.dtype:
        store(update.param, x, config, update.stream)


def _gradient(update: Update, config: Config) -> Tensor:
    """G_t with the sign and penalty that the update asks for; the gradient itself if it asks for neither."""
    g = signed(widen(update.grad, update.param), config)
    if config.l2 == 0:
        return g
    copied = None if g is update.grad else g  # the gradient itself is not written to
    return torch.add(g, widen(update.param, update.param), alpha=config.l2, out=copied)


def _scales(updates: Sequence[Update], config: Config) -> Sequence[Tensor]:
    """η / (√V + ε) for each parameter."""
    scales: Any = [update.statistics[0] for update in updates]
    lrs: list[Any] = [config.rate] * len(updates)  # all numbers, or all tensors
    if config.bias_correction:
        corrections: list[tuple[Any, Any]] = [config.corrections(update.step) for update in updates]
        scales = foreach_div(scales, [second for _, second in corrections])
        lrs = [config.rate / first for first, _ in corrections]
    scales = foreach_sqrt(scales)
    foreach_add_(scales, config.eps)
    for scale in scales:
        tiny = torch.finfo(scale.dtype).tiny
        if config.eps < tiny:
            scale.masked_fill_(scale == 0, torch.inf).clamp_min_(tiny)  # 0/0: no gradient gives no step
    foreach_reciprocal_(scales)
    foreach_mul_(scales, lrs)
    foreach_clamp_max_(scales, [torch.finfo(scale.dtype).max for scale in scales])
    return tuple(scales)
