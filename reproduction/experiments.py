"""All experiments, in the order of the paper, and the verdicts on their claims."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from reproduction import games, movielens, networks, structure
from reproduction.cells import Cell, Known
from reproduction.verdict import Verdict

__all__ = ["EXPERIMENTS", "Results", "judge"]

EXPERIMENTS = {
    each.name: each for each in (games.EXPERIMENT, structure.EXPERIMENT, movielens.EXPERIMENT, networks.EXPERIMENT)
}


@dataclass(frozen=True)
class Results:
    """The results of a reproduction so far, full or quick."""

    known: Known
    is_quick: bool = False

    def needed(self, what: str = "all") -> list[Cell]:
        """The cells of an experiment, or of all, as far as the results tell."""
        names = EXPERIMENTS if what == "all" else (what,)
        return [cell for name in names for cell in EXPERIMENTS[name].needed(self._size(name), self.known)]

    def evidence(self, experiment: str) -> Any:
        """An experiment's results in the terms of its claims, or ``None`` if it has not finished."""
        if not all(cell in self.known for cell in self.needed(experiment)):
            return None
        return EXPERIMENTS[experiment].evidence(self.known, self._size(experiment))

    def _size(self, name: str) -> Any:
        experiment = EXPERIMENTS[name]
        return experiment.quick if self.is_quick else experiment.full


def judge(results: Results) -> list[Verdict]:
    """The verdicts on all claims, in the paper's order. A claim whose experiment has not finished is “not run”."""
    verdicts: list[Verdict] = []
    for name, experiment in EXPERIMENTS.items():
        evidence = results.evidence(name)
        checks = [() if evidence is None else tuple(claim.checks(evidence)) for claim in experiment.claims]
        verdicts += [Verdict(name, *pair) for pair in zip(experiment.claims, checks, strict=True)]
    return verdicts
