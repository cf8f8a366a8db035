"""The motivating examples, played."""

import math

import pytest

from reproduction import motivating

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
