"""Intervals are Student's."""

import math
import statistics

import pytest
import torch

from matrix_adagrad.intervals import _T, interval


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
    with pytest.raises(ValueError, match="needs from 2 to 15 differences, got 1"):
        interval([1.0])
    found = interval([float("inf"), 1.0])
    assert found.low > 0
    assert "inf" in str(found)
