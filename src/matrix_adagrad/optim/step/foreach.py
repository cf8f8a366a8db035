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

from matrix_adagrad.geometry import sum_squares
from matrix_adagrad.optim.step.rule import Batch, Rule, store, widen

# On a CPU, torch's norm adds up float32 in a fixed number of running sums: good for this many terms, and the fastest.
_SHORT = 1 << 14
# Longer blocks, and columns, are squared and summed piece by piece: the entries of a piece, which stays in the cache.
_PIECE = 1 << 18


def foreach(batch: Batch, rule: Rule) -> None:
    """One step for every parameter: what `reference` does, up to rounding."""
    torch._foreach_add_(batch.steps, 1)
    squares = [_read(i, batch, rule) for i in range(len(batch.params))]
    if rule.reduction == "mean":
        torch._foreach_div_(squares, [float(rule.members(param)) for param in batch.params])
    if rule.betas is None:
        torch._foreach_add_(batch.statistics, squares)
    else:
        torch._foreach_mul_(batch.statistics, rule.betas[1])
        torch._foreach_add_(batch.statistics, squares, alpha=1 - rule.betas[1])
    del squares
    for i, scale in enumerate(_scales(batch.statistics, batch.steps, rule)):
        _write(i, scale, batch, rule)


def _read(i: int, batch: Batch, rule: Rule) -> Tensor:
    """The first pass: the sum of squares over each block of G_t, which also joins its running average."""
    g = _gradient(batch.params[i], batch.grads[i], rule)
    if rule.betas is not None:
        batch.averages[i].lerp_(g, 1 - rule.betas[0])
    return _square(g, rule)


def _write(i: int, scale: Tensor, batch: Batch, rule: Rule) -> None:
    """The second pass: the parameter moves."""
    param = batch.params[i]
    direction = _gradient(param, batch.grads[i], rule) if rule.betas is None else batch.averages[i]
    x = widen(param, param)
    if rule.weight_decay != 0 and rule.decoupled_weight_decay:
        x.mul_(1 - rule.lr * rule.weight_decay)
    rule.geometry.view(x).addcmul_(rule.geometry.view(direction), scale, value=-1)
    del direction  # it may be a copy, and rounding needs room too
    if x.dtype != param.dtype:
        store(param, x, stochastic_rounding=rule.stochastic_rounding)


def _gradient(param: Tensor, grad: Tensor, rule: Rule) -> Tensor:
    """G_t with the sign and the penalty that the rule asks for; ``grad`` itself where it asks for nothing."""
    g = widen(grad, param)
    if rule.weight_decay != 0 and not rule.decoupled_weight_decay:
        sign = -1 if rule.maximize else 1
        g = torch.add(g, widen(param, param), alpha=sign * rule.weight_decay)
        return g.neg_() if rule.maximize else g
    return -g if rule.maximize else g


def _square(g: Tensor, rule: Rule) -> Tensor:
    """The geometry's statistic of g, without a temporary of g's size."""
    geometry, dims = rule.geometry, rule.geometry.dims(g.shape)
    if not dims or torch.compiler.is_compiling():  # the compiler makes one loop of the square and the sum
        return geometry.statistic(g)
    short_rows = 0 not in dims and geometry.members(g.shape) <= _SHORT
    if short_rows or g.device.type != "cpu":
        norm: Tensor = torch.linalg.vector_norm(geometry.view(g), 2, dims, keepdim=True)
        return norm.square_()
    total = torch.zeros(geometry.statistic_shape(g.shape), dtype=g.dtype.to_real(), device=g.device)
    _add_squares(geometry.view(g), dims, total)
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
