"""The second half of a step over a domain: the projection in the metric of the first half.

The step over the whole space, followed by this, is the argmin of η⟨G_t, X⟩ + B_{ψ_t}(X; X_t) over the domain.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from matrix_adagrad.domains import Domain
from matrix_adagrad.optim.step.config import Config
from matrix_adagrad.optim.step.update import Update

__all__ = ["as_metric", "project"]

_PIECE_ENTRIES = 1 << 18
_ALL = slice(None)


def project(update: Update, config: Config, domain: Domain) -> None:
    """Bring a parameter back into its domain after a step."""
    param, rows = update.param, update.rows
    if param.numel() == 0:
        return
    metric = _metric(update, config, domain)
    if not domain.is_separable_by_rows(param.shape) or torch.compiler.is_compiling():
        domain.project_(param, metric(_ALL))
    elif rows is None:
        _project_in_pieces(param, metric, domain)
    else:  # the rows that it does not touch did not move
        if len(rows) == 0:
            return
        s = metric(rows) if update.scale is None else as_metric(update.scale)
        moved = domain.of_rows(rows, param.shape).project_(param.index_select(0, rows), s)
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
    correction = config.corrections(update.step)[1]

    def scale(*statistics: Tensor) -> Tensor:
        return as_metric(geometry.scale(*(v / correction for v in statistics)) + config.eps)

    def of_rows(rows: Tensor | slice) -> Tensor:
        s = scale(*(v[rows] if len(v) == len(x) else v for v in update.statistics))
        return geometry.spread(s, (len(s), *x.shape[1:]))

    known = update.scale if update.rows is None else None  # a sparse step knows those of a few rows
    if known is None and geometry.has_scales_by_row(x.shape):
        return of_rows
    s = scale(*update.statistics) if known is None else as_metric(known)
    whole = geometry.spread(s, x.shape)
    return lambda rows: whole[rows] if whole.dim() and whole.shape[0] == len(x) and rows is not _ALL else whole


def as_metric(s: Tensor) -> Tensor:
    """The scales of a step as a metric. Without eps, a block that never had a gradient takes the smallest one."""
    finite = torch.finfo(s.dtype)
    return s.clamp(finite.tiny, finite.max)
