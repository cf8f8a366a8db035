"""The result of a race: which candidates are better, by how much, and whether that is more than noise."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matrix_adagrad.advisor.costs import Cost
from matrix_adagrad.advisor.errors import NothingTrainedError
from matrix_adagrad.advisor.standings import HEADINGS, Outcome, Standing, compared, difference, paired
from matrix_adagrad.advisor.verdicts import SAME, compare, has_learned, margin
from matrix_adagrad.intervals import Interval, interval
from matrix_adagrad.text import columns

__all__ = ["RaceResult", "Rival"]


@dataclass(frozen=True)
class Rival:
    """What may be better than the choice by more than the margin: another candidate, or another rate of its own.

    ``difference`` is the choice's loss minus the rival's.
    """

    name: str
    lr: float
    difference: Interval


@dataclass(frozen=True)
class RaceResult:
    """The result of a race: ``standings`` in the order of the mean scores, the best first, those dropped last.

    ``starts`` are the scores of the untrained models, by seed.
    """

    standings: tuple[Standing, ...]
    starts: tuple[float, ...]
    steps: int
    baseline: str | None

    @classmethod
    def of(
        cls,
        outcomes: Sequence[Outcome],
        costs: Sequence[Cost],
        starts: Sequence[float],
        steps: int,
        baseline: str | None,
    ) -> RaceResult:
        """Compare outcomes that had these costs."""
        finalists = [outcome for outcome in outcomes if outcome.runs]
        best, start = min(finalists, key=lambda outcome: outcome.score), statistics.fmean(starts)
        if math.isinf(best.score):
            raise NothingTrainedError(
                "every candidate diverged at every learning rate: is the loss of the untrained model finite?"
            )
        standings = [
            Standing(outcome, *compared(outcome, best, margin(best.score, start)), outcome.good_lrs(start), cost)
            for outcome, cost in zip(outcomes, costs, strict=True)
        ]
        standings.sort(
            key=lambda standing: (not standing.outcome.runs, -standing.outcome.steps, standing.outcome.score)
        )
        return cls(tuple(standings), tuple(starts), steps, baseline)

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """The candidates' outcomes, the best first."""
        return tuple(standing.outcome for standing in self.standings)

    @property
    def finalists(self) -> tuple[Standing, ...]:
        """The candidates that trained at full length."""
        return tuple(standing for standing in self.standings if standing.outcome.runs)

    @property
    def best(self) -> Standing:
        """The candidate with the lowest mean score."""
        return self.standings[0]

    @property
    def start(self) -> float:
        """The mean score of the untrained models."""
        return statistics.fmean(self.starts)

    @property
    def margin(self) -> float:
        """The largest difference in the loss that is called none."""
        return margin(self.best.outcome.score, self.start)

    def gain(self, outcome: Outcome) -> Interval:
        """How far the loss fell below the start's, seed by seed."""
        return interval(self._gains(outcome))

    def _gains(self, outcome: Outcome) -> list[float]:
        return [start - run.score for start, run in zip(self.starts, outcome.runs, strict=True)]

    def learned(self, outcome: Outcome) -> bool:
        """Whether the loss fell from the start's."""
        return math.isfinite(outcome.score) and has_learned(self._gains(outcome), self.start)

    @property
    def chosen(self) -> Standing | None:
        """The candidate to use: of this package's that are level with its best, the one with the least state.

        It is ``None`` if none of them learned anything.
        """
        ours = [standing for standing in self._ours if self.learned(standing.outcome)]
        if not ours:
            return None
        best = ours[0].outcome
        level = [other for other in ours[1:] if compare(difference(other.outcome, best), self.margin) == SAME]
        return min([ours[0], *level], key=lambda standing: standing.state_bytes)

    @property
    def _ours(self) -> list[Standing]:
        """The finalists that a plan can be made of."""
        return [standing for standing in self.finalists if standing.outcome.candidate.geometries is not None]

    @property
    def rivals(self) -> tuple[Rival, ...]:
        """What may be better than the choice by more than the margin. Without any, the choice is settled."""
        if self.chosen is None:
            return ()
        mine = self.chosen.outcome
        others = [standing.outcome for standing in self._ours if standing is not self.chosen]
        runs = [(mine.name, lr, runs) for lr, runs in mine.beside.items()]
        runs += [(other.name, other.lr, other.runs) for other in others]
        found = [Rival(name, lr, paired(mine.runs, theirs)) for name, lr, theirs in runs]
        return tuple(rival for rival in found if rival.difference.high > self.margin)

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
        rows = []
        for standing in self.standings:
            mark, note = "→ " if standing is self.chosen else "  ", " (now)" * (standing.name == self.baseline)
            rows.append((mark + standing.name + note, *standing.table_row))
        rows.append(("  (the start)", f"{self.start:.4g}", *[""] * (len(HEADINGS) - 1)))
        return columns(("candidate", *HEADINGS), rows, left=(0, 2, 3))

    def to_dict(self) -> dict[str, Any]:
        """All numbers but the loss curves, for JSON."""
        gain = self.gain(self.best.outcome)
        return {
            "steps": self.steps,
            "chosen": self.chosen.name if self.chosen else None,
            "margin": self.margin,
            "start": {
                "score": self.start,
                "scores": list(self.starts),
                "gain": [gain.mean, gain.low, gain.high],
                "learned": self.learned(self.best.outcome),
            },
            "rivals": [
                {"candidate": rival.name, "lr": rival.lr, "may_be_better_by": rival.difference.high}
                for rival in self.rivals
            ],
            "standings": [standing.to_dict() for standing in self.standings],
        }
