"""The second half of a step over a domain: the projection in the metric of the first half.

The step over the whole space, followed by this, is the argmin of η⟨G_t, X⟩ + B_{ψ_t}(X; X_t) over the domain.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from matrix_adagrad.domains import Domain
from matrix_adagrad.geometry import Diagonal
from matrix_adagrad.optim.step.config import Config
from matrix_adagrad.optim.step.update import Update, is_sharded
from matrix_adagrad.torch_private import sparse_indices, stored_entries

__all__ = ["project"]

_PIECE_ENTRIES = 1 << 18
_ALL = slice(None)


def project(update: Update, config: Config, domain: Domain) -> None:
    """Bring a parameter back into its domain after a step."""
    if is_sharded(update.param):
        from matrix_adagrad.optim.sharding import project_shards

        project_shards(update, config, domain)
        return
    param, grad = update.param, update.grad
    if param.numel() == 0:
        return
    metric = _metric(update, config, domain)
    if not domain.is_separable_by_rows(param.shape) or torch.compiler.is_compiling():
        domain.project_(param, metric(_ALL))
    elif not grad.is_sparse:
        _project_in_pieces(param, metric, domain)
    elif stored_entries(grad):  # the other rows did not move
        rows = sparse_indices(grad)[0].unique() if update.rows is None else update.rows
        moved = domain.of_rows(rows, param.shape).project_(param.index_select(0, rows), metric(rows))
        param.index_copy_(0, rows, moved)


def _project_in_pieces(param: Tensor, metric: Callable[[Tensor | slice], Tensor], domain: Domain) -> None:
    """Project a few rows at a time, so that temporaries are small and stay in cache."""
    rows_together = max(1, _PIECE_ENTRIES * len(param) // param.numel())
    for start in range(0, len(param), rows_together):
        rows = torch.arange(start, min(start + rows_together, len(param)), device=param.device)
        piece = slice(start, start + rows_together)
        domain.of_rows(rows, param.shape).project_(param[piece], metric(piece))


def _metric(update: Update, config: Config, domain: Domain) -> Callable[[Tensor | slice], Tensor]:
    """S, which the step divided by, as a function of the rows. It costs only those rows, if rows have own scales."""
    if not domain.depends_on_metric:
        one = torch.ones((), device=update.param.device)
        return lambda _: one
    x, geometry = update.param, update.geometry
    assert isinstance(geometry, Diagonal)  # the optimizer has checked it
    correction = config.corrections(update.step)[1]

    def scale(*statistics: Tensor) -> Tensor:
        return geometry.scale(*(v / correction for v in statistics)) + config.eps

    if update.scale is None and all(v.dim() == x.dim() > 0 and v.shape[0] == len(x) for v in update.statistics):
        return lambda rows: _positive(scale(*(v[rows] for v in update.statistics)))
    s = scale(*update.statistics) if update.scale is None else update.scale
    whole = geometry.spread(_positive(s), x.shape)
    return lambda rows: whole[rows] if whole.dim() and whole.shape[0] == len(x) and rows is not _ALL else whole


def _positive(s: Tensor) -> Tensor:
    # Without eps, a block that never had a gradient has no metric: it takes the smallest one. Nor may it be infinite.
    finite = torch.finfo(s.dtype)
    return s.clamp(finite.tiny, finite.max)
