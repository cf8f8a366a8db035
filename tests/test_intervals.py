"""Intervals are Student's."""

import pytest
from scipy import stats

from matrix_adagrad.intervals import _T, interval


def test_an_interval_is_students():
    for count in range(2, len(_T) + 2):
        assert _T[count - 2] == pytest.approx(stats.t.ppf(0.975, count - 1), abs=1e-4)
    values = [0.1, 0.3, 0.2, 0.5]
    low, high = stats.t.interval(0.95, 3, 0.275, stats.sem(values))
    found = interval(values)
    assert (found.mean, found.low, found.high) == pytest.approx((0.275, low, high), abs=1e-5)
    assert str(found) == "+0.275 [+0.003, +0.547]"
    assert str(interval([0.0, 0.0])) == "+0.000 [+0.000, +0.000]"
    assert str(interval([1e-9, 2e-9])) == "+1.5e-09 [-4.9e-09, +7.9e-09]"
    assert [interval(x).is_positive for x in ([1, 1.1], [-1, -1.1], [1, -1])] == [True, False, None]


def test_an_interval_needs_two_and_survives_a_run_that_went_astray():
    with pytest.raises(ValueError, match="needs from 2 to 15 differences, got 1"):
        interval([1.0])
    found = interval([float("inf"), 1.0])
    assert found.low > 0
    assert "inf" in str(found)
