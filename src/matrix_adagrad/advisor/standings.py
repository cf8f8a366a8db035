"""What became of each candidate of a race, and how it compares with the best one."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from matrix_adagrad.advisor.candidates import Candidate
from matrix_adagrad.advisor.costs import Cost
from matrix_adagrad.advisor.training import Run
from matrix_adagrad.advisor.verdicts import compare
from matrix_adagrad.intervals import Interval, interval
from matrix_adagrad.text import size

__all__ = ["HEADINGS", "Outcome", "Standing", "compared", "difference", "paired"]

HEADINGS = ("loss", "behind the best by", "verdict", "lr", "good rates", "ms per step", "optimizer", "state")
BEST, FAILED, DROPPED = "best", "failed", "dropped"
GOOD = 0.25  # a learning rate is good if it misses at most this share of the best one's gain


@dataclass(frozen=True)
class Outcome:
    """What became of a candidate.

    ``rungs`` are the scores of its tuning, by number of steps and learning rate. ``runs`` are the runs at full length
    with the best rate, on further seeds; there are none if it was dropped before. ``beside`` are runs on the same seeds
    with the neighbouring rates, for the chosen candidate only. The best rate is proportional to the number of steps to
    the power ``exponent``.
    """

    candidate: Candidate
    lr: float
    rungs: Mapping[int, Mapping[float, float]]
    runs: tuple[Run, ...]
    exponent: float = 0.0
    beside: Mapping[float, tuple[Run, ...]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The candidate's name."""
        return self.candidate.name

    @property
    def score(self) -> float:
        """The mean over seeds, or the best of its longest tuning runs if it was dropped; lower is better."""
        return statistics.fmean(run.score for run in self.runs) if self.runs else self.score_at(self.steps)

    @property
    def steps(self) -> int:
        """The number of steps of its longest runs."""
        return max(self.rungs)

    def score_at(self, steps: int) -> float:
        """The best score of its tuning with so many steps."""
        return min(self.rungs[steps].values())

    def good_lrs(self, start: float) -> tuple[float, float] | None:
        """The range of learning rates that are about as good as the best in the shortest runs.

        ``start`` is the score of the untrained model. The range includes the chosen rate, which may lie below the
        others because short runs favour high rates.
        """
        first = self.rungs[min(self.rungs)]
        lrs, best = list(first), min(first.values())
        if math.isinf(best):
            return None
        limit = best + GOOD * max(0.0, start - best)
        low = high = lrs.index(min(first, key=lambda lr: first[lr]))
        while low > 0 and first[lrs[low - 1]] <= limit:
            low -= 1
        while high < len(lrs) - 1 and first[lrs[high + 1]] <= limit:
            high += 1
        return min(lrs[low], self.lr), max(lrs[high], self.lr)

    @property
    def is_at_edge(self) -> bool:
        """Whether the chosen rate is the lowest or highest of the longest tuning runs: a better one may lie beyond."""
        tried = self.rungs[self.steps]
        return not min(tried) < self.lr < max(tried)


@dataclass(frozen=True)
class Standing:
    """A candidate compared with the best one.

    ``difference`` is the mean of its scores minus the best one's over the same seeds, with its 95 % interval.
    ``verdict`` is ``"best"``; ``"no difference"`` if the interval lies within the margin; ``"worse"`` if it lies
    above 0; ``"undecided"`` if neither; ``"failed"`` if it diverged; or ``"dropped"`` if it was too far behind before
    full length: then the difference is that of the best tuning runs with as many steps.
    """

    outcome: Outcome
    difference: Interval
    verdict: str
    good_lrs: tuple[float, float] | None
    cost: Cost

    @property
    def name(self) -> str:
        """The candidate's name."""
        return self.outcome.name

    @property
    def state_bytes(self) -> int:
        """The memory of the optimizer's state."""
        return self.cost.state_bytes

    def to_dict(self) -> dict[str, Any]:
        """All numbers but the loss curves, for JSON."""
        outcome = self.outcome
        return {
            "candidate": self.name,
            "verdict": self.verdict,
            "steps": outcome.steps,
            "score": outcome.score,
            "scores": [run.score for run in outcome.runs],
            "difference": [self.difference.mean, self.difference.low, self.difference.high],
            "lr": outcome.lr,
            "lr_exponent": outcome.exponent,
            "good_lr": self.good_lrs,
            "beside": {f"{lr:.6g}": [run.score for run in runs] for lr, runs in outcome.beside.items()},
            "tuning": {
                steps: {f"{lr:.6g}": score for lr, score in sorted(rung.items())}
                for steps, rung in outcome.rungs.items()
            },
            **self.cost._asdict(),
        }

    @property
    def table_row(self) -> tuple[str, ...]:
        """The numbers as text, one for each of HEADINGS."""
        behind, loss = str(self.difference), f"{self.outcome.score:.4g}"
        if self.verdict == DROPPED:
            behind, loss = f"{self.difference.mean:+.3g}", f"{loss} at {self.outcome.steps}"
        return (
            loss,
            "" if self.verdict in (BEST, FAILED) else behind,
            self.verdict,
            f"{self.outcome.lr:.2g}" + " (edge)" * self.outcome.is_at_edge,
            "–" if self.good_lrs is None else "{:.2g} – {:.2g}".format(*self.good_lrs),
            f"{1e3 * (self.cost.gradient_seconds + self.cost.step_seconds):.3g}",
            f"{1e3 * self.cost.step_seconds:.2g}",
            size(self.state_bytes),
        )


def difference(left: Outcome, right: Outcome) -> Interval:
    """The mean of left's scores minus right's, paired by seed, with its 95 % interval."""
    return paired(left.runs, right.runs)


def paired(left: Sequence[Run], right: Sequence[Run]) -> Interval:
    """The mean of the scores of left minus those of right, run by run, with its 95 % interval."""
    return interval([run.score - other.score for run, other in zip(left, right, strict=True)])


def compared(outcome: Outcome, best: Outcome, margin: float) -> tuple[Interval, str]:
    """The difference from the best, and the verdict on it."""
    if not outcome.runs:
        mean = outcome.score - best.score_at(outcome.steps)
        return Interval(mean, mean, mean, 1), FAILED if math.isinf(outcome.score) else DROPPED
    behind = difference(outcome, best)
    if outcome is best:
        return behind, BEST
    if math.isinf(outcome.score):
        return behind, FAILED
    return behind, compare(behind, margin)
