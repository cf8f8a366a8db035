"""The step for gradients that hold a few rows, as from ``nn.Embedding(sparse=True)``, in torch's operators.

Its cost depends on the rows in the batch, not on the table. A row whose gradient is 0 can be skipped: AdaGrad takes the
same step as with the dense gradient, in every geometry whose statistics are sums over the blocks of partitions. Two
things do act on such rows in a dense step: weight decay and, with momentum, the running averages. Here they are *lazy*:
they act only on the touched rows. The average of a block that contains all rows, such as a column, takes every step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from matrix_adagrad.geometry import Partition, Shape, sum_squares
from matrix_adagrad.geometry.base import quotient
from matrix_adagrad.optim.step.backend import Backend
from matrix_adagrad.optim.step.config import Config
from matrix_adagrad.optim.step.update import Update, count, direction_of, join_average, signed, store, widen
from matrix_adagrad.torch_private import sparse_indices, sparse_values

__all__ = ["Sparse", "touched_rows"]


class Sparse(Backend):
    """Supports gradients that are sparse in their first dimension, where statistics are sums over partitions."""

    def reason_against(self, update: Update, config: Config) -> str:  # noqa: ARG002
        if update.grad.is_sparse and self.takes_rows(update):
            return ""
        return "it is for sparse gradients, and for geometries that name their partitions"

    @staticmethod
    def takes_rows(update: Update) -> bool:
        """Whether some rows can be stepped by themselves. Several partitions must view a tensor in the same shape."""
        geometry, shape = update.geometry, update.param.shape
        partitions = geometry.partitions
        is_partition = partitions == (geometry,)
        return is_partition or (len(partitions) > 0 and all(own.cut(shape) == shape for own in partitions))

    def step(self, updates: Sequence[Update], config: Config) -> None:
        for update in updates:
            count([update.step])
            update.rows, g = touched_rows(update.param, update.grad)
            if update.rows.numel():
                _step(update, update.rows, g, config)


def _step(update: Update, rows: Tensor, g: Tensor, config: Config) -> None:
    param, average = update.param, None
    x = widen(param.index_select(0, rows), param)  # a copy, which may be written to
    g = signed(g, config)
    if config.decay is not None:
        x.mul_(config.decay)
    elif config.l2 != 0:
        g = g + config.l2 * x
    if update.average is not None:
        kept = update.average.index_select(0, rows)
        average = join_average(kept, g, config, update.stream)
        update.average.index_copy_(0, rows, kept)
    direction = direction_of(average, lambda: g, update.step, config)

    correction1, correction2 = config.corrections(update.step)
    geometry = update.geometry
    parts = zip(geometry.partitions, update.statistics, update.divisors, strict=True)
    views, statistics = zip(*[_accumulate(*part, rows, g, param.shape, config) for part in parts], strict=True)
    view, scale = views[0], geometry.scale(*[v / correction2 for v in statistics]) + config.eps
    if config.domain is not None and config.domain.depends_on_metric and view == x.shape:
        update.scale = scale  # for the projection
    x.view(view).addcmul_(direction.view(view), quotient(config.rate / correction1, scale), value=-1)
    if x.dtype != param.dtype:
        narrow = torch.empty_like(x, dtype=param.dtype)
        store(narrow, x, config, update.stream)
        x = narrow
    param.index_copy_(0, rows, x)


def touched_rows(param: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """The rows that a gradient touches, each once, and their gradient, summed in the compute dtype."""
    (index,), g = sparse_indices(grad), widen(sparse_values(grad), param)
    if grad.is_coalesced():
        return index, g
    rows, place = index.unique(return_inverse=True)  # faster than torch's coalesce, and in a wide dtype
    return rows, g.new_zeros(len(rows), *g.shape[1:]).index_add_(0, place, g)


def _accumulate(
    partition: Partition, statistic: Tensor, divisor: int, index: Tensor, g: Tensor, shape: Shape, config: Config
) -> tuple[tuple[int, ...], Tensor]:
    """The shape of the rows that V_t broadcasts against, and V_t of the blocks that contain them."""
    cut, dims = partition.cut(shape), partition.dims(shape)
    if 0 in dims:  # blocks that contain all rows: every step updates them
        view, where = (len(index), *cut[1:]), None
    else:  # row i is alone in a block, or one of the group i // rows_per_group
        rows_per_group = shape[0] // cut[0]
        view, where = (len(index), *cut[1:]), index
        if rows_per_group > 1:
            view, where = (len(index), 1, *cut[2:]), index // rows_per_group
    squares = sum_squares(g.view(view), dims) / divisor
    if config.betas is not None:
        beta2 = config.betas[1]
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
