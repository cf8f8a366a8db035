"""The update for gradients that hold a few rows, as of ``nn.Embedding(sparse=True)``.

Its cost depends on the rows of the batch, not on the table. A row whose gradient is 0 can be left out: AdaGrad takes
the same step as with the dense gradient, in every geometry. Two things do act on such rows in a dense step, and here on
the touched ones alone (they are *lazy*): weight decay, and with momentum the running averages.
"""

from __future__ import annotations

import torch
from torch import Tensor

from matrix_adagrad.geometry import sum_squares
from matrix_adagrad.optim.step.reference import quotient, root
from matrix_adagrad.optim.step.rule import Batch, Rule, count, store, widen


def sparse(batch: Batch, rule: Rule) -> None:
    """One step for every parameter, whose gradients are sparse in their first dimension."""
    for i, (param, grad) in enumerate(zip(batch.params, batch.grads, strict=True)):
        step = batch.steps[i]
        count([step])
        index, g = _rows(param, grad)
        if index.numel() == 0:
            continue
        x = widen(param.index_select(0, index), param)  # a copy, which may be written to
        if rule.maximize:
            g = -g
        if rule.weight_decay != 0 and rule.decoupled_weight_decay:
            x.mul_(1 - rule.lr * rule.weight_decay)
        elif rule.weight_decay != 0:
            g = g + rule.weight_decay * x
        direction = g
        if rule.betas is not None:
            direction = batch.averages[i].index_select(0, index).lerp_(g, 1 - rule.betas[0])
            batch.averages[i].index_copy_(0, index, direction)

        correction1, correction2 = rule.corrections(step)
        view, variance = _accumulate(param, index, g, batch.statistics[i], batch.members[i], rule)
        scale = quotient(rule.lr / correction1, root(variance / correction2) + rule.eps)
        x.view(view).addcmul_(direction.view(view), scale, value=-1)
        if x.dtype != param.dtype:
            rows = torch.empty_like(x, dtype=param.dtype)
            store(rows, x, rule, batch.numbers[i])
            x = rows
        param.index_copy_(0, index, x)


def _rows(param: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """The rows that a gradient touches, each once, and the gradient there, summed in the dtype of the arithmetic."""
    (index,), g = grad._indices(), widen(grad._values(), param)
    if grad.is_coalesced():
        return index, g
    rows, place = index.unique(return_inverse=True)  # faster than torch's coalesce, and in a wide dtype
    return rows, g.new_zeros(len(rows), *g.shape[1:]).index_add_(0, place, g)


def _accumulate(
    param: Tensor, index: Tensor, g: Tensor, statistic: Tensor, members: int, rule: Rule
) -> tuple[tuple[int, ...], Tensor]:
    """V_t of the blocks that the rows lie in, and the shape of the rows against which it broadcasts."""
    geometry = rule.geometry
    cut, dims = geometry.cut(param.shape), geometry.dims(param.shape)
    if 0 in dims:  # blocks that hold all rows: every step is theirs
        view, where = (len(index), *cut[1:]), None
    else:  # row i is alone in a block, or one of the group i // rows_a_group
        rows_a_group = len(param) // cut[0]
        view, where = (len(index), *cut[1:]), index
        if rows_a_group > 1:
            view, where = (len(index), 1, *cut[2:]), index // rows_a_group
    squares = sum_squares(g.view(view), dims) / members
    if rule.betas is not None:
        beta2 = rule.betas[1]
        squares = squares * (1 - beta2)
        if where is None:
            statistic *= beta2
        else:
            blocks = where.unique_consecutive()
            statistic.index_copy_(0, blocks, statistic.index_select(0, blocks).mul_(beta2))
    if where is None:
        statistic += squares
        return view, statistic
    statistic.index_add_(0, where, squares)
    return view, statistic.index_select(0, where)
