import math

import pytest

from matrix_adagrad.advisor import Candidate, Outcome, RaceResult, Run
from matrix_adagrad.advisor.errors import NothingTrainedError
from matrix_adagrad.advisor.race_result import size
from matrix_adagrad.geometry import Row

COST = (1e-3, 1e-4, 100)


def outcome(name, scores, *, lr=0.1, rungs=None, geometries=True, lrs=(0.01, 0.1, 1.0)):
    candidate = Candidate(name, None, lrs, "adagrad", {"weight": Row()} if geometries else None)
    return Outcome(candidate, lr, 2.0, rungs or ({0.1: 1.0},), tuple(Run((2.0, score), score) for score in scores))


def result(*outcomes, states=None):
    states = states or [100] * len(outcomes)
    return RaceResult.of(outcomes, [(1e-3, 1e-4, state) for state in states], 10, None)


def test_an_interval_that_contains_0_is_no_difference():
    race = result(outcome("a", [1.0, 1.1, 1.2]), outcome("b", [1.03, 1.08, 1.21]))
    assert race["a"].verdict == "best"
    assert race["b"].verdict == "no difference"
    assert race["b"].difference.low < 0 < race["b"].difference.high


def test_a_small_significant_difference_is_within_one_percent():
    race = result(outcome("a", [1.0, 1.1, 1.2]), outcome("b", [1.005, 1.105, 1.2051]))
    assert race["b"].verdict == "within 1 %"
    assert race["b"].is_level


def test_a_large_significant_difference_is_worse():
    race = result(outcome("a", [1.0, 1.1, 1.2]), outcome("b", [1.1, 1.2, 1.31]))
    assert race["b"].verdict == "worse"
    assert not race["b"].is_level


def test_the_level_candidate_with_the_least_state_is_chosen():
    scores = {"best": [1.0, 1.1, 1.2], "level": [1.005, 1.105, 1.2051], "small but worse": [1.5, 1.6, 1.7]}
    race = result(*(outcome(name, values) for name, values in scores.items()), states=[1000, 10, 1])
    assert race.best.name == "best"
    assert race.chosen.name == "level"


def test_a_candidate_that_is_far_behind_is_not_chosen_even_if_noise_makes_it_level():
    race = result(outcome("best", [0.01, 1.0, 0.5]), outcome("noisy", [1.0, 0.1, 1.4]), states=[1000, 10])
    assert race["noisy"].verdict == "undecided"
    assert race.chosen.name == "best"


def test_outside_optimizers_can_be_best_but_are_not_chosen():
    race = result(outcome("Muon", [1.0, 1.1, 1.2], geometries=False), outcome("row", [2.0, 2.1, 2.2]))
    assert race.best.name == "Muon"
    assert race.chosen.name == "row"


def test_if_none_of_our_optimizers_trains_there_is_no_plan():
    outside = outcome("Muon", [1.0, 1.1], geometries=False)
    for race in (result(outside), result(outside, outcome("row", [math.inf, math.inf]))):
        with pytest.raises(NothingTrainedError, match="so there is no plan"):
            _ = race.chosen
        assert "→" not in race.table()
        assert race.to_dict()["chosen"] is None


def test_the_choice_is_one_of_ours_even_if_another_is_best():
    ours = {"entry": [1.5, 1.6, 1.7], "row": [1.501, 1.599, 1.7]}
    race = result(
        outcome("Muon", [1.0, 1.1, 1.2], geometries=False),
        *(outcome(name, scores) for name, scores in ours.items()),
        states=[1, 1000, 10],
    )
    assert race.chosen.name == "row"


def test_seeds_without_effect_are_noticed():
    assert not result(outcome("a", [1.0, 1.0])).seeds_differ
    assert result(outcome("a", [1.0, 1.1])).seeds_differ


def test_a_candidate_that_failed_at_every_rate_has_no_good_rates():
    failed = outcome("a", [math.inf, math.inf], rungs=({0.01: math.inf, 0.1: math.inf},))
    assert failed.good_lrs is None


def test_good_rates_are_neighbours_that_miss_at_most_a_quarter_of_the_best_gain():
    rung = {0.001: 1.99, 0.01: 1.24, 0.1: 1.0, 1.0: 1.2, 10.0: 1.5, 100.0: 1.01}
    tuned = outcome("a", [1.0, 1.0], rungs=(rung,), lrs=tuple(rung))
    assert tuned.good_lrs == (0.01, 1.0)


@pytest.mark.parametrize(("lr", "good"), [(0.002, (0.002, 1.0)), (0.2, (0.01, 1.0)), (5.0, (0.01, 5.0))])
def test_the_chosen_rate_is_among_the_good_ones(lr, good):
    rung = {0.001: 1.99, 0.01: 1.24, 0.1: 1.0, 1.0: 1.2, 10.0: 1.5}
    assert outcome("a", [1.0, 1.0], rungs=(rung,), lrs=tuple(rung), lr=lr).good_lrs == good


@pytest.mark.parametrize(("lr", "edge"), [(0.01, True), (0.1, False), (1.0, True), (2.0, True)])
def test_a_rate_at_the_edge_is_marked(lr, edge):
    tuned = outcome("a", [1.0, 1.0], lr=lr)
    assert tuned.is_at_edge is edge
    assert ("(edge)" in result(tuned).table()) is edge


def test_the_table_has_one_line_per_candidate_and_an_arrow_at_the_choice():
    race = result(outcome("row", [1.0, 1.1]), outcome("astray", [math.inf, math.inf]))
    head, first, last = race.table().splitlines()
    assert first.startswith("→ row")
    assert "failed" in last
    assert "loss" in head
    with pytest.raises(KeyError, match="no candidate 'column': there are row, astray"):
        _ = race["column"]


def test_sizes_are_readable():
    assert [size(n) for n in (0, 8, 1000, 1_500_000)] == ["0 B", "8 B", "1 kB", "1.5 MB"]
