"""The motivating examples and their controls, played, and the games that check the theory."""

import math

import pytest

from reproduction.games import domains, hindsight, horizon, motivating, theorems, tradeoff

STARTS = (("zero", 0), ("random", 0), ("random", 1))


@pytest.mark.parametrize("active", ["row", "column"])
@pytest.mark.parametrize(("m", "n", "K"), [(1, 1, 1), (3, 4, 5), (16, 9, 2), (5, 1, 7)])
def test_the_bounds_of_the_motivating_examples_have_the_papers_closed_form(m, n, K, active):
    result = motivating.run(motivating.Config(m, n, K, active))
    count, length = (m, n) if active == "row" else (n, m)
    radius = 0.5 / math.sqrt(length)
    assert result.bound == pytest.approx(2 * math.sqrt(2) * radius * count * math.sqrt(length * K), rel=1e-12)
    assert result.entry_bound == pytest.approx(2 * math.sqrt(2) * radius * m * n * math.sqrt(K), rel=1e-12)
    assert result.ratio == pytest.approx(math.sqrt(length), rel=1e-12)
    assert result.holds


def test_the_order_of_the_regrets_is_not_that_of_the_bounds():
    even, odd = (motivating.run(motivating.Config(m, n, 10)) for m, n in ((16, 9), (9, 16)))
    assert even.bound < even.entry_bound
    assert odd.bound < odd.entry_bound
    assert even.regret < even.entry_regret
    assert odd.regret > odd.entry_regret  # where each row's label alternates, entries are the better choice


def test_a_game_depends_on_its_start():
    zero, random, other = (motivating.run(motivating.Config(4, 3, 2, start=s, seed=k)) for s, k in STARTS)
    assert len({zero.regret, random.regret, other.regret}) == 3
    with pytest.raises(ValueError, match="start must be 'zero' or 'random', got 'one'"):
        motivating.run(motivating.Config(start="one"))


@pytest.mark.parametrize("start", ["zero", "random"])
@pytest.mark.parametrize("active", ["row", "column"])
def test_with_a_step_size_less_by_the_root_of_n_entries_follow_the_aligned_geometry(active, start):
    result = motivating.run(motivating.Config(6, 9, 20, active, start))
    assert 0 < result.apart < 1e-8  # as δ has it
    assert result.control_regret == pytest.approx(result.regret, rel=1e-7)
    assert abs(result.entry_regret / result.regret - 1) > 1e-2


@pytest.mark.parametrize("structure", domains.STRUCTURES)
@pytest.mark.parametrize("domain", domains.DOMAINS)
def test_the_ratio_of_the_bounds_is_that_of_the_domain(domain, structure):
    result = domains.run(domains.Config(domain, structure, 4, 9))
    share = 1.0 if domain in ("Frobenius ball", "row balls") else 1 / 3
    assert result.ratio == pytest.approx(share * (1 if structure == "one column" else 3), rel=1e-12)
    assert 0 < result.regret < result.bound
    assert 0 < result.entry_regret < result.entry_bound


def test_gradients_have_the_structure_that_they_are_named_for():
    active = {name: domains._gradients(domains.Config(structure=name, m=4, n=3)) != 0 for name in domains.STRUCTURES}
    assert active["dense"].all()
    assert (active["row-sparse"].any(2).sum(1) == 1).all()
    assert (active["row-sparse"].sum(0) == 3).all()
    assert (active["column-sparse"].any(1).sum(1) == 1).all()
    assert (active["column-sparse"].sum(0) == 4).all()
    assert active["one column"][:, :, 0].all()
    assert not active["one column"][:, :, 1:].any()


def test_the_stubborn_game_breaks_theorem_1_as_printed_and_meets_no_condition():
    result = theorems.run(theorems.Config(theorems.STUBBORN, "row", 1e6, 1, 1, 3))
    bound = {check.name: check for check in result.checked}["regret ≤ √2 D Σ_b √V_b"]
    assert (round(bound.left, 1), round(bound.right, 1), bound.holds, bound.is_guaranteed) == (6.0, 4.9, False, False)
    assert not any(result.meets(check.name) for check in result.checked if check.is_condition)
    assert 0 < result.boundary < 1
    assert not any(not check.holds for check in result.checked if check.is_guaranteed and not check.is_condition)


def test_the_terms_of_the_tradeoff_are_those_of_the_bound():
    result = tradeoff.run(tradeoff.Config("linear", rounds=30))
    assert result.bound == pytest.approx(result.bound[::-1], rel=1e-6)  # linear losses: V does not depend on η
    at = tradeoff.FACTORS.index(1.0)
    assert result.promised_evolution[at] == pytest.approx(result.promised_gradients[at], rel=1e-6)
    pairs = zip(result.regret, result.evolution, result.gradients, strict=True)
    assert all(regret <= evolution + gradients for regret, evolution, gradients in pairs)
    assert max(result.off, result.gained, result.excess) < 1e-9


def test_in_hindsight_the_regret_is_at_most_the_bound_and_a_better_bound_by_the_root_of_two():
    for learner in ("row", "column"):
        result = hindsight.run(hindsight.Config(learner=learner, rounds=50))
        assert result.bound == pytest.approx(math.sqrt(2) * result.fixed_bound, rel=1e-12)
        assert result.fixed_regret <= result.fixed_bound
        assert result.regret <= result.bound


def test_the_exponent_is_that_of_the_regret():
    config = horizon.Config(doublings=8)
    rounds = tuple(2**k for k in range(9))
    for power in (0.0, 0.5, 1.0):
        regret = tuple(3.0 * t**power for t in rounds)
        assert horizon.Result(config, rounds, regret, regret, 0.0).exponent == pytest.approx(power)
    played = horizon.run(horizon.Config("linear", doublings=5))
    assert played.rounds == (1, 2, 4, 8, 16, 32)
    assert played.is_bounded
    assert not horizon.Result(config, (1,), (2.0,), (1.0,), 0.5).is_bounded
