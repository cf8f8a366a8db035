"""Short runs from the same start on the same batches, one candidate beside the other, with the same budget for each."""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from matrix_adagrad.advisor.candidates import FAMILIES, UNIFORM, Candidate, distinct, ours, uniform
from matrix_adagrad.advisor.errors import RefusedTypeError, RefusedValueError
from matrix_adagrad.advisor.result import Outcome, Result, Run
from matrix_adagrad.advisor.task import Batches, Task, generators_restored

__all__ = ["Race", "race"]

RUNGS = 3  # all learning rates for an eighth of the steps, the better half for a quarter, and half of those for half
STEPS, SEEDS = 200, 5  # of a run, and for each candidate, if nothing else is said
ALLOWED_STEPS, ALLOWED_SEEDS = range(2 ** (RUNGS + 1), 10**9), range(2, 16)
TIMED = 15  # steps
SAME = 1e-3  # runs of one seed must start with the same loss, up to rounding
TOGETHER = 1 << 30  # bytes of states that may be there at once when steps are timed

Progress = Callable[[int, int, str], None]  # steps that are done, of how many, and what is going on
Watch = Callable[[nn.Module, Optimizer], AbstractContextManager[Any]]


def race(
    make_model: Callable[[], nn.Module],
    loss: Callable[[nn.Module, Any], Tensor],
    batches: Batches,
    *,
    held_out: Iterable[Any] | None = None,
    candidates: Sequence[Candidate] | None = None,
    present: Candidate | None = None,
    steps: int = STEPS,
    seeds: int = SEEDS,
    progress: Progress | None = None,
) -> Result:
    """Train short runs with each candidate, and compare them.

    Every candidate tries the same number of learning rates by successive halving, on seeds that are used for nothing
    else, and then trains with its best rate on other seeds, where all have the same starts and the same batches.

    Args:
        make_model: as in `Task`, and so are the next three.
        loss: takes the model and a batch.
        batches: an iterable of batches, or a function from the seed to one.
        held_out: batches that runs are judged by.
        candidates: who takes part; by default row, column, entry and whole, with AdaGrad and with momentum.
        present: the optimizer that you use now, to be compared with all the others.
        steps: of a run.
        seeds: how many runs each candidate's result is of, from 2 to 15.
        progress: called with the number of steps that are done, the number of all steps, and what is going on.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from matrix_adagrad.advisor import race
        >>> x = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
        >>> result = race(
        ...     lambda: nn.Linear(8, 4),
        ...     lambda model, rows: (model(x[rows]) - x[rows, :4]).square().mean(),
        ...     lambda seed: torch.randperm(64).split(16),
        ...     steps=16,
        ...     seeds=2,
        ... )
        >>> len(result.outcomes)
        8
    """
    task = Task(make_model, loss, batches, held_out)
    with generators_restored():
        one = Race(task, steps=steps, seeds=seeds, progress=progress)
        return one.run(candidates if candidates is not None else one.everybody(), present)


class Race:
    """A race in parts, for who wants to decide on the way who else takes part.

    The arguments are those of `race`, and ``first``: learning rates are chosen on this seed and the next one, and the
    others follow.
    """

    def __init__(
        self, task: Task, *, steps: int = STEPS, seeds: int = SEEDS, first: int = 0, progress: Progress | None = None
    ) -> None:
        for name, value, allowed in (("steps", steps, ALLOWED_STEPS), ("seeds", seeds, ALLOWED_SEEDS)):
            if value not in allowed:
                raise RefusedValueError(f"{name} must be from {allowed[0]} to {allowed[-1]:,}, got {value}")
        self.task, self.steps, self.seeds = task, steps, range(first + 2, first + 2 + seeds)
        self.tuning = (first, first + 1)
        self.done, self.total = 0, 0
        self._starts: dict[int, float] = {}  # what the untrained model of a seed is judged by
        self._first: dict[int, float] = {}  # the loss of its first batch
        self._progress = progress or (lambda *_: None)

    def everybody(self, families: Iterable[str] = tuple(FAMILIES), names: Iterable[str] = UNIFORM) -> list[Candidate]:
        """One geometry for the whole model, for each geometry and family."""
        model = self.task.start(0)
        names = list(names)
        return distinct(ours(name, family, uniform(model, name)) for family in families for name in names)

    def run(self, candidates: Sequence[Candidate], present: Candidate | None = None) -> Result:
        """Tune and train all of them, and measure what a step costs."""
        entered = [*candidates, *([present] if present is not None else [])]
        self.expect(entered)
        outcomes = [self.train(one) for one in entered]
        return self.result(outcomes, present.name if present else None)

    def expect(self, candidates: Sequence[Candidate]) -> None:
        """Count the steps that these candidates will take, for the progress."""
        for one in candidates:
            if not isinstance(one, Candidate):
                raise RefusedTypeError(f"who takes part must be a Candidate of the advisor's, got {type(one).__name__}")
        names = [one.name for one in candidates]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise RefusedValueError(
                f"candidates need names of their own, and these are there twice: {', '.join(twice)}"
            )
        self.total += sum(self._cost(one) for one in candidates)

    def train(self, candidate: Candidate) -> Outcome:
        """Choose a learning rate, and train with it on other seeds than those that it was chosen on."""
        rungs: list[dict[float, float]] = []
        lrs = candidate.lrs
        for rung in range(RUNGS):
            rungs.append({lr: self._try(candidate, lr, rung) for lr in lrs})
            best_first = sorted(lrs, key=lambda lr: rungs[-1][lr])
            lrs = tuple(sorted(best_first[: _halved(len(lrs))]))
        for lr in candidate.beside(best_first[0]):  # the last rung once more, half a step aside
            rungs[-1][lr] = self._try(candidate, lr, RUNGS - 1)
        lr = min(rungs[-1], key=lambda lr: rungs[-1][lr])
        start = self._starts[self.tuning[0]]
        return Outcome(candidate, lr, start, tuple(rungs), self.runs(candidate, lr))

    def runs(self, candidate: Candidate, lr: float) -> tuple[Run, ...]:
        """Full runs with this learning rate, one for each seed."""
        return tuple(self._train(candidate, lr, seed, self.steps, f"seed {seed}") for seed in self.seeds)

    def result(self, outcomes: Sequence[Outcome], present: str | None = None) -> Result:
        """All that is known in the end, with the time and the memory of each candidate's steps."""
        return Result.of(outcomes, _costs(self.task, [one.candidate for one in outcomes]), self.steps, present)

    def watched(self, outcome: Outcome, watch: Watch) -> None:
        """The first of the runs with the chosen learning rate once more, with somebody looking on."""
        self.total += self.steps
        self._train(outcome.candidate, outcome.lr, self.seeds[0], self.steps, "the probe looks on", watch)

    def _try(self, candidate: Candidate, lr: float, rung: int) -> float:
        """The score of a learning rate; the last rung, which decides, is run on two seeds."""
        seeds = self.tuning if rung == RUNGS - 1 else self.tuning[:1]
        runs = [self._train(candidate, lr, seed, self._steps(rung), f"lr {lr:.2g}") for seed in seeds]
        return statistics.fmean(run.score for run in runs)

    def _train(
        self, candidate: Candidate, lr: float, seed: int, steps: int, what: str, watch: Watch | None = None
    ) -> Run:
        self._progress(self.done, self.total, f"{candidate.name}, {what}")
        if seed not in self._starts:
            self._starts[seed] = judge_start(self.task, seed)
        run = train(self.task, lambda model: candidate.make(model, lr), seed, steps, watch)
        first = self._first.setdefault(seed, run.losses[0])
        if not math.isclose(run.losses[0], first, rel_tol=SAME, abs_tol=1e-30) and math.isfinite(first):
            raise RefusedValueError(
                f"two runs of seed {seed} start with the losses {first:g} and {run.losses[0]:g}: the model or the "
                "batches depend on something else than the seed, and runs cannot be compared"
            )
        self.done += steps
        return run

    def _steps(self, rung: int) -> int:
        return self.steps >> (RUNGS - rung)

    def _cost(self, candidate: Candidate) -> int:
        count, cost = len(candidate.lrs), len(self.seeds) * self.steps
        for rung in range(RUNGS - 1):
            cost += count * self._steps(rung)
            count = _halved(count)
        return cost + len(self.tuning) * (count + 2) * self._steps(RUNGS - 1)


def _halved(count: int) -> int:
    return max(1, count // 2)


def train(task: Task, make: Callable[[nn.Module], Optimizer], seed: int, steps: int, watch: Watch | None = None) -> Run:
    """One run from the start of a seed; one that goes astray is broken off, with an infinite score."""
    model = task.start(seed)
    optimizer = make(model)
    losses: list[float] = []
    with watch(model, optimizer) if watch else nullcontext():
        for batch in task.stream(seed, steps):
            optimizer.zero_grad()
            loss = task.evaluate(model, batch)
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
            if not math.isfinite(losses[-1]):
                return Run(tuple(losses), math.inf)
    score = judge(task, model)
    if score is None:
        score = statistics.fmean(losses[-max(1, steps // 4) :])
    return Run(tuple(losses), score if math.isfinite(score) else math.inf)


def judge_start(task: Task, seed: int) -> float:
    """What a run that learns nothing would be judged by, or about that."""
    model = task.start(seed)
    score = judge(task, model)
    return float(task.evaluate(model, next(task.stream(seed, 1))).detach()) if score is None else score


def judge(task: Task, model: nn.Module) -> float | None:
    """The mean loss over the held-out batches, if there are any. With gradients on: a loss may need them inside."""
    if task.held_out is None:
        return None
    model.eval()
    losses = [float(task.measure(model, batch).detach()) for batch in task.held_out]
    model.train()
    if not losses:
        raise RefusedValueError("held_out is empty: give batches, or leave it out")
    return statistics.fmean(losses)


def _costs(task: Task, candidates: Sequence[Candidate]) -> list[tuple[float, float, int]]:
    """The seconds of a gradient, and of each candidate's step after it, and its bytes of state.

    Steps of all of them in turn, on the same model, so that whatever else the machine does hits them alike; medians.
    Where their states would take too much memory, one candidate after the other.
    """
    model = task.start(0)
    states = 2 * len(candidates) * sum(param.nbytes for param in model.parameters())
    together = len(candidates) if states <= TOGETHER else 1
    gradients: list[float] = []
    costs: list[tuple[float, int]] = []
    for start in range(0, len(candidates), together):
        optimizers = [one.make(model, one.lrs[0]) for one in candidates[start : start + together]]
        steps: list[list[float]] = [[] for _ in optimizers]
        for batch in task.stream(0, TIMED):
            model.zero_grad()
            gradients.append(_seconds(model, functools.partial(_backward, task, model, batch)))
            for optimizer, taken in zip(optimizers, steps, strict=True):
                taken.append(_seconds(model, optimizer.step))
        costs += [(statistics.median(taken), state_bytes(one)) for one, taken in zip(optimizers, steps, strict=True)]
    return [(statistics.median(gradients), *cost) for cost in costs]


def _backward(task: Task, model: nn.Module, batch: Any) -> None:
    task.loss(model, batch).backward()


def _seconds(model: nn.Module, work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    if any(param.device.type != "cpu" for param in model.parameters()):
        torch.accelerator.synchronize()
    return time.perf_counter() - start


def state_bytes(optimizer: Optimizer) -> int:
    """The memory of an optimizer's state, which some keep in lists."""
    return sum(value.nbytes for value in tree_leaves(dict(optimizer.state)) if isinstance(value, Tensor))
