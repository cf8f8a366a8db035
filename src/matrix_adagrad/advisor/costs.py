"""What a step of each candidate costs: time, and memory of its state."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from matrix_adagrad.advisor.candidates import Candidate
from matrix_adagrad.advisor.task import Task
from matrix_adagrad.optim import state_bytes

__all__ = ["Cost", "costs"]

TIMED = 15  # steps to time
STATE_LIMIT = 1 << 30  # bytes of optimizer state to hold at once


class Cost(NamedTuple):
    """Seconds per gradient, seconds per optimizer step, and bytes of the optimizer's state."""

    gradient_seconds: float
    step_seconds: float
    state_bytes: int


def costs(task: Task, model: nn.Module, candidates: Sequence[Candidate]) -> list[Cost]:
    """The cost of each candidate.

    Medians over interleaved steps of all candidates on the same model, so that other load on the machine affects all of
    them alike. If their states would take too much memory, candidates are timed one after the other.
    """
    states = 2 * len(candidates) * sum(param.nbytes for param in model.parameters())
    together = len(candidates) if states <= STATE_LIMIT else 1
    gradients: list[float] = []
    found: list[tuple[float, int]] = []
    for start in range(0, len(candidates), together):
        optimizers = [candidate.make(model, candidate.lrs[0]) for candidate in candidates[start : start + together]]
        steps: list[list[float]] = [[] for _ in optimizers]
        for batch in task.stream(0, TIMED):
            model.zero_grad()
            gradients.append(_seconds(model, functools.partial(_backward, task, model, batch)))
            for optimizer, seconds in zip(optimizers, steps, strict=True):
                seconds.append(_seconds(model, optimizer.step))
        found += [
            (statistics.median(seconds), state_bytes(optimizer))
            for optimizer, seconds in zip(optimizers, steps, strict=True)
        ]
    return [Cost(statistics.median(gradients), *cost) for cost in found]


def _backward(task: Task, model: nn.Module, batch: Any) -> None:
    task.loss(model, batch).backward()


def _seconds(model: nn.Module, work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    if any(param.device.type != "cpu" for param in model.parameters()):
        torch.accelerator.synchronize()
    return time.perf_counter() - start
