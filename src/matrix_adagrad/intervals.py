"""Confidence intervals of paired differences: of single ones, and of several in each fold."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Interval", "interval", "nested_interval"]

# Student's t at 97.5 %, by degrees of freedom
_T = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281, 2.2010, 2.1788, 2.1604, 2.1448)


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % confidence interval, over ``count`` differences.

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
    return nested_interval([[value] for value in differences])


def nested_interval(groups: Iterable[Sequence[float]]) -> Interval:
    r"""The interval of the mean of differences :math:`d_{fs}` in at least two groups f of equal size.

    In :math:`d_{fs} = \mu + a_f + b_{fs}`, for example with start s in fold f, differences vary between groups
    (:math:`\sigma_a`) and within them (:math:`\sigma_b`). The mean of F groups of S differences has the variance

    .. math:: (\sigma_a^2 + \sigma_b^2 / S) / F,

    and that of the F group means, divided by F, estimates it without bias: Student's interval over the means, with
    F - 1 degrees of freedom, is exact for normal differences. But few means may be close to each other by luck. So it
    is made no narrower than the interval that the scatter within groups alone would give, with the variance
    :math:`\hat\sigma_b^2 / (FS)` and F (S - 1) degrees of freedom. It contains the mean in at least 95 % of all cases,
    and in 98 % if groups do not differ.

    Example:
        >>> print(nested_interval([[0.1, 0.3], [0.2, 0.2], [0.3, 0.1]]))
        +0.200 [+0.050, +0.350]
    """
    values = [list(group) for group in groups]
    sizes = {len(group) for group in values}
    if not 2 <= len(values) <= len(_T) + 1:
        raise ValueError(f"an interval needs from 2 to {len(_T) + 1} differences or groups, got {len(values)}")
    if len(sizes) > 1 or 0 in sizes:
        raise ValueError(f"an interval needs groups of equal size, got sizes {[len(group) for group in values]}")
    count = len(values) * sizes.pop()
    means = [statistics.fmean(group) for group in values]
    mean = statistics.fmean(means)
    if not math.isfinite(mean):  # a run diverged: only the sign is known
        return Interval(mean, mean, mean, count)
    half = _T[len(values) - 2] * math.sqrt(statistics.variance(means) / len(values))
    if freedom := count - len(values):
        within = statistics.fmean(statistics.variance(group) for group in values)
        half = max(half, _T[min(freedom, len(_T)) - 1] * math.sqrt(within / count))
    return Interval(mean, mean - half, mean + half, count)
