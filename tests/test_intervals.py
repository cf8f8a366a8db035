"""Intervals are Student's."""

import math
import statistics

import pytest
import torch

from matrix_adagrad.intervals import _T, interval, nested_interval


def share_below(t, freedom):
    """Student's distribution function: his density, integrated with x = √freedom tan φ, which makes it cosines."""
    angle = torch.linspace(0, math.atan(t / math.sqrt(freedom)), 100_001, dtype=torch.float64)
    scale = math.gamma((freedom + 1) / 2) / (math.sqrt(math.pi) * math.gamma(freedom / 2))
    return 0.5 + scale * float(torch.trapezoid(angle.cos() ** (freedom - 1), angle))


def test_an_interval_is_students():
    for count in range(2, len(_T) + 2):
        # a table of four digits is half of the last one off, times a density of at most 0.06
        assert share_below(_T[count - 2], count - 1) == pytest.approx(0.975, abs=3e-6)
    values = [0.1, 0.3, 0.2, 0.5]
    found = interval(values)
    half = 3.18245 * statistics.stdev(values) / 2
    assert (found.mean, found.low, found.high) == pytest.approx((0.275, 0.275 - half, 0.275 + half), abs=1e-5)
    assert str(found) == "+0.275 [+0.003, +0.547]"
    assert str(interval([0.0, 0.0])) == "+0.000 [+0.000, +0.000]"
    assert str(interval([1e-9, 2e-9])) == "+1.5e-09 [-4.9e-09, +7.9e-09]"
    assert [interval(x).is_positive for x in ([1, 1.1], [-1, -1.1], [1, -1])] == [True, False, None]


def test_an_interval_needs_two_and_survives_a_run_that_went_astray():
    with pytest.raises(ValueError, match="needs from 2 to 15 differences or groups, got 1"):
        interval([1.0])
    found = interval([float("inf"), 1.0])
    assert found.low > 0
    assert "inf" in str(found)


def shares_that_contain_0(between, within, folds=5, starts=3, draws=4000):
    """Of intervals around differences with mean 0: those of all starts in folds, and those of all as if independent."""
    random = torch.Generator().manual_seed(0)
    groups = between * torch.randn(draws, folds, 1, generator=random)
    groups = groups + within * torch.randn(draws, folds, starts, generator=random)
    nested = [nested_interval(some) for some in groups.tolist()]
    flat = [interval(some) for some in groups.flatten(1).tolist()]
    return [sum(found.low <= 0 <= found.high for found in some) / draws for some in (nested, flat)]


@pytest.mark.parametrize("between", [0.0, 0.001, 0.0037, 0.01])
def test_a_nested_interval_covers_the_mean_whatever_varies(between):
    nested, flat = shares_that_contain_0(between, within=0.0037)
    assert 0.94 <= nested <= 0.99  # of 4000: a standard error of 0.0035
    if between >= 0.0037:  # starts of a fold are no independent evidence
        assert flat < 0.87


def test_a_nested_interval_is_exact_where_folds_dominate():
    nested, _ = shares_that_contain_0(between=1.0, within=0.0)
    assert nested == pytest.approx(0.95, abs=0.01)


def test_folds_that_agree_by_luck_do_not_hide_the_scatter_within_them():
    found = nested_interval([[-1.0, 1.0], [1.0, -1.0], [0.5, -0.5]])
    half = _T[2] * math.sqrt((2 + 2 + 0.5) / 3 / 6)  # 6 - 3 degrees of freedom
    assert (found.mean, found.low, found.high, found.count) == (0, pytest.approx(-half), pytest.approx(half), 6)


def test_one_difference_a_group_makes_students_interval():
    assert nested_interval([[0.1], [0.3], [0.2]]) == interval([0.1, 0.3, 0.2])


def test_groups_have_equal_sizes():
    with pytest.raises(ValueError, match=r"equal size, got sizes \[2, 1\]"):
        nested_interval([[1.0, 2.0], [1.0]])
    with pytest.raises(ValueError, match=r"equal size, got sizes \[0, 0\]"):
        nested_interval([[], []])
