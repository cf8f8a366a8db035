import math

import pytest

from matrix_adagrad.advisor import Candidate, Outcome, RaceResult, Run
from matrix_adagrad.advisor.costs import Cost
from matrix_adagrad.advisor.errors import NothingTrainedError
from matrix_adagrad.advisor.sentences import verdict
from matrix_adagrad.geometry import Row
from matrix_adagrad.text import size

STEPS = 80


def runs(scores):
    return tuple(Run((2.0, score), score) for score in scores)


def outcome(name, scores, *, lr=0.1, rungs=None, geometries=True, lrs=(0.01, 0.1, 1.0), **more):
    candidate = Candidate(name, None, lrs, "adagrad", {"weight": Row()} if geometries else None)
    rungs = rungs or {10: {0.1: 1.0}, STEPS: {0.05: 2.0, 0.1: 1.0, 0.2: 2.0}}
    return Outcome(candidate, lr, rungs, runs(scores), **more)


def result(*outcomes, states=None, start=2.0, baseline=None):
    states = states or [100] * len(outcomes)
    starts = [start] * max(len(outcome.runs) for outcome in outcomes)
    costs = [Cost(1e-3, 1e-4, state) for state in states]
    return RaceResult.of(outcomes, costs, starts, STEPS, baseline)


def test_an_interval_inside_of_the_margin_is_no_difference():
    race = result(outcome("a", [1.0, 1.1, 1.2]), outcome("b", [1.003, 1.098, 1.204]))
    assert race["a"].verdict == "best"
    assert race["b"].verdict == "no difference"
    assert race["b"].difference.low < 0 < race["b"].difference.high < race.margin
    assert race.margin == pytest.approx(0.02 * 1.1)


def test_an_interval_that_contains_0_and_is_wide_is_undecided():
    race = result(outcome("a", [1.0, 1.1, 1.2]), outcome("b", [1.03, 1.08, 1.21]), states=[1000, 10])
    assert race["b"].verdict == "undecided"
    assert race.chosen.name == "a"
    (rival,) = race.rivals
    assert rival.name == "b"
    assert rival.difference.high > race.margin
    said = verdict(race, STEPS)
    assert said.startswith("Undecided between a and b: until more is known, use “a” with lr 0.1 for runs of 80 steps.")
    assert "“b” may be better by up to" in said
    assert "seeds would" in said


def test_a_small_significant_difference_is_no_difference():
    race = result(outcome("a", [1.0, 1.1, 1.2]), outcome("b", [1.005, 1.105, 1.2051]))
    assert race["b"].verdict == "no difference"


def test_a_large_significant_difference_is_worse():
    race = result(outcome("a", [1.0, 1.1, 1.2]), outcome("b", [1.1, 1.2, 1.31]))
    assert race["b"].verdict == "worse"
    assert race.rivals == ()
    assert verdict(race, STEPS) == "Use “a” with lr 0.1 for runs of 80 steps: it has the lowest loss."


def test_the_level_candidate_with_the_least_state_is_chosen():
    scores = {"best": [1.0, 1.1, 1.2], "level": [1.005, 1.105, 1.2051], "small but worse": [1.5, 1.6, 1.7]}
    race = result(*(outcome(name, values) for name, values in scores.items()), states=[1000, 10, 1])
    assert race.best.name == "best"
    assert race.chosen.name == "level"
    assert race.rivals == ()
    assert "it shows no difference from best (+0.005" in verdict(race, STEPS)
    assert "within ±0.022) and has less state" in verdict(race, STEPS)


def test_a_candidate_that_is_far_behind_is_not_chosen_even_if_noise_hides_it():
    race = result(outcome("best", [0.01, 1.0, 0.5]), outcome("noisy", [1.0, 0.1, 1.4]), states=[1000, 10])
    assert race["noisy"].verdict == "undecided"
    assert race.chosen.name == "best"


@pytest.mark.parametrize("scores", [[2.0, 2.1, 2.2], [1.999, 1.998, 1.999], [1.2, 2.6, 1.9]])
def test_if_nothing_was_learned_there_is_no_plan(scores):
    race = result(outcome("row", scores), outcome("entry", [3.0, 3.1, 3.2]))
    assert race.chosen is None
    assert race.rivals == ()
    said = verdict(race, STEPS)
    assert said.startswith("Nothing was learned: no plan. The loss is 2 at the start, and ")
    assert "→" not in race.table()
    found = race.to_dict()
    assert found["chosen"] is None
    assert found["start"]["learned"] is False


def test_the_start_is_in_the_table_and_in_the_numbers():
    race = result(outcome("row", [1.0, 1.1, 1.2]), start=1.9871)
    assert race.table().splitlines()[-1].split() == ["(the", "start)", "1.987"]
    found = race.to_dict()["start"]
    assert found["scores"] == [1.9871] * 3
    assert found["gain"][0] == pytest.approx(0.8871)
    assert found["learned"] is True


def test_a_rate_next_to_the_chosen_one_can_be_a_rival():
    beside = {0.07: runs([1.2, 1.3, 1.4]), 0.15: runs([0.9, 1.25, 1.1])}
    race = result(outcome("a", [1.0, 1.1, 1.2], beside=beside))
    (rival,) = race.rivals
    assert (rival.name, rival.lr) == ("a", 0.15)
    assert "Use “a” with lr 0.1" in verdict(race, STEPS)
    assert "Its rate is not settled: 0.15 may be better by up to" in verdict(race, STEPS)


def test_dropped_candidates_are_last_and_compared_at_their_own_length():
    dropped = outcome("slow", [], rungs={10: {0.1: 1.7}})
    race = result(dropped, outcome("a", [1.0, 1.1, 1.2], rungs={10: {0.1: 1.5}, STEPS: {0.1: 1.0}}))
    assert [standing.name for standing in race.standings] == ["a", "slow"]
    assert race["slow"].verdict == "dropped"
    assert race["slow"].difference.mean == pytest.approx(0.2)
    assert "1.7 at 10" in race.table()
    assert [standing.name for standing in race.finalists] == ["a"]


def test_the_rate_is_extrapolated_to_a_longer_run_and_what_that_leaves_open_is_said():
    other = Candidate("b", None, (0.1, 1.0), "momentum", {"weight": Row()})
    rungs = {40: {0.1: 1.5}, STEPS: {0.05: 2.0, 0.1: 1.2, 0.2: 2.0}}
    race = result(
        outcome("a", [1.0, 1.1, 1.2], exponent=-0.5, rungs={40: {0.1: 1.2}, STEPS: {0.05: 1.5, 0.1: 1.1, 0.2: 1.5}}),
        Outcome(other, 0.1, rungs, runs([1.2, 1.3, 1.41])),
    )
    said = verdict(race, 4 * STEPS)
    assert "Use “a” with lr 0.05 for runs of 320 steps" in said
    assert "Nothing was measured beyond 80 steps" in said
    assert "which family is best at 320 steps is not known" in said
    assert "b is catching up: behind by 0.3 at 40 steps, and by 0.1 at 80." in said


@pytest.mark.parametrize(
    ("other", "words"), [("entry adagrad", "one scale per entry"), ("entry momentum", "entry momentum, which is Adam,")]
)
def test_the_state_is_compared_with_one_scale_per_entry_or_with_adam(other, words):
    race = result(outcome("row", [1.0, 1.1, 1.2]), outcome(other, [1.5, 1.6, 1.71]), states=[8, 100])
    assert f"Its state takes 8 B; {words} takes 100 B." in verdict(race, STEPS)


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        ([2.0, 2.1, 2.21], "is worse: it ends above it by +1"),
        ([0.5, 0.6, 0.71], "is better: it ends below it by -0"),
        ([1.001, 1.1, 1.2], "shows no difference (+0.0003"),
        ([1.5, 0.6, 1.3], "may be better or worse (+0.03"),
        ([math.inf] * 3, "failed."),
    ],
)
def test_the_baseline_is_compared_with_the_choice(scores, words):
    now = outcome("SGD", scores, geometries=False)
    race = result(outcome("row", [1.0, 1.1, 1.2]), now, states=[100, 8], baseline="SGD")
    assert f"SGD, which you use now, with 8 B of state, {words}" in verdict(race, STEPS)


def test_outside_optimizers_can_be_best_but_are_not_chosen():
    race = result(outcome("Muon", [1.0, 1.1, 1.2], geometries=False), outcome("row", [1.4, 1.5, 1.61]))
    assert race.best.name == "Muon"
    assert race.chosen.name == "row"


def test_if_none_of_our_optimizers_trains_there_is_no_plan():
    outside = outcome("Muon", [1.0, 1.1], geometries=False)
    for race in (result(outside), result(outside, outcome("row", [math.inf, math.inf]))):
        assert race.chosen is None
        assert verdict(race, STEPS).startswith("No optimizer of this package learned anything, so there is no plan")
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
    failed = outcome("a", [math.inf, math.inf], rungs={10: {0.01: math.inf, 0.1: math.inf}})
    assert failed.good_lrs(start=2.0) is None
    with pytest.raises(NothingTrainedError, match="every candidate diverged"):
        result(failed)


def test_good_rates_are_neighbours_that_miss_at_most_a_quarter_of_the_best_gain():
    rung = {0.001: 1.99, 0.01: 1.24, 0.1: 1.0, 1.0: 1.2, 10.0: 1.5, 100.0: 1.01}
    tuned = outcome("a", [1.0, 1.0], rungs={10: rung}, lrs=tuple(rung))
    assert tuned.good_lrs(start=2.0) == (0.01, 1.0)


@pytest.mark.parametrize(("lr", "good"), [(0.002, (0.002, 1.0)), (0.2, (0.01, 1.0)), (5.0, (0.01, 5.0))])
def test_the_chosen_rate_is_among_the_good_ones(lr, good):
    rung = {0.001: 1.99, 0.01: 1.24, 0.1: 1.0, 1.0: 1.2, 10.0: 1.5}
    assert outcome("a", [1.0, 1.0], rungs={10: rung}, lrs=tuple(rung), lr=lr).good_lrs(start=2.0) == good


@pytest.mark.parametrize(("lr", "edge"), [(0.05, True), (0.1, False), (0.2, True), (2.0, True)])
def test_a_rate_at_the_edge_of_those_tried_at_full_length_is_marked(lr, edge):
    tuned = outcome("a", [1.0, 1.0], lr=lr)
    assert tuned.is_at_edge is edge
    assert ("(edge)" in result(tuned).table()) is edge


def test_the_table_has_one_line_per_candidate_and_an_arrow_at_the_choice():
    race = result(outcome("row", [1.0, 1.1]), outcome("astray", [math.inf, math.inf]))
    head, first, last, start = race.table().splitlines()
    assert "start" in start
    assert first.startswith("→ row")
    assert "failed" in last
    assert "loss" in head
    with pytest.raises(KeyError, match="no candidate 'column': there are row, astray"):
        _ = race["column"]


def test_sizes_are_readable():
    assert [size(n) for n in (0, 8, 1000, 1_500_000)] == ["0 B", "8 B", "1 kB", "1.5 MB"]
