"""The update for a list of tensors: one pass that reads, one that writes, and all work of a statistic's size at once.

Full-size work goes tensor by tensor, so that temporaries (a narrow parameter's wide copy, a gradient with its L2
penalty) exist for one tensor at a time; in float32 without L2 there are none. In the `Entry` geometry, whose statistic
has the parameter's size, there is one list of that size, as in torch's own foreach optimizers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from matrix_adagrad.optim.step.rule import Batch, Parts, Rule, count, shared_dims, store, widen
from matrix_adagrad.squares import lean_sum_squares


def _read(batch: Batch, rule: Rule) -> list[Tensor]:
    """The first pass: the sums of squares over each block of G_t."""
    return [_squares(i, batch, rule) for i in range(len(batch.params))]


def _accumulate(batch: Batch, squares: list[Tensor], rule: Rule) -> None:
    """The squares, which are spent, join the statistics; and one more step."""
    count(batch.steps)
    if rule.reduction == "mean":
        torch._foreach_div_(squares, [float(members) for members in batch.members])
    if rule.betas is None:
        torch._foreach_add_(batch.statistics, squares)
    else:
        torch._foreach_mul_(batch.statistics, rule.betas[1])
        torch._foreach_add_(batch.statistics, squares, alpha=1 - rule.betas[1])


def _move(batch: Batch, rule: Rule) -> None:
    """The second pass: the parameters move."""
    for i, scale in enumerate(_scales(batch.statistics, batch.steps, rule)):
        _write(i, scale, batch, rule)


foreach = Parts(_read, _accumulate, _move)  # what `reference` does, up to rounding


def _squares(i: int, batch: Batch, rule: Rule) -> Tensor:
    """The sum of squares over each block of G_t, which also joins its running average."""
    g = _gradient(batch.params[i], batch.grads[i], rule)
    if rule.betas is not None:
        batch.averages[i].lerp_(g, 1 - rule.betas[0])
    return lean_sum_squares(g, shared_dims(g, batch.statistics[i]))


def _write(i: int, scale: Tensor, batch: Batch, rule: Rule) -> None:
    param = batch.params[i]
    direction = _gradient(param, batch.grads[i], rule) if rule.betas is None else batch.averages[i]
    x = widen(param, param)
    if rule.weight_decay != 0 and rule.decoupled_weight_decay:
        x.mul_(1 - rule.lr * rule.weight_decay)
    x.addcmul_(direction, scale, value=-1)
    del direction  # it may be a copy, and rounding needs room too
    if x.dtype != param.dtype:
        store(param, x, rule, batch.numbers[i])


def _gradient(param: Tensor, grad: Tensor, rule: Rule) -> Tensor:
    """G_t with the sign and the penalty that the rule asks for; ``grad`` itself where it asks for nothing."""
    g = widen(grad, param)
    if rule.weight_decay != 0 and not rule.decoupled_weight_decay:
        sign = -1 if rule.maximize else 1
        g = torch.add(g, widen(param, param), alpha=sign * rule.weight_decay)
        return g.neg_() if rule.maximize else g
    return -g if rule.maximize else g


def _scales(statistics: list[Tensor], steps: list[Tensor], rule: Rule) -> Sequence[Tensor]:
    """η / (√V + ε) for each parameter."""
    scales: Any = statistics
    lrs: list[Any] = [rule.lr] * len(steps)  # all numbers, or all tensors
    if rule.bias_correction:
        corrections: list[tuple[Any, Any]] = [rule.corrections(step) for step in steps]
        scales = torch._foreach_div(statistics, [second for _, second in corrections])
        lrs = [rule.lr / first for first, _ in corrections]
    scales = torch._foreach_sqrt(scales)
    torch._foreach_add_(scales, rule.eps)
    for scale in scales:
        tiny = torch.finfo(scale.dtype).tiny
        if rule.eps < tiny:
            scale.masked_fill_(scale == 0, torch.inf).clamp_min_(tiny)  # 0/0: no gradient gives no step
    torch._foreach_reciprocal_(scales)
    torch._foreach_mul_(scales, lrs)
    torch._foreach_clamp_max_(scales, [torch.finfo(scale.dtype).max for scale in scales])
    return tuple(scales)
