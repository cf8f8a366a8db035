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
from matrix_adagrad.optim.step.update import Update, count, join_average, store

__all__ = ["Steepest", "averaged", "change", "move"]


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
    move(update, change(update, averaged(update, config), config), config)


def averaged(update: Update, config: SteepestConfig) -> Tensor:
    """D_t: the average of gradients, which G_t enters, or Nesterov's sum."""
    g = gradient(update, config)
    if update.average is None:
        return g
    average = as_read(join_average(update.average, g, config, update.stream), update.param)  # M_t
    return torch.lerp(g, average, config.momentum) if config.nesterov else average


def change(update: Update, direction: Tensor, config: SteepestConfig) -> Tensor:
    """What is subtracted from the parameter: a step along the steepest direction. It needs whole blocks."""
    step = update.geometry.steepest(direction, config.floor)
    size = config.size(update.geometry, step.shape)
    if config.rescale is not None:
        step = _rescaled(step, update, config)
    return config.rate * size * step


def move(update: Update, step: Tensor, config: SteepestConfig) -> None:
    """Move the parameter."""
    x = as_read(update.param, update.param)
    if config.decay is not None:
        x = x * config.decay
    store(update.param, x - step, config, update.stream)


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
