"""Races candidates: runs on the same initializations and batches, with the same tuning budget for each."""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor, nn

from matrix_adagrad.advisor.candidates import (
    Candidate,
    as_family,
    distinct,
    make_candidate,
    trainable_parameters,
    uniform_geometries,
)
from matrix_adagrad.advisor.costs import costs
from matrix_adagrad.advisor.errors import AdvisorTypeError, AdvisorValueError
from matrix_adagrad.advisor.heats import finalists, leaders, semifinalists
from matrix_adagrad.advisor.race_result import RaceResult
from matrix_adagrad.advisor.standings import Outcome
from matrix_adagrad.advisor.task import Batches, Schedule, Task, generators_restored
from matrix_adagrad.advisor.training import Observer, Run, start_score, train
from matrix_adagrad.advisor.tuning import Tuning
from matrix_adagrad.advisor.verdicts import MOST_SEEDS
from matrix_adagrad.intervals import interval
from matrix_adagrad.text import shape_text

__all__ = ["Race", "race"]

STEPS, SEEDS = 200, 5  # defaults: steps of a run, and runs of each candidate
ALLOWED_STEPS, ALLOWED_SEEDS = range(16, 10**9), range(2, MOST_SEEDS + 1)
SIFTED = 4  # learning rates that run on for a quarter of the steps, of all that run for an eighth
RATES, TRIES = 3, 5  # learning rates at half and at full length: at first, and at most
SAME_START = 1e-3  # relative tolerance of the first loss between runs of a seed

Progress = Callable[[int, int, str], None]  # steps done, steps in total (about), and what is running


def race(
    make_model: Callable[[], nn.Module],
    loss: Callable[[nn.Module, Any], Tensor],
    batches: Batches,
    *,
    held_out: Iterable[Any] | None = None,
    schedule: Schedule | None = None,
    candidates: Sequence[Candidate] | None = None,
    baseline: Candidate | None = None,
    steps: int = STEPS,
    seeds: int = SEEDS,
    progress: Progress | None = None,
) -> RaceResult:
    """Train with each candidate, and compare them.

    Every candidate is tuned over its grid of learning rates in short runs, on seeds that are used for nothing else.
    Those that are far behind are dropped. The others are tuned at half and at full length, and train with their best
    rate on further seeds, on the same initializations and batches.

    Args:
        make_model: as in `Task`, like the next four.
        loss: takes the model and a batch.
        batches: an iterable of batches, or a function of the seed that returns one.
        held_out: batches to score runs on.
        schedule: takes the optimizer and the number of steps, and returns a learning-rate scheduler.
        candidates: by default row, column, entry and whole, each with AdaGrad and with momentum.
        baseline: the optimizer that you use now, as one more candidate.
        steps: the number of steps of a run at full length. The race takes some 100 times as many, in all.
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
    task = Task(make_model, loss, batches, held_out, schedule=schedule)
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
        self.done, self.total = 0, 0  # steps, the latter of what is known to run
        self._entered, self._later = 0, 0  # candidates, and about how many steps the later stages take
        self._shapes: dict[str, tuple[int, ...]] = {}  # of the model's parameters
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
        """All stages of the race, and what a step of each candidate costs."""
        entered = [*candidates, *([baseline] if baseline is not None else [])]
        self.enter(entered)
        return self.decide([self.sift(candidate) for candidate in entered], baseline.name if baseline else None)

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
        self._entered += len(candidates)
        self._later = (3 * min(self._entered, 8) + 6 * min(self._entered, 6) + 6 * len(self.seeds)) * self.steps
        for candidate in candidates:
            self.total += len(candidate.lrs) * (self.steps // 8) + min(SIFTED, len(candidate.lrs)) * (self.steps // 4)

    def sift(self, candidate: Candidate) -> Tuning:
        """Try all learning rates for an eighth of the steps, and the best few for a quarter."""
        _ = self.starts  # held-out batches that cannot be used are an error before the first run
        tuning, seed = Tuning(candidate), self.tuning_seeds[:1]
        lrs: Sequence[float] = candidate.lrs
        for steps in (self.steps // 8, self.steps // 4):
            tuning.rungs[steps] = {lr: self._try(candidate, lr, steps, seed) for lr in lrs}
            lrs = sorted(lrs, key=lambda lr: tuning.rungs[steps][lr])[:SIFTED]
        return tuning

    def tune(self, tuning: Tuning, steps: int) -> None:
        """Try the extrapolated learning rate and its neighbours with more steps, and go on towards the better side."""
        scores: dict[int, float] = {}
        start, low, high = tuning.lr(steps), -(RATES // 2), RATES // 2
        for place in range(low, high + 1):
            scores[place] = self._try(tuning.candidate, tuning.candidate.lr_near(start, place), steps)
        while (best := min(scores, key=lambda place: scores[place])) in (low, high) and len(scores) < TRIES:
            if best == low:
                place = low = low - 1
            else:
                place = high = high + 1
            self.total += len(self.tuning_seeds) * steps
            scores[place] = self._try(tuning.candidate, tuning.candidate.lr_near(start, place), steps)
        tuning.rungs[steps] = {tuning.candidate.lr_near(start, place): scores[place] for place in sorted(scores)}

    def decide(self, tunings: Sequence[Tuning], baseline: str | None = None) -> RaceResult:
        """Drop who is far behind, train the others at full length, and measure what their steps cost."""
        found = costs(self.task, self.initial_model(0), [tuning.candidate for tuning in tunings])
        states = {tuning.candidate.name: cost.state_bytes for tuning, cost in zip(tunings, found, strict=True)}
        tried = RATES * len(self.tuning_seeds)
        remaining = semifinalists(tunings, states, baseline)
        self.total += len(remaining) * tried * (self.steps // 2)
        self._later = (6 * min(len(remaining), 6) + 6 * len(self.seeds)) * self.steps
        for tuning in remaining:
            self.tune(tuning, self.steps // 2)
        remaining = finalists(remaining, states, baseline)
        self.total += len(remaining) * tried * self.steps
        self._later = 6 * len(self.seeds) * self.steps
        for tuning in remaining:
            self.tune(tuning, self.steps)
        remaining = leaders(remaining, states, baseline)
        self.total += (len(remaining) + 2) * len(self.seeds) * self.steps
        self._later = 0
        outcomes = [self._outcome(tuning, tuning in remaining) for tuning in tunings]
        result = RaceResult.of(outcomes, found, self.starts, self.steps, baseline)
        if result.chosen is not None:
            chosen = result.chosen.outcome
            outcomes[outcomes.index(chosen)] = self._with_neighbours(chosen)
            result = RaceResult.of(outcomes, found, self.starts, self.steps, baseline)
        self._progress(self.done, self.done, "done")
        return result

    @functools.cached_property
    def starts(self) -> tuple[float, ...]:
        """The score of the untrained model, by seed."""
        return tuple(start_score(self.task, self.initial_model(seed), seed, self.steps) for seed in self.seeds)

    def runs(self, candidate: Candidate, lr: float) -> tuple[Run, ...]:
        """One full run per seed with this learning rate."""
        return tuple(self._train(candidate, lr, seed, self.steps, f"seed {seed}") for seed in self.seeds)

    def observe(self, tuning: Tuning, observer: Observer) -> None:
        """One run of full length inside the observer's context, with the extrapolated rate."""
        self.total += self.steps
        lr = tuning.candidate.lr_near(tuning.lr(self.steps))
        self._train(tuning.candidate, lr, self.tuning_seeds[0], self.steps, "with the probe", observer)

    def _outcome(self, tuning: Tuning, leads: bool) -> Outcome:
        lr = tuning.best_lr(tuning.steps)
        runs = self.runs(tuning.candidate, lr) if leads else ()
        return Outcome(tuning.candidate, lr, tuning.rungs, runs, tuning.exponent)

    def _with_neighbours(self, outcome: Outcome) -> Outcome:
        """What the rate costs: the neighbouring rates on the same seeds. One that is better takes its place."""
        runs = {outcome.lr: outcome.runs}
        for side in (-1, 1):
            lr = outcome.candidate.lr_near(outcome.lr, side)
            runs[lr] = self.runs(outcome.candidate, lr)
        for lr, others in runs.items():
            differences = [run.score - other.score for run, other in zip(outcome.runs, others, strict=True)]
            if lr != outcome.lr and interval(differences).low > 0:
                outcome = dataclasses.replace(outcome, lr=lr, runs=others)
        return dataclasses.replace(outcome, beside={lr: runs[lr] for lr in runs if lr != outcome.lr})

    def _try(self, candidate: Candidate, lr: float, steps: int, seeds: Sequence[int] | None = None) -> float:
        """The mean score of a learning rate, by default on both tuning seeds."""
        seeds = self.tuning_seeds if seeds is None else seeds
        return statistics.fmean(self._train(candidate, lr, seed, steps, f"lr {lr:.2g}").score for seed in seeds)

    def _train(
        self, candidate: Candidate, lr: float, seed: int, steps: int, what: str, observer: Observer | None = None
    ) -> Run:
        self._progress(self.done, self.total + self._later, f"{candidate.name}, {what}")
        model = self.initial_model(seed)
        run = train(self.task, model, candidate.make(model, lr), seed, steps, observer)
        first = self._first_losses.setdefault(seed, run.losses[0])
        if not math.isclose(run.losses[0], first, rel_tol=SAME_START, abs_tol=1e-30) and math.isfinite(first):
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
