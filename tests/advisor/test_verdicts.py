"""The rules: when a loss is lower, the same, undecided, or not below the start's."""

import statistics

import pytest

from matrix_adagrad.advisor.verdicts import compare, has_learned, margin, seeds_needed
from matrix_adagrad.intervals import Interval, interval


def within(mean, half, count=5):
    return Interval(mean, mean - half, mean + half, count)


@pytest.mark.parametrize(
    ("mean", "half", "verdict"),
    [
        (0.0, 0.019, "no difference"),
        (0.015, 0.004, "no difference"),  # it excludes 0, and lies inside of the margin
        (-0.015, 0.004, "no difference"),
        (0.013, 0.858, "undecided"),  # around a loss of 1.5: wide, and no proof of anything
        (0.0, 0.021, "undecided"),
        (0.015, 0.016, "undecided"),
        (0.5, 0.4, "worse"),
        (0.015, 0.01, "worse"),  # it excludes 0, and leaves the margin
        (-0.5, 0.4, "better"),
    ],
)
def test_no_difference_needs_an_interval_inside_of_the_margin(mean, half, verdict):
    assert compare(within(mean, half), margin=0.02) == verdict


def test_the_margin_is_2_percent_of_the_loss_and_at_most_a_tenth_of_what_was_learned():
    assert margin(loss=1.0, start=5.0) == 0.02
    assert margin(loss=1.0, start=1.1) == pytest.approx(0.01)
    assert margin(loss=-2.0, start=5.0) == 0.04
    assert margin(loss=1.0, start=0.9) == 0  # nothing was learned, and nothing is called level


@pytest.mark.parametrize(
    ("gains", "learned"),
    [
        ([1.0, 0.9, 1.1], True),
        ([1.0, 0.1], True),  # two seeds have an interval that says nothing, and both fell
        ([1.0, -0.5, 0.8], False),
        ([1.0, 1.1, 0.9, 1.0, 1.1, 1.0, -0.1, 1.0], True),  # one seed did not, and the interval lies above 0
        ([-0.1, -0.2, -0.1], False),
        ([0.015, 0.016, 0.014], False),
        ([0.025, 0.026, 0.024], True),
    ],
)
def test_losses_have_to_fall_by_one_percent_of_the_starts_and_by_more_than_noise(gains, learned):
    assert has_learned(gains, start=2.0) is learned


def test_so_many_seeds_shrink_the_interval_to_the_margin():
    spread = [-0.02, 0.02, 0.0, -0.01, 0.01]
    needed = seeds_needed(interval(spread), margin=0.01)
    deviation = statistics.stdev(spread)
    # the quantiles of Student's t for one seed less, and for so many
    quantile = {11: 2.2281, 12: 2.2010, 13: 2.1788, 14: 2.1604}
    assert deviation * quantile[needed] / needed**0.5 <= 0.01 < deviation * quantile[needed - 1] / (needed - 1) ** 0.5


def test_a_lower_mean_needs_fewer_seeds_and_too_many_are_none():
    assert seeds_needed(within(-0.05, 0.08), margin=0.02) < seeds_needed(within(-0.02, 0.08), margin=0.02)
    assert seeds_needed(within(-1.0, 0.1), margin=0.02) == 6  # at least one more
    assert seeds_needed(within(0.0, 0.9), margin=0.02) is None
    assert seeds_needed(within(0.03, 0.01), margin=0.02) is None  # it is behind by more than the margin
