"""What a race has shown: who is better than whom, by how much, and whether that is more than noise."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matrix_adagrad.advisor.candidates import Candidate
from matrix_adagrad.advisor.errors import AstrayError
from matrix_adagrad.intervals import Interval, interval
from matrix_adagrad.text import columns, size

__all__ = ["FIGURES", "LEVEL", "Outcome", "Result", "Run", "Standing", "difference", "size"]

FIGURES = ("loss", "behind the best by", "verdict", "lr", "good rates", "ms a step", "optimizer's", "state")
MARGIN = 0.01  # of the best loss: for less than that nobody would change an optimizer
CLOSE = 0.02  # of the best loss: what is farther away may be so by chance, but is not called level
LEVEL = BEST, NO_DIFFERENCE, SMALL = "best", "no difference", "within 1 %"
GOOD = 0.25  # a learning rate is good if it loses at most so much of the way that the best one has come


@dataclass(frozen=True)
class Run:
    """One run: the loss at each step, and what it is judged by at the end, infinite if it went astray."""

    losses: tuple[float, ...]
    score: float


@dataclass(frozen=True)
class Outcome:
    """What a candidate did: at each rung of its tuning the scores by learning rate, and its runs with the best one.

    ``start`` is the score of the model before the first step.
    """

    candidate: Candidate
    lr: float
    start: float
    rungs: tuple[dict[float, float], ...]
    runs: tuple[Run, ...]

    @property
    def name(self) -> str:
        """The candidate's."""
        return self.candidate.name

    @property
    def score(self) -> float:
        """The mean over seeds; lower is better."""
        return statistics.fmean(run.score for run in self.runs)

    @property
    def good(self) -> tuple[float, float] | None:
        """The learning rates around the best that are about as good after an eighth of the steps, up to the chosen one.

        Short runs like high rates: the one that was chosen in the end may lie below those.
        """
        first = self.rungs[0]
        lrs, best = list(first), min(first.values())
        if math.isinf(best):
            return None
        limit = best + GOOD * max(0.0, self.start - best)
        low = high = lrs.index(min(first, key=lambda lr: first[lr]))
        while low > 0 and first[lrs[low - 1]] <= limit:
            low -= 1
        while high < len(lrs) - 1 and first[lrs[high + 1]] <= limit:
            high += 1
        return min(lrs[low], self.lr), max(lrs[high], self.lr)

    @property
    def is_at_edge(self) -> bool:
        """Whether the chosen rate is the lowest or the highest that was tried: a better one may lie beyond."""
        return not self.candidate.lrs[0] < self.lr < self.candidate.lrs[-1]


@dataclass(frozen=True)
class Standing:
    """How a candidate stands to the best one.

    ``difference`` is the mean of its scores minus the best one's over the same seeds, with its 95 % interval; and
    ``verdict`` is ``"best"``, ``"no difference"`` if the interval has 0 in it and the mean is at
    most 2 % of the best loss, ``"undecided"`` if it is more: other seeds may tell, ``"within 1 %"`` of the best
    loss, ``"worse"`` or ``"failed"``.
    """

    outcome: Outcome
    difference: Interval
    verdict: str
    gradient_seconds: float
    step_seconds: float
    state_bytes: int

    @property
    def name(self) -> str:
        """The candidate's."""
        return self.outcome.name

    @property
    def figures(self) -> tuple[str, ...]:
        """The numbers as they are read, one for each of FIGURES."""
        return (
            f"{self.outcome.score:.4g}",
            "" if self.verdict in (BEST, "failed") else str(self.difference),
            self.verdict,
            f"{self.outcome.lr:.2g}" + " (edge)" * self.outcome.is_at_edge,
            "–" if self.outcome.good is None else "{:.2g} – {:.2g}".format(*self.outcome.good),
            f"{1e3 * (self.gradient_seconds + self.step_seconds):.3g}",
            f"{1e3 * self.step_seconds:.2g}",
            size(self.state_bytes),
        )

    @property
    def is_level(self) -> bool:
        """Whether nothing shows that it is worse than the best."""
        return self.verdict in LEVEL


@dataclass(frozen=True)
class Result:
    """A race that is over. ``standings`` are in the order of the mean scores, the best first."""

    standings: tuple[Standing, ...]
    steps: int
    present: str | None

    @classmethod
    def of(
        cls, outcomes: Sequence[Outcome], costs: Sequence[tuple[float, float, int]], steps: int, present: str | None
    ) -> Result:
        """Compare outcomes with each other; ``costs`` are seconds of a gradient and of a step, and bytes of state."""
        best = min(outcomes, key=lambda one: one.score)
        if math.isinf(best.score):
            raise AstrayError("every candidate went astray at every learning rate: is the loss finite at the start?")
        standings = []
        for one, cost in zip(outcomes, costs, strict=True):
            standings.append(Standing(one, difference(one, best), _verdict(one, best), *cost))
        return cls(tuple(sorted(standings, key=lambda one: one.outcome.score)), steps, present)

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """The candidates' outcomes, the best first."""
        return tuple(one.outcome for one in self.standings)

    @property
    def best(self) -> Standing:
        """The one with the lowest mean score."""
        return self.standings[0]

    @property
    def chosen(self) -> Standing:
        """The one to use: the least state among those that are level with the best of which a plan can be made.

        Raises:
            AstrayError: if no plan can be made: no optimizer of this package was there, or none trained the model.
        """
        if not self._possible:
            raise AstrayError("no optimizer of this package has trained the model: there is nothing to plan with")
        best = self._possible[0].outcome
        level = [one for one in self._possible if _verdict(one.outcome, best) in LEVEL]
        return min(level, key=lambda one: one.state_bytes)

    @property
    def _possible(self) -> list[Standing]:
        """Those that a plan can be made of."""
        ours = (one for one in self.standings if one.outcome.candidate.geometries is not None)
        return [one for one in ours if math.isfinite(one.outcome.score)]

    @property
    def seeds_differ(self) -> bool:
        """Whether seeds change anything: if not, intervals mean nothing."""
        return len({run.losses for run in self.best.outcome.runs}) > 1

    def __getitem__(self, name: str) -> Standing:
        for one in self.standings:
            if one.name == name:
                return one
        raise KeyError(f"no candidate {name!r}: there are {', '.join(one.name for one in self.standings)}")

    def __str__(self) -> str:
        return self.table()

    def table(self) -> str:
        """The standings, for a terminal."""
        chosen = self.chosen if self._possible else None
        rows = [
            (("→ " if one is chosen else "  ") + one.name + " (now)" * (one.name == self.present), *one.figures)
            for one in self.standings
        ]
        return columns(("candidate", *FIGURES), rows, left=(0, 2, 3))

    def to_dict(self) -> dict[str, Any]:
        """For JSON, with every number but the curves."""
        return {
            "steps": self.steps,
            "chosen": self.chosen.name if self._possible else None,
            "standings": [
                {
                    "candidate": one.name,
                    "verdict": one.verdict,
                    "score": one.outcome.score,
                    "scores": [run.score for run in one.outcome.runs],
                    "difference": [one.difference.mean, one.difference.low, one.difference.high],
                    "lr": one.outcome.lr,
                    "good_lr": one.outcome.good,
                    "tuning": [{f"{lr:.6g}": score for lr, score in rung.items()} for rung in one.outcome.rungs],
                    "gradient_seconds": one.gradient_seconds,
                    "step_seconds": one.step_seconds,
                    "state_bytes": one.state_bytes,
                }
                for one in self.standings
            ],
        }


def difference(one: Outcome, other: Outcome) -> Interval:
    """The mean of one's scores minus the other's, seed by seed, with its interval."""
    return interval([mine.score - theirs.score for mine, theirs in zip(one.runs, other.runs, strict=True)])


def _verdict(one: Outcome, best: Outcome) -> str:
    if one is best:
        return BEST
    if math.isinf(one.score):
        return "failed"
    apart = difference(one, best)
    if not apart.is_positive:
        return NO_DIFFERENCE if apart.mean <= CLOSE * abs(best.score) else "undecided"
    return SMALL if apart.mean <= MARGIN * abs(best.score) else "worse"
