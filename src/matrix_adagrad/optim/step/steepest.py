"""Steepest descent, one tensor at a time, line for line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from matrix_adagrad.geometry import Partition
from matrix_adagrad.geometry.base import quotient
from matrix_adagrad.optim.step.backend import Backend
from matrix_adagrad.optim.step.config import Config, SteepestConfig
from matrix_adagrad.optim.step.reference import as_read, gradient
from matrix_adagrad.optim.step.sparse import touched_rows
from matrix_adagrad.optim.step.update import Update, count, direction_of, store

__all__ = ["Steepest"]

RMS = 0.2  # of a step with lr=1: AdamW's, as measured by Moonlight, and torch's Muon with match_rms_adamw


class Steepest(Backend):
    """Supports any tensor, and any geometry that has a direction of steepest descent."""

    def step(self, updates: Sequence[Update], config: Config) -> None:
        assert isinstance(config, SteepestConfig)
        count([update.step for update in updates])
        for update in updates:
            if not update.grad.is_sparse:
                _step(update, config)
                continue
            rows, g = touched_rows(update.param, update.grad)
            if len(rows):
                full = [x for x in (update.param, update.average) if x is not None]
                param, *average = (x.index_select(0, rows) for x in full)
                _step(replace(update, param=param, grad=g, average=average[0] if average else None), config)
                for x, moved in zip(full, (param, *average), strict=True):
                    x.index_copy_(0, rows, moved)

    @staticmethod
    def takes_rows(update: Update, config: SteepestConfig) -> bool:
        """Whether rows without a gradient can be left alone."""
        geometry = update.geometry
        is_by_row = isinstance(geometry, Partition) and geometry.separates_rows(update.param.shape)
        return is_by_row and config.rescale is None


def _step(update: Update, config: SteepestConfig) -> None:
    g = gradient(update, config)
    average = update.average
    if average is not None:
        average = as_read(average.lerp_(g, 1 - config.momentum), update.param)  # M_t
    direction = direction_of(average, lambda: g, update.step, config)
    step = update.geometry.steepest(direction, config.floor)
    size = RMS / update.geometry.steepest_rms(step.shape) if config.scale == "rms" else 1.0
    if config.rescale is not None:
        step = _rescaled(step, update, config)
    x = as_read(update.param, update.param)
    if config.decay is not None:
        x = x * config.decay
    store(update.param, x - config.rate * size * step, config, update.stream)


def _rescaled(step: Tensor, update: Update, config: SteepestConfig) -> Tensor:
    """The step divided by the root of its running mean square over each block, and brought back to its length."""
    (v,), (divisor,) = update.statistics, update.divisors
    partition = config.rescale
    assert partition is not None
    v.lerp_(partition.statistic(step) / divisor, 1 - config.rescale_beta)
    scaled = partition.precondition(step, 1.0, config.eps, v)
    if config.scale == "rms":
        length: float | Tensor = math.sqrt(step.numel()) * update.geometry.steepest_rms(step.shape)
    else:
        length = torch.linalg.vector_norm(step)
    return scaled * quotient(length, torch.linalg.vector_norm(scaled))
