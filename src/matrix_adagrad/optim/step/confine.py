"""The second half of a step over a domain: the projection in the metric of the first half.

The step over the whole space, followed by this, is the argmin of η⟨G_t, X⟩ + B_{ψ_t}(X; X_t) over the domain.
"""

from __future__ import annotations

import torch
from torch import Tensor

from matrix_adagrad.domains import Domain
from matrix_adagrad.optim.step.reference import root
from matrix_adagrad.optim.step.rule import Batch, Rule


def confine(batch: Batch, rule: Rule, domain: Domain) -> None:
    """Bring every parameter, which has just moved, back into the domain."""
    for param, grad, statistic, step in zip(batch.params, batch.grads, batch.statistics, batch.steps, strict=True):
        if param.numel() == 0:
            continue
        s = root(statistic / rule.corrections(step)[1]) + rule.eps
        # Without eps a block that never had a gradient has no metric: it takes the least one.
        scale = rule.geometry.spread(s.clamp_min_(torch.finfo(s.dtype).tiny), param.shape)
        if not grad.is_sparse or not domain.is_separable_by_rows(param.shape):
            param.copy_(domain.project(param, scale))
        elif grad._nnz():  # the other rows did not move
            rows = grad._indices()[0].unique()
            moved = domain.of_rows(rows, param.shape).project(param.index_select(0, rows), _rows_of(scale, rows))
            param.index_copy_(0, rows, moved)


def _rows_of(scale: Tensor, rows: Tensor) -> Tensor:
    return scale if scale.shape[0] == 1 else scale.index_select(0, rows)
