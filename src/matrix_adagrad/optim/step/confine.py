"""The second half of a step over a domain: the projection in the metric of the first half.

The step over the whole space, followed by this, is the argmin of η⟨G_t, X⟩ + B_{ψ_t}(X; X_t) over the domain.
"""

from __future__ import annotations

import torch
from torch import Tensor

from matrix_adagrad.domains import Domain
from matrix_adagrad.optim.step.reference import root
from matrix_adagrad.optim.step.rule import Batch, Rule

_PIECE = 1 << 18  # entries


def confine(batch: Batch, rule: Rule, domain: Domain) -> None:
    """Bring every parameter, which has just moved, back into the domain."""
    for param, grad, statistic, step in zip(batch.params, batch.grads, batch.statistics, batch.steps, strict=True):
        if param.numel() == 0:
            continue
        if not domain.is_separable_by_rows(param.shape) or torch.compiler.is_compiling():
            domain.project_(param, _scale(statistic, step, rule, domain, param.shape))
        elif not grad.is_sparse:
            _project_in_pieces(param, statistic, step, rule, domain)
        elif grad._nnz():  # the other rows did not move
            rows = grad._indices()[0].unique()
            scale = _scale(statistic, step, rule, domain, param.shape)
            some = scale if scale.dim() == 0 or scale.shape[0] == 1 else scale.index_select(0, rows)
            moved = domain.of_rows(rows, param.shape).project_(param.index_select(0, rows), some)
            param.index_copy_(0, rows, moved)


def _project_in_pieces(param: Tensor, statistic: Tensor, step: Tensor, rule: Rule, domain: Domain) -> None:
    """Some rows at a time, so that what is needed besides is small, and stays in the caches."""
    together = max(1, _PIECE * len(param) // param.numel())
    by_row = statistic.dim() == param.dim() and statistic.shape[0] == len(param)
    whole = None if by_row else _scale(statistic, step, rule, domain, param.shape)
    for start in range(0, len(param), together):
        piece = slice(start, start + together)
        rows = torch.arange(start, min(start + together, len(param)), device=param.device)
        if whole is None:
            some = _scale(statistic[piece], step, rule, domain, param[piece].shape)
        else:
            some = whole[piece] if whole.dim() and whole.shape[0] == len(param) else whole
        domain.of_rows(rows, param.shape).project_(param[piece], some)


def _scale(statistic: Tensor, step: Tensor, rule: Rule, domain: Domain, shape: torch.Size) -> Tensor:
    """S, which the step divided by."""
    if not domain.depends_on_metric:
        return torch.ones((), device=statistic.device)
    s = root(statistic / rule.corrections(step)[1]) + rule.eps
    # Without eps a block that never had a gradient has no metric: it takes the least one. Nor may it be infinite.
    finite = torch.finfo(s.dtype)
    return rule.geometry.spread(s.clamp_(finite.tiny, finite.max), shape)
