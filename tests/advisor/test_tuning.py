"""Rates for longer runs than those that were tried."""

import math

import pytest

from matrix_adagrad.advisor import Candidate, lrs_around
from matrix_adagrad.advisor.heats import finalists, leaders, semifinalists
from matrix_adagrad.advisor.tuning import Tuning, optimum


def tuning(rungs, name="x", family="adagrad", ours=True):
    return Tuning(Candidate(name, None, lrs_around(0.1), family, {} if ours else None), rungs)


def valley(best):
    """The scores of rates around the best one: a parabola over the logarithm."""
    return {lr: 1 + math.log(lr / best) ** 2 for lr in lrs_around(0.1, step=10 ** (1 / 6))}


@pytest.mark.parametrize("best", [0.08, 0.1, 0.13])
def test_the_lowest_point_of_a_parabola_is_found_between_the_rates_tried(best):
    assert optimum(valley(best)) == pytest.approx(best)


@pytest.mark.parametrize(
    ("scores", "lr"),
    [
        ({0.1: 1.0, 1.0: 2.0}, 0.1),
        ({0.1: 2.0, 1.0: 1.0}, 1.0),
        ({0.1: 2.0, 1.0: 1.0, 10.0: math.inf}, 1.0),
        ({0.1: 1.0, 1.0: 1.0, 10.0: 1.0}, 0.1),
    ],
)
def test_without_a_valley_it_is_the_best_rate_tried(scores, lr):
    assert optimum(scores) == lr


@pytest.mark.parametrize("exponent", [0.0, -0.5, -1.0])
def test_rates_are_extrapolated_by_the_power_of_the_length_that_they_follow(exponent):
    found = tuning({steps: valley(0.2 * (steps / 25) ** exponent) for steps in (25, 50, 100)})
    assert found.exponent == pytest.approx(exponent, abs=1e-9)
    assert found.lr(800) == pytest.approx(0.2 * 32**exponent)


@pytest.mark.parametrize(("exponent", "clipped"), [(0.7, 0.0), (-1.4, -1.0)])
def test_rates_do_not_rise_with_the_length_nor_fall_faster_than_it(exponent, clipped):
    found = tuning({steps: valley(0.1 * (steps / 50) ** exponent) for steps in (25, 50, 100)})
    assert found.exponent == clipped


def test_lengths_at_which_all_rates_diverged_tell_nothing():
    found = tuning({25: valley(0.1), 50: dict.fromkeys(valley(0.1), math.inf)})
    assert found.exponent == 0
    assert found.lr(200) == pytest.approx(0.1)
    assert tuning({25: {0.1: math.inf}}).lr(200) == found.candidate.lrs[0]


def names(tunings):
    return {tuning.candidate.name for tuning in tunings}


def field(*scores, families=None, rungs=(25, 50)):
    """Candidates a, b, c, … whose losses are those given at each length."""
    made = [{at: {0.1: loss} for at, loss in zip(rungs, losses, strict=True)} for losses in scores]
    return [tuning(tried, "abcdefghij"[i], (families or {}).get(i, "f")) for i, tried in enumerate(made)]


def states(tunings, **own):
    return {name: own.get(name, 100) for name in names(tunings)}


def test_the_lowest_losses_and_the_best_of_each_family_run_on_after_a_quarter():
    entered = field(*[(2.0, 1.0 + i) for i in range(10)], families={8: "other", 9: "other"})
    assert names(semifinalists(entered, states(entered), None)) == set("abcdef") | {"i"}


def test_the_least_state_close_to_the_best_runs_on_and_so_does_the_baseline():
    entered = field(*[(2.0, 1.0 + 0.007 * i) for i in range(10)])
    assert names(semifinalists(entered, states(entered, h=1, i=0), "j")) == set("abcdef") | {"h", "j"}


def test_what_falls_fastest_and_the_best_of_another_family_run_on_after_half():
    losses = [(1.2, 1.0), (1.21, 1.01), (1.22, 1.02), (1.23, 1.03), (1.24, 1.04), (1.9, 1.3), (1.5, 1.4)]
    entered = field(*losses, families={6: "other"})
    assert names(finalists(entered, states(entered), None)) == set("abcd") | {"f", "g"}


def test_three_leaders_run_on_further_seeds():
    entered = field(*[(2.0, 1.0 + 0.04 * i) for i in range(6)])
    assert names(leaders(entered, states(entered), None)) == set("abc")


def test_diverged_candidates_come_last():
    entered = field((math.inf, math.inf), (2.0, math.inf), (2.0, 1.0), (2.0, 1.1), (2.0, 1.2), (2.0, 1.3))
    assert names(finalists(entered, states(entered), None)) == set("cdef")
