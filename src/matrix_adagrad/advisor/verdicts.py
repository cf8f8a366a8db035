"""The rules of the race's verdicts: when a loss is lower, the same, or cannot be told from another."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matrix_adagrad.intervals import Interval, interval

__all__ = [
    "BETTER",
    "MARGIN",
    "MOST_SEEDS",
    "SAME",
    "UNDECIDED",
    "WORSE",
    "compare",
    "has_learned",
    "margin",
    "seeds_needed",
]

BETTER, WORSE, SAME, UNDECIDED = "better", "worse", "no difference", "undecided"
MARGIN = 0.02  # of the loss: less is not worth a change of the optimizer
SHARE = 0.1  # of what was learned: a margin must be small against it, even if little was learned
MOST_SEEDS = 15
LEARNED = 0.01  # of the start's loss: less says nothing about an optimizer. All seeds share the held-out batches, so
# intervals over seeds do not know that a loss may fall a little on these batches by chance


def margin(loss: float, start: float) -> float:
    """The largest difference that is called none: 2 % of the loss, and at most a tenth of what was learned.

    >>> margin(loss=1.0, start=3.0), f"{margin(loss=1.0, start=1.05):.3f}"
    (0.02, '0.005')
    """
    return min(MARGIN * abs(loss), SHARE * max(0.0, start - loss))


def compare(difference: Interval, margin: float) -> str:
    """The verdict on the mean of paired differences, mine minus theirs, of losses.

    ``"no difference"`` needs an interval that lies inside ±margin; one that contains 0 is no proof of it.

    >>> [compare(Interval(mean, low, high, 5), 0.02) for mean, low, high in [(0, -0.01, 0.01), (0, -0.8, 0.8)]]
    ['no difference', 'undecided']
    >>> [compare(Interval(mean, low, high, 5), 0.02) for mean, low, high in [(-0.3, -0.4, -0.2), (0.3, 0.2, 0.4)]]
    ['better', 'worse']
    """
    if -margin <= difference.low and difference.high <= margin:
        return SAME
    return UNDECIDED if difference.is_positive is None else WORSE if difference.is_positive else BETTER


def has_learned(gains: Sequence[float], start: float) -> bool:
    """Whether losses fell from the start's by 1 % or more: on every seed, or with an interval of the mean above 0.

    >>> has_learned([0.5, 0.2], start=2.0), has_learned([0.5, -0.1], start=2.0), has_learned([0.01, 0.01], start=2.0)
    (True, False, False)
    """
    gain = interval(gains)
    return gain.mean >= LEARNED * abs(start) and (min(gains) > 0 or gain.low > 0)


def seeds_needed(difference: Interval, margin: float) -> int | None:
    """How many seeds would show that a loss is not above another by more than the margin, if mean and spread stay.

    It is ``None`` if more would be needed than a race can have. The half-width of the interval has to fit between the
    mean and the margin.

    >>> seeds_needed(Interval(-0.01, -0.07, 0.05, 5), 0.02), seeds_needed(Interval(-0.01, -0.7, 0.68, 5), 0.02)
    (13, None)
    """
    deviation = (difference.high - difference.mean) / _half_width(difference.count)
    counts = range(difference.count + 1, MOST_SEEDS + 1)
    return next((n for n in counts if difference.mean + deviation * _half_width(n) <= margin), None)


def _half_width(count: int) -> float:
    """That of the interval of so many differences with a standard deviation of 1."""
    end = math.sqrt((count - 1) / 2)
    return interval([end, -end, *[0.0] * (count - 2)]).high
