"""Races candidates: short runs on the same initializations and batches, with the same tuning budget for each."""

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

from matrix_adagrad.advisor.candidates import (
    Candidate,
    as_family,
    distinct,
    make_candidate,
    trainable_parameters,
    uniform_geometries,
)
from matrix_adagrad.advisor.errors import AdvisorTypeError, AdvisorValueError
from matrix_adagrad.advisor.race_result import Outcome, RaceResult, Run
from matrix_adagrad.advisor.task import Batches, Task, generators_restored
from matrix_adagrad.optim import state_bytes
from matrix_adagrad.text import shape_text

__all__ = ["Race", "race"]

RUNGS = 3  # all learning rates for 1/8 of the steps, the better half for 1/4, and half of those for 1/2
STEPS, SEEDS = 200, 5  # defaults: steps of a run, and runs of each candidate
ALLOWED_STEPS, ALLOWED_SEEDS = range(2 ** (RUNGS + 1), 10**9), range(2, 16)
TIMED = 15  # steps to time
SAME = 1e-3  # relative tolerance of the first loss between runs of a seed
STATE_LIMIT = 1 << 30  # bytes of optimizer state to hold at once when steps are timed

Progress = Callable[[int, int, str], None]  # steps done, steps in total, and what is running
Observer = Callable[[nn.Module, Optimizer], AbstractContextManager[Any]]


def race(
    make_model: Callable[[], nn.Module],
    loss: Callable[[nn.Module, Any], Tensor],
    batches: Batches,
    *,
    held_out: Iterable[Any] | None = None,
    candidates: Sequence[Candidate] | None = None,
    baseline: Candidate | None = None,
    steps: int = STEPS,
    seeds: int = SEEDS,
    progress: Progress | None = None,
) -> RaceResult:
    """Train short runs with each candidate, and compare them.

    Every candidate is tuned over its grid of learning rates by successive halving, on seeds that are used for nothing
    else. It then trains with its best rate on further seeds, on the same initializations and batches as all others.

    Args:
        make_model: as in `Task`, like the next three.
        loss: takes the model and a batch.
        batches: an iterable of batches, or a function of the seed that returns one.
        held_out: batches to score runs on.
        candidates: by default row, column, entry and whole, each with AdaGrad and with momentum.
        baseline: the optimizer that you use now, as one more candidate.
        steps: the number of steps of a run.
        seeds: the number of runs of each candidate, from 2 to 15.
        progress: called with the number of steps done, the total, and what is running.

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
        racing = Race(task, steps=steps, seeds=seeds, progress=progress)
        return racing.run(candidates if candidates is not None else racing.uniform_candidates(), baseline)


class Race:
    """A race in stages, so that later candidates can depend on earlier results.

    The arguments are those of `race`, plus ``first_seed``. Learning rates are tuned on this seed and the next, and the
    runs that count use the seeds after those.
    """

    def __init__(
        self,
        task: Task,
        *,
        steps: int = STEPS,
        seeds: int = SEEDS,
        first_seed: int = 0,
        progress: Progress | None = None,
    ) -> None:
        for name, value, allowed in (("steps", steps, ALLOWED_STEPS), ("seeds", seeds, ALLOWED_SEEDS)):
            if value not in allowed:
                raise AdvisorValueError(f"{name} must be from {allowed[0]} to {allowed[-1]:,}, got {value}")
        self.task, self.steps, self.seeds = task, steps, range(first_seed + 2, first_seed + 2 + seeds)
        self.tuning_seeds = (first_seed, first_seed + 1)
        self.done, self.total = 0, 0
        self._shapes: dict[str, tuple[int, ...]] = {}  # of the model's parameters
        self._initial_scores: dict[int, float] = {}  # of the untrained model, by seed
        self._first_losses: dict[int, float] = {}  # on the first batch, by seed
        self._progress = progress or (lambda *_: None)

    def uniform_candidates(
        self, families: Iterable[str] = ("adagrad", "momentum"), names: Iterable[str] | None = None
    ) -> list[Candidate]:
        """A candidate for each family and geometry, with that geometry for the whole model.

        ``names`` are those of the geometries; by default each family has its own.
        """
        model, names = self.initial_model(0), None if names is None else list(names)
        return distinct(
            make_candidate(name, family, uniform_geometries(model, name))
            for family in families
            for name in (as_family(family).uniform if names is None else names)
        )

    def run(self, candidates: Sequence[Candidate], baseline: Candidate | None = None) -> RaceResult:
        """Tune and train all candidates, and measure what their steps cost."""
        entered = [*candidates, *([baseline] if baseline is not None else [])]
        self.enter(entered)
        outcomes = [self.train(candidate) for candidate in entered]
        return self.result(outcomes, baseline.name if baseline else None)

    def enter(self, candidates: Sequence[Candidate]) -> None:
        """Check candidates before they train, and add their steps to the progress total."""
        for candidate in candidates:
            if not isinstance(candidate, Candidate):
                kind = type(candidate).__name__
                raise AdvisorTypeError(f"candidates, and baseline, must be advisor.Candidate, got {kind}")
        names = [candidate.name for candidate in candidates]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise AdvisorValueError(f"names of candidates must differ, and these are repeated: {', '.join(repeated)}")
        self.total += sum(self._cost(candidate) for candidate in candidates)

    def train(self, candidate: Candidate) -> Outcome:
        """Tune the learning rate, and train with the best one on further seeds."""
        rungs: list[dict[float, float]] = []
        lrs = candidate.lrs
        for rung in range(RUNGS):
            rungs.append({lr: self._try(candidate, lr, rung) for lr in lrs})
            best_first = sorted(lrs, key=lambda lr: rungs[-1][lr])
            lrs = tuple(sorted(best_first[: _halved(len(lrs))]))
        for lr in candidate.halfway_to_neighbours(best_first[0]):  # refine the last rung by half a step
            rungs[-1][lr] = self._try(candidate, lr, RUNGS - 1)
        lr = min(rungs[-1], key=lambda lr: rungs[-1][lr])
        initial_score = self._initial_scores[self.tuning_seeds[0]]
        return Outcome(candidate, lr, initial_score, tuple(rungs), self.runs(candidate, lr))

    def runs(self, candidate: Candidate, lr: float) -> tuple[Run, ...]:
        """One full run per seed with this learning rate."""
        return tuple(self._train(candidate, lr, seed, self.steps, f"seed {seed}") for seed in self.seeds)

    def result(self, outcomes: Sequence[Outcome], baseline: str | None = None) -> RaceResult:
        """The result of the race, with the time and the memory of each candidate's steps."""
        costs = _costs(self.task, self.initial_model(0), [outcome.candidate for outcome in outcomes])
        return RaceResult.of(outcomes, costs, self.steps, baseline)

    def repeat(self, outcome: Outcome, observer: Observer) -> None:
        """Repeat the first of an outcome's runs inside the observer's context."""
        self.total += self.steps
        self._train(outcome.candidate, outcome.lr, self.seeds[0], self.steps, "with the probe", observer)

    def _try(self, candidate: Candidate, lr: float, rung: int) -> float:
        """The score of a learning rate; the last rung, which decides, uses two seeds."""
        seeds = self.tuning_seeds if rung == RUNGS - 1 else self.tuning_seeds[:1]
        runs = [self._train(candidate, lr, seed, self._steps(rung), f"lr {lr:.2g}") for seed in seeds]
        return statistics.fmean(run.score for run in runs)

    def _train(
        self, candidate: Candidate, lr: float, seed: int, steps: int, what: str, observer: Observer | None = None
    ) -> Run:
        self._progress(self.done, self.total, f"{candidate.name}, {what}")
        if seed not in self._initial_scores:
            self._initial_scores[seed] = initial_score(self.task, self.initial_model(seed), seed)
        model = self.initial_model(seed)
        run = train(self.task, model, candidate.make(model, lr), seed, steps, observer)
        first = self._first_losses.setdefault(seed, run.losses[0])
        if not math.isclose(run.losses[0], first, rel_tol=SAME, abs_tol=1e-30) and math.isfinite(first):
            raise AdvisorValueError(
                f"two runs with seed {seed} start with the losses {first:g} and {run.losses[0]:g}, so they cannot be "
                "compared: let the model and the batches depend on the seed alone"
            )
        self.done += steps
        return run

    def initial_model(self, seed: int) -> nn.Module:
        """The untrained model of a seed. It is an error if its parameters differ from those of earlier models."""
        model = self.task.start(seed)
        shapes = {name: tuple(param.shape) for name, param in trainable_parameters(model).items()}
        self._shapes = self._shapes or shapes
        if shapes != self._shapes:
            name = min(name for name in shapes | self._shapes if shapes.get(name) != self._shapes.get(name))
            now, before = (shape_text(found[name]) if name in found else "missing" for found in (shapes, self._shapes))
            raise AdvisorValueError(
                f"make_model must return the same architecture every time, but {name} was {before} and is now {now}"
            )
        return model

    def _steps(self, rung: int) -> int:
        return self.steps >> (RUNGS - rung)

    def _cost(self, candidate: Candidate) -> int:
        count, cost = len(candidate.lrs), len(self.seeds) * self.steps
        for rung in range(RUNGS - 1):
            cost += count * self._steps(rung)
            count = _halved(count)
        return cost + len(self.tuning_seeds) * (count + 2) * self._steps(RUNGS - 1)


def _halved(count: int) -> int:
    return max(1, count // 2)


def train(
    task: Task, model: nn.Module, optimizer: Optimizer, seed: int, steps: int, observer: Observer | None = None
) -> Run:
    """Train a model on the batches of a seed. A run that diverges is stopped, with an infinite score."""
    losses: list[float] = []
    with observer(model, optimizer) if observer else nullcontext():
        for batch in task.stream(seed, steps):
            optimizer.zero_grad()
            loss = task.evaluate(model, batch)
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
            if not math.isfinite(losses[-1]):
                return Run(tuple(losses), math.inf)
    score = held_out_loss(task, model)
    if score is None:
        score = statistics.fmean(losses[-max(1, steps // 4) :])
    return Run(tuple(losses), score if math.isfinite(score) else math.inf)


def initial_score(task: Task, model: nn.Module, seed: int) -> float:
    """The score of a run that learns next to nothing."""
    score = held_out_loss(task, model)
    return float(task.evaluate(model, next(task.stream(seed, 1))).detach()) if score is None else score


def held_out_loss(task: Task, model: nn.Module) -> float | None:
    """The mean loss over the held-out batches, if there are any. Gradients stay on: a loss may need them inside."""
    if task.held_out is None:
        return None
    model.eval()
    losses = [float(task.measure(model, batch).detach()) for batch in task.held_out]
    model.train()
    if not losses:
        raise AdvisorValueError("held_out is empty: give batches, or leave it out")
    return statistics.fmean(losses)


def _costs(task: Task, model: nn.Module, candidates: Sequence[Candidate]) -> list[tuple[float, float, int]]:
    """For each candidate: seconds per gradient, seconds per optimizer step, and bytes of state.

    Medians over interleaved steps of all candidates on the same model, so that other load on the machine affects all of
    them alike. If their states would take too much memory, candidates are timed one after the other.
    """
    states = 2 * len(candidates) * sum(param.nbytes for param in model.parameters())
    together = len(candidates) if states <= STATE_LIMIT else 1
    gradients: list[float] = []
    costs: list[tuple[float, int]] = []
    for start in range(0, len(candidates), together):
        optimizers = [candidate.make(model, candidate.lrs[0]) for candidate in candidates[start : start + together]]
        steps: list[list[float]] = [[] for _ in optimizers]
        for batch in task.stream(0, TIMED):
            model.zero_grad()
            gradients.append(_seconds(model, functools.partial(_backward, task, model, batch)))
            for optimizer, seconds in zip(optimizers, steps, strict=True):
                seconds.append(_seconds(model, optimizer.step))
        costs += [
            (statistics.median(seconds), state_bytes(optimizer))
            for optimizer, seconds in zip(optimizers, steps, strict=True)
        ]
    return [(statistics.median(gradients), *cost) for cost in costs]


def _backward(task: Task, model: nn.Module, batch: Any) -> None:
    task.loss(model, batch).backward()


def _seconds(model: nn.Module, work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    if any(param.device.type != "cpu" for param in model.parameters()):
        torch.accelerator.synchronize()
    return time.perf_counter() - start
