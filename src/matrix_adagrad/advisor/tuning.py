"""The learning rates that a candidate has tried, and the one that they suggest for a longer run."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

from matrix_adagrad.advisor.candidates import Candidate

__all__ = ["Tuning", "optimum"]

# The best rate is taken to go with a power of the number of steps T. With a constant step on a noisy problem it falls
# like 1/√T (regret bounds) down to log(T)/T (a noisy quadratic); AdaGrad's steps shrink by themselves, and it stays.
LEAST, LARGEST = -1.0, 0.0


@dataclass(eq=False)
class Tuning:
    """The scores of a candidate's runs on the tuning seeds, by number of steps and learning rate."""

    candidate: Candidate
    rungs: dict[int, dict[float, float]] = field(default_factory=dict)

    @property
    def family(self) -> str:
        """The candidate's update rule."""
        return self.candidate.family

    @property
    def steps(self) -> int:
        """The number of steps of the longest runs."""
        return max(self.rungs)

    def score(self, steps: int) -> float:
        """The score of the best learning rate after so many steps."""
        return min(self.rungs[steps].values())

    def best_lr(self, steps: int) -> float:
        """The best of the rates that were tried with so many steps."""
        scores = self.rungs[steps]
        return min(scores, key=lambda lr: scores[lr])

    @property
    def exponent(self) -> float:
        """The power of the number of steps that the best rate goes with."""
        found = {steps: optimum(scores) for steps, scores in self.rungs.items() if _trained(scores)}
        if len(found) < 2:
            return LARGEST
        points = [(math.log(steps), math.log(lr)) for steps, lr in found.items()]
        return min(LARGEST, max(LEAST, statistics.linear_regression(*zip(*points, strict=True)).slope))

    def lr(self, steps: int) -> float:
        """The rate for a run of so many steps, extrapolated from the longest runs that trained."""
        trained = [steps for steps, scores in self.rungs.items() if _trained(scores)]
        if not trained:
            return self.candidate.lrs[0]
        longest = max(trained)
        return optimum(self.rungs[longest]) * math.pow(steps / longest, self.exponent)


def _trained(scores: Mapping[float, float]) -> bool:
    return any(map(math.isfinite, scores.values()))


def optimum(scores: Mapping[float, float]) -> float:
    """The best learning rate, by a parabola over log(lr) through the best one tried and its neighbours.

    It stays within half of the way to the neighbours.

    >>> f"{optimum({0.01: 2.0, 0.1: 1.0, 1.0: 2.0}):.3g}, {optimum({0.01: 2.0, 0.1: 1.0, 1.0: 1.0001}):.3g}"
    '0.1, 0.316'
    """
    lrs = sorted(scores)
    i = lrs.index(min(lrs, key=lambda lr: scores[lr]))
    if not 0 < i < len(lrs) - 1 or not all(math.isfinite(scores[lr]) for lr in lrs[i - 1 : i + 2]):
        return lrs[i]
    left, middle, right = (math.log(lr) for lr in lrs[i - 1 : i + 2])
    below, above = (scores[lrs[i - 1]] - scores[lrs[i]], scores[lrs[i + 1]] - scores[lrs[i]])
    down, up = below / (middle - left), above / (right - middle)
    if down + up <= 0:
        return lrs[i]
    ends = [(a + b) / 2 for a, b in itertools.pairwise((left, middle, right))]
    vertex = middle + (down * (right - middle) - up * (middle - left)) / (2 * (down + up))
    return math.exp(min(ends[1], max(ends[0], vertex)))
