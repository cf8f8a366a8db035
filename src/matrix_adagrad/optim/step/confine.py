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
            some = _scale_of_rows(rows, param, statistic, step, rule, domain)
            moved = domain.of_rows(rows, param.shape).project_(param.index_select(0, rows), some)
            param.index_copy_(0, rows, moved)


def _project_in_pieces(param: Tensor, statistic: Tensor, step: Tensor, rule: Rule, domain: Domain) -> None:
    """Some rows at a time, so that what is needed besides is small, and stays in the caches."""
    together = max(1, _PIECE * len(param) // param.numel())
    for start in range(0, len(param), together):
        rows = torch.arange(start, min(start + together, len(param)), device=param.device)
        piece = slice(start, start + together)
        some = _scale_of_rows(piece, param, statistic, step, rule, domain)
        domain.of_rows(rows, param.shape).project_(param[piece], some)


def _scale_of_rows(
    rows: Tensor | slice, param: Tensor, statistic: Tensor, step: Tensor, rule: Rule, domain: Domain
) -> Tensor:
    """S of some rows; where rows have scales of their own, at the cost of these rows alone."""
    if statistic.dim() == param.dim() and statistic.shape[0] == len(param):
        some = statistic[rows]
        return _scale(some, step, rule, domain, torch.Size((some.shape[0], *param.shape[1:])))
    whole = _scale(statistic, step, rule, domain, param.shape)
    return whole[rows] if whole.dim() and whole.shape[0] == len(param) else whole


def _scale(statistic: Tensor, step: Tensor, rule: Rule, domain: Domain, shape: torch.Size) -> Tensor:
    """S, which the step divided by."""
    if not domain.depends_on_metric:
        return torch.ones((), device=statistic.device)
    s = root(statistic / rule.corrections(step)[1]) + rule.eps
    # Without eps a block that never had a gradient has no metric: it takes the least one. Nor may it be infinite.
    finite = torch.finfo(s.dtype)
    return rule.geometry.spread(s.clamp_(finite.tiny, finite.max), shape)
