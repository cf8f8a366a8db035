"""One training run, and the loss that it is judged by."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer

from matrix_adagrad.advisor.errors import AdvisorValueError
from matrix_adagrad.advisor.task import Task

__all__ = ["Observer", "Run", "start_score", "train"]

Observer = Callable[[nn.Module, Optimizer], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Run:
    """One run: the loss at each step, and the final score, infinite if it diverged."""

    losses: tuple[float, ...]
    score: float


def train(
    task: Task, model: nn.Module, optimizer: Optimizer, seed: int, steps: int, observer: Observer | None = None
) -> Run:
    """Train a model on the batches of a seed. A run that diverges is stopped, with an infinite score."""
    losses: list[float] = []
    schedule = task.schedule(optimizer, steps) if task.schedule else None
    with observer(model, optimizer) if observer else nullcontext():
        for batch in task.stream(seed, steps):
            optimizer.zero_grad()
            loss = task.evaluate(model, batch)
            loss.backward()
            optimizer.step()
            if schedule is not None:
                schedule.step()
            losses.append(float(loss.detach()))
            if not math.isfinite(losses[-1]):
                return Run(tuple(losses), math.inf)
    score = _held_out_loss(task, model)
    if score is None:
        score = statistics.fmean(losses[-_judged(steps) :])
    return Run(tuple(losses), score if math.isfinite(score) else math.inf)


def start_score(task: Task, model: nn.Module, seed: int, steps: int) -> float:
    """The score of a run that learns nothing: the untrained model's loss on the batches that judge a run."""
    score = _held_out_loss(task, model)
    if score is None:
        last = itertools.islice(task.stream(seed, steps), steps - _judged(steps), None)
        score = statistics.fmean(float(task.measure(model, batch).detach()) for batch in last)
    return score


def _judged(steps: int) -> int:
    """Without held-out batches, so many of the last steps judge a run."""
    return max(1, steps // 4)


def _held_out_loss(task: Task, model: nn.Module) -> float | None:
    """The mean loss over the held-out batches, if there are any. Gradients stay on: a loss may need them inside."""
    if task.held_out is None:
        return None
    model.eval()
    losses = [float(task.measure(model, batch).detach()) for batch in task.held_out]
    model.train()
    if not losses:
        raise AdvisorValueError("held_out is empty: give batches, or leave it out")
    return statistics.fmean(losses)
