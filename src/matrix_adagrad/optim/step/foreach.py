"""The update for a list of tensors: one pass that reads, one that writes, and all work of a statistic's size at once.

Full-size work goes tensor by tensor, so that temporaries (a narrow parameter's wide copy, a gradient with its L2
penalty) exist for one tensor at a time; in float32 without L2 there are none. In the `Entry` geometry, whose statistic
has the parameter's size, there is one list of that size, as in torch's own foreach optimizers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from matrix_adagrad.optim.step.rule import Rule, store, widen


def foreach(
    params: list[Tensor],
    grads: list[Tensor],
    averages: list[Tensor],
    statistics: list[Tensor],
    steps: list[Tensor],
    rule: Rule,
) -> None:
    """One step for every parameter: what `reference` does, up to rounding."""
    torch._foreach_add_(steps, 1)
    squares = [_read(i, params, grads, averages, rule) for i in range(len(params))]
    if rule.reduction == "mean":
        torch._foreach_div_(squares, [float(rule.members(param)) for param in params])
    if rule.betas is None:
        torch._foreach_add_(statistics, squares)
    else:
        torch._foreach_lerp_(statistics, squares, 1 - rule.betas[1])
    del squares
    for i, scale in enumerate(_scales(statistics, steps, rule)):
        _write(i, scale, params, grads, averages, rule)


def _read(i: int, params: list[Tensor], grads: list[Tensor], averages: list[Tensor], rule: Rule) -> Tensor:
    """The first pass: the sum of squares over each block of G_t, which also joins its running average."""
    g = _gradient(params[i], grads[i], rule)
    if rule.betas is not None:
        averages[i].lerp_(g, 1 - rule.betas[0])
    dims = rule.geometry.dims(g.shape)
    if not dims:
        return rule.geometry.statistic(g)
    # Unlike a square that is then summed, the norm makes no full-size temporary.
    norm: Tensor = torch.linalg.vector_norm(rule.geometry.view(g), 2, dims, keepdim=True)
    return norm.square_()


def _write(
    i: int, scale: Tensor, params: list[Tensor], grads: list[Tensor], averages: list[Tensor], rule: Rule
) -> None:
    """The second pass: the parameter moves."""
    param = params[i]
    direction = _gradient(param, grads[i], rule) if rule.betas is None else averages[i]
    x = widen(param)
    if rule.weight_decay != 0 and rule.decoupled_weight_decay:
        x.mul_(1 - rule.lr * rule.weight_decay)
    rule.geometry.view(x).addcmul_(rule.geometry.view(direction), scale, value=-1)
    if x.dtype != param.dtype:
        store(param, x, stochastic_rounding=rule.stochastic_rounding)


def _gradient(param: Tensor, grad: Tensor, rule: Rule) -> Tensor:
    """G_t with the sign and the penalty that the rule asks for; ``grad`` itself where it asks for nothing."""
    g = widen(grad)
    if rule.maximize:
        g = -g
    if rule.weight_decay != 0 and not rule.decoupled_weight_decay:
        g = torch.add(g, widen(param), alpha=rule.weight_decay)
    return g


def _scales(statistics: list[Tensor], steps: list[Tensor], rule: Rule) -> tuple[Tensor, ...]:
    """η / (√V + ε) for each parameter."""
    corrections: list[tuple[Any, Any]] = [rule.corrections(step) for step in steps]  # all numbers, or all tensors
    scales: tuple[Tensor, ...] = torch._foreach_div(statistics, [second for _, second in corrections])
    torch._foreach_sqrt_(scales)
    torch._foreach_add_(scales, rule.eps)
    torch._foreach_reciprocal_(scales)
    for scale in scales:
        if rule.eps < torch.finfo(scale.dtype).tiny:
            scale.masked_fill_(scale.isinf(), 0)  # 0/0: a row that had no gradient stays where it is
    torch._foreach_mul_(scales, [rule.lr / first for first, _ in corrections])
    return scales
