"""The result of a race: which candidates are better, by how much, and whether that is more than noise."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matrix_adagrad.advisor.candidates import Candidate
from matrix_adagrad.advisor.errors import NothingTrainedError
from matrix_adagrad.intervals import Interval, interval
from matrix_adagrad.text import columns, size

__all__ = ["HEADINGS", "LEVEL", "Outcome", "RaceResult", "Run", "Standing", "difference"]

HEADINGS = ("loss", "behind the best by", "verdict", "lr", "good rates", "ms per step", "optimizer", "state")
MARGIN = 0.01  # of the best loss: too little to change the optimizer for
CLOSE = 0.02  # of the best loss: a larger difference may be chance, but is not called level
LEVEL = BEST, NO_DIFFERENCE, SMALL = "best", "no difference", "within 1 %"
GOOD = 0.25  # a learning rate is good if it misses at most this share of the best one's gain


@dataclass(frozen=True)
class Run:
    """One run: the loss at each step, and the final score, infinite if it diverged."""

    losses: tuple[float, ...]
    score: float


@dataclass(frozen=True)
class Outcome:
    """A candidate's scores by learning rate at each rung of its tuning, and its runs with the best learning rate.

    ``initial_score`` is that of the untrained model.
    """

    candidate: Candidate
    lr: float
    initial_score: float
    rungs: tuple[dict[float, float], ...]
    runs: tuple[Run, ...]

    @property
    def name(self) -> str:
        """The candidate's name."""
        return self.candidate.name

    @property
    def score(self) -> float:
        """The mean over seeds; lower is better."""
        return statistics.fmean(run.score for run in self.runs)

    @property
    def good_lrs(self) -> tuple[float, float] | None:
        """The range of learning rates that are about as good as the best after an eighth of the steps.

        It includes the chosen rate, which may lie below the others because short runs favour high rates.
        """
        first = self.rungs[0]
        lrs, best = list(first), min(first.values())
        if math.isinf(best):
            return None
        limit = best + GOOD * max(0.0, self.initial_score - best)
        low = high = lrs.index(min(first, key=lambda lr: first[lr]))
        while low > 0 and first[lrs[low - 1]] <= limit:
            low -= 1
        while high < len(lrs) - 1 and first[lrs[high + 1]] <= limit:
            high += 1
        return min(lrs[low], self.lr), max(lrs[high], self.lr)

    @property
    def is_at_edge(self) -> bool:
        """Whether the chosen learning rate is at the edge of the grid: a better one may lie beyond."""
        return not self.candidate.lrs[0] < self.lr < self.candidate.lrs[-1]


@dataclass(frozen=True)
class Standing:
    """A candidate compared with the best one.

    ``difference`` is the mean of its scores minus the best one's over the same seeds, with its 95 % interval.
    ``verdict`` is ``"best"``; ``"no difference"`` if the interval contains 0 and the mean is at most 2 % of the best
    loss; ``"undecided"`` if it contains 0 and the mean is larger: more seeds are needed; ``"within 1 %"`` of the best
    loss; ``"worse"``; or ``"failed"``.
    """

    outcome: Outcome
    difference: Interval
    verdict: str
    gradient_seconds: float
    step_seconds: float
    state_bytes: int

    @property
    def name(self) -> str:
        """The candidate's name."""
        return self.outcome.name

    @property
    def table_row(self) -> tuple[str, ...]:
        """The numbers as text, one for each of HEADINGS."""
        return (
            f"{self.outcome.score:.4g}",
            "" if self.verdict in (BEST, "failed") else str(self.difference),
            self.verdict,
            f"{self.outcome.lr:.2g}" + " (edge)" * self.outcome.is_at_edge,
            "–" if self.outcome.good_lrs is None else "{:.2g} – {:.2g}".format(*self.outcome.good_lrs),
            f"{1e3 * (self.gradient_seconds + self.step_seconds):.3g}",
            f"{1e3 * self.step_seconds:.2g}",
            size(self.state_bytes),
        )

    @property
    def is_level(self) -> bool:
        """Whether it is level with the best: nothing shows that it is worse by more than 1 %."""
        return self.verdict in LEVEL


@dataclass(frozen=True)
class RaceResult:
    """The result of a race. ``standings`` are in the order of the mean scores, the best first."""

    standings: tuple[Standing, ...]
    steps: int
    baseline: str | None

    @classmethod
    def of(
        cls, outcomes: Sequence[Outcome], costs: Sequence[tuple[float, float, int]], steps: int, baseline: str | None
    ) -> RaceResult:
        """Compare outcomes; ``costs`` are seconds per gradient, seconds per optimizer step, and bytes of state."""
        best = min(outcomes, key=lambda outcome: outcome.score)
        if math.isinf(best.score):
            raise NothingTrainedError(
                "every candidate diverged at every learning rate: is the loss of the untrained model finite?"
            )
        standings = [
            Standing(outcome, difference(outcome, best), _verdict(outcome, best), *cost)
            for outcome, cost in zip(outcomes, costs, strict=True)
        ]
        return cls(tuple(sorted(standings, key=lambda standing: standing.outcome.score)), steps, baseline)

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """The candidates' outcomes, the best first."""
        return tuple(standing.outcome for standing in self.standings)

    @property
    def best(self) -> Standing:
        """The candidate with the lowest mean score."""
        return self.standings[0]

    @property
    def chosen(self) -> Standing:
        """The candidate to use: of this package's that are level with its best, the one with the least state.

        Raises:
            NothingTrainedError: if no optimizer of this package took part, or none trained the model.
        """
        if not self._plannable:
            raise NothingTrainedError("no optimizer of this package trained the model, so there is no plan")
        best = self._plannable[0].outcome
        level = [standing for standing in self._plannable if _verdict(standing.outcome, best) in LEVEL]
        return min(level, key=lambda standing: standing.state_bytes)

    @property
    def _plannable(self) -> list[Standing]:
        """The candidates that a plan can be made from."""
        ours = (standing for standing in self.standings if standing.outcome.candidate.geometries is not None)
        return [standing for standing in ours if math.isfinite(standing.outcome.score)]

    @property
    def seeds_differ(self) -> bool:
        """Whether runs differ between seeds; if not, the intervals mean nothing."""
        return len({run.losses for run in self.best.outcome.runs}) > 1

    def __getitem__(self, name: str) -> Standing:
        for standing in self.standings:
            if standing.name == name:
                return standing
        raise KeyError(f"no candidate {name!r}: there are {', '.join(outcome.name for outcome in self.outcomes)}")

    def __str__(self) -> str:
        return self.table()

    def table(self) -> str:
        """The standings, for a terminal."""
        chosen = self.chosen if self._plannable else None
        rows = []
        for standing in self.standings:
            mark, note = "→ " if standing is chosen else "  ", " (now)" * (standing.name == self.baseline)
            rows.append((mark + standing.name + note, *standing.table_row))
        return columns(("candidate", *HEADINGS), rows, left=(0, 2, 3))

    def to_dict(self) -> dict[str, Any]:
        """All numbers but the loss curves, for JSON."""
        return {
            "steps": self.steps,
            "chosen": self.chosen.name if self._plannable else None,
            "standings": [
                {
                    "candidate": standing.name,
                    "verdict": standing.verdict,
                    "score": standing.outcome.score,
                    "scores": [run.score for run in standing.outcome.runs],
                    "difference": [standing.difference.mean, standing.difference.low, standing.difference.high],
                    "lr": standing.outcome.lr,
                    "good_lr": standing.outcome.good_lrs,
                    "tuning": [{f"{lr:.6g}": score for lr, score in rung.items()} for rung in standing.outcome.rungs],
                    "gradient_seconds": standing.gradient_seconds,
                    "step_seconds": standing.step_seconds,
                    "state_bytes": standing.state_bytes,
                }
                for standing in self.standings
            ],
        }


def difference(left: Outcome, right: Outcome) -> Interval:
    """The mean of left's scores minus right's, paired by seed, with its 95 % interval."""
    return interval([run.score - other.score for run, other in zip(left.runs, right.runs, strict=True)])


def _verdict(outcome: Outcome, best: Outcome) -> str:
    if outcome is best:
        return BEST
    if math.isinf(outcome.score):
        return "failed"
    behind = difference(outcome, best)
    if not behind.is_positive:
        return NO_DIFFERENCE if behind.mean <= CLOSE * abs(best.score) else "undecided"
    return SMALL if behind.mean <= MARGIN * abs(best.score) else "worse"
