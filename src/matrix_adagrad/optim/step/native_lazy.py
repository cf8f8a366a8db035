"""The catch-up of rows in C, for arrays in CPU memory, at the cost of the ids that are given."""

from __future__ import annotations

import struct
from typing import Protocol

import torch
from torch import Tensor

from matrix_adagrad import native
from matrix_adagrad.geometry import Geometry, wide_dtype
from matrix_adagrad.optim.step.config import Config
from matrix_adagrad.optim.step.update import are_plain, rounds_at_random

__all__ = ["catch_up", "covers", "mark"]

_PACK = struct.Struct("@Pqq Pq Pdq Pqqq Q Pq Pqq dd").pack  # the struct `lag` of lazy.c


class Lag(Protocol):
    """What a parameter's rows have missed: see `matrix_adagrad.optim.step.lazy.Lag`."""

    param: Tensor
    geometry: Geometry
    average: Tensor | None
    statistics: tuple[Tensor, ...]
    step: Tensor
    last_step: Tensor | None
    last_decay: Tensor | None
    decay: Tensor | None


def covers(lag: Lag, config: Config) -> bool:
    """Whether the kernel can catch up this parameter's rows."""
    x, wide = lag.param, wide_dtype(lag.param.dtype)
    state = [own for own in (lag.average, lag.last_step, lag.last_decay, *lag.statistics) if own is not None]
    own = _own_statistics(lag)
    return (
        (x.dtype in native.DTYPES and not config.foreach and config.foreach is not False and config.fused is not False)
        and (are_plain((x, *state)) and all(tensor.is_cpu for tensor in (x, *state)) and not x.is_neg())
        and all(tensor.dtype is wide for tensor in (lag.average, lag.last_decay, *own) if tensor is not None)
        and (
            len(own) <= 1 and all(_has_rows(tensor, len(x)) for tensor in (x, lag.average, *own) if tensor is not None)
        )
        and all(tensor.is_contiguous() for tensor in (lag.last_step, lag.last_decay) if tensor is not None)
        and not native.missing()
    )


def catch_up(lag: Lag, config: Config, rows: Tensor | None, stream: int) -> int:
    """Bring rows, or all, up to date, and return how many were behind."""
    beta1, beta2 = config.betas or (0.0, 0.0)
    own, x = _own_statistics(lag), lag.param
    statistic = own[0] if own and lag.last_step is not None else None
    average = lag.average if lag.last_step is not None else None
    seed = stream if rounds_at_random(x, config) else 0
    return _call(
        lag,
        rows,
        *((x.data_ptr(), x.stride(0)) if lag.last_decay is not None else (0, 0)),
        *(x[:1].numel(), native.DTYPES[x.dtype], seed),
        *((0, 0) if average is None else (average.data_ptr(), average.stride(0))),
        *((0, 0, 0) if statistic is None else (statistic.data_ptr(), statistic.stride(0), statistic[:1].numel())),
        *(beta1, beta2),
    )


def mark(lag: Lag, rows: Tensor | None) -> None:
    """Count rows, or all, as up to date."""
    _call(lag, rows, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.0, 0.0)


def _call(lag: Lag, rows: Tensor | None, *rest: float) -> int:
    index = None if rows is None else rows.contiguous()
    last_step, last_decay, decay = lag.last_step, lag.last_decay, lag.decay
    packed = _PACK(
        *(0 if index is None else index.data_ptr(), len(lag.param) if index is None else index.numel(), len(lag.param)),
        *(0 if last_step is None else last_step.data_ptr(), int(lag.step)),
        0 if last_decay is None else last_decay.data_ptr(),
        0.0 if last_decay is None or decay is None else float(decay.to(last_decay.dtype)),
        wide_dtype(lag.param.dtype) is torch.float64,
        *rest,
    )
    behind: int = native.load().matrix_adagrad_catch_up(packed, 1, native.threads())
    if behind < 0:
        raise IndexError(f"the rows of a table with {len(lag.param)} rows are out of range: none has caught up")
    return behind


def _own_statistics(lag: Lag) -> list[Tensor]:
    """The statistics of which each row has its own part, or rows share one."""
    parts, shape = zip(lag.geometry.partitions, lag.statistics, strict=False), lag.param.shape
    return [statistic for partition, statistic in parts if 0 not in partition.dims(shape)]


def _has_rows(x: Tensor, rows: int) -> bool:
    """Whether a tensor has so many rows, each in one piece of memory and none in another's."""
    return len(x) == rows and (not x.numel() or (x[0].is_contiguous() and x.stride(0) >= x[0].numel()))
