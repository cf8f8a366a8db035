"""Confidence intervals of paired differences."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Interval", "interval"]

# Student's t at 97.5 %, by degrees of freedom
_T = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281, 2.2010, 2.1788, 2.1604, 2.1448)


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % confidence interval, over ``count`` folds or seeds.

    Folds share training data and are not quite independent, so intervals over folds are somewhat too narrow.
    """

    mean: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        largest = max(abs(self.low), abs(self.high))
        digits = 3 if not largest or not math.isfinite(largest) else max(0, 2 - math.floor(math.log10(largest)))
        mean, low, high = (f"{value:+.{digits}f}" if digits < 7 else f"{value:+.2g}" for value in self._ends)
        return f"{mean} [{low}, {high}]"

    @property
    def _ends(self) -> tuple[float, float, float]:
        return self.mean, self.low, self.high

    @property
    def is_positive(self) -> bool | None:
        """Whether the mean is above 0; ``None`` if the interval contains 0."""
        return True if self.low > 0 else False if self.high <= 0 else None


def interval(differences: Iterable[float]) -> Interval:
    """The interval of the mean of at least two paired differences."""
    values = list(differences)
    if not 2 <= len(values) <= len(_T) + 1:
        raise ValueError(f"an interval needs from 2 to {len(_T) + 1} differences, got {len(values)}")
    mean = statistics.fmean(values)
    if not math.isfinite(mean):  # a run diverged: only the sign is known
        return Interval(mean, mean, mean, len(values))
    half = _T[len(values) - 2] * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half, len(values))
