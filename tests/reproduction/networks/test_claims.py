"""Each rule gives every verdict that it can give, for results that are made up to earn it."""

import pytest

from reproduction.experiments import judge
from reproduction.networks.evidence import Limit
from tests.reproduction.earned import FAILS, HOLDS, OPEN, cases, check
from tests.reproduction.fakes import played
from tests.reproduction.networks.fakes import Fake


def of(optimizers, otherwise=0.5):
    """A loss over the linear fit's, by optimizer."""
    return lambda config: optimizers.get(config.optimizer, otherwise)


def only_in_a(good, bad):
    return lambda config: (good if config.setting == "A" else bad)(config)


AS_THE_PAPER = of({"Adam": 1.05, "Adam, lr/√width": 0.8})
UNLIKE = of({"Row-wise Momentum": 1.05, "Column-wise Momentum": 0.9, "Adam": 0.5})


def moving(adam, row, small):
    """How much a curve moves: by optimizer at lr 0.01, and so many times that at 0.001."""
    return lambda config: (
        {"Adam": adam, "Row-wise Momentum": row}.get(config.optimizer, 0.1) * (small if config.lr == 0.001 else 1)
    )


def up_to(limits, otherwise=0.01):
    """A loss below the linear fit's, up to a learning rate by optimizer."""
    return lambda config: 0.5 if config.lr <= limits.get(config.optimizer, otherwise) else 1.05


CALM, WILD = moving(0.3, 0.1, 0.1), moving(0.1, 0.3, 10)

# For each claim: what earns “holds”, “holds only if: …” (with the circumstances), and “does not hold here”.
EARNED = {
    "entries-oscillate-at-15": [
        ({"movement": CALM}, HOLDS),
        ({"movement": only_in_a(CALM, WILD)}, "holds only if: setting A"),
        ({"movement": WILD}, FAILS),
        ({"scatter": 0.5}, OPEN),
    ],
    "calmer-at-0.001": [
        ({"movement": CALM}, HOLDS),
        ({"movement": only_in_a(CALM, WILD)}, "holds only if: setting A"),
        ({"movement": WILD}, FAILS),
        ({"scatter": 0.5}, OPEN),
    ],
    "entries-fail-at-22": [
        ({"ratio": AS_THE_PAPER}, HOLDS),
        ({"ratio": only_in_a(AS_THE_PAPER, UNLIKE)}, "holds only if: setting A"),
        ({"ratio": UNLIKE}, FAILS),
        ({"ratio": of({}, 1.0)}, OPEN),
    ],
    "entries-fail-at-25": [
        ({"ratio": AS_THE_PAPER}, HOLDS),
        ({"ratio": only_in_a(AS_THE_PAPER, UNLIKE)}, "holds only if: setting A"),
        ({"ratio": UNLIKE}, FAILS),
        ({"ratio": of({}, 1.0)}, OPEN),
    ],
    "rows-train-at-25": [
        ({"ratio": AS_THE_PAPER}, HOLDS),
        ({"ratio": only_in_a(AS_THE_PAPER, UNLIKE)}, "holds only if: setting A"),
        ({"ratio": UNLIKE}, FAILS),
        ({"ratio": of({}, 1.0)}, OPEN),
    ],
    "rows-fluctuate-at-25": [
        ({"movement": lambda c: 0.01 * c.depth}, HOLDS),
        ({"movement": lambda c: 0.01 * c.depth if c.setting == "A" else 0.1}, "holds only if: setting A"),
        ({"movement": lambda c: 1 / c.depth}, FAILS),
        ({"scatter": 0.5}, OPEN),
    ],
    "not-a-learning-rate": [
        ({"ratio": AS_THE_PAPER}, HOLDS),
        ({"ratio": of({"Adam, lr/√width": 0.4})}, HOLDS),  # Adam is the better one, but not the same
        (
            {"ratio": lambda c: (AS_THE_PAPER if c.setting == "B with eps 1e-16" else of({}))(c)},
            "holds only if: setting B with eps 1e-16",
        ),
        ({"ratio": of({})}, FAILS),
        ({"ratio": of({"Adam, lr/√width": 0.51})}, FAILS),  # surely, but by too little
        ({"ratio": of({}), "scatter": 0.1}, OPEN),
    ],
    "better-than-a-learning-rate": [
        ({"ratio": AS_THE_PAPER}, HOLDS),
        (
            {"ratio": lambda c: (AS_THE_PAPER if c.setting == "B with eps 1e-16" else of({}))(c)},
            "holds only if: setting B with eps 1e-16",
        ),
        ({"ratio": of({"Adam, lr/√width": 0.4})}, FAILS),
        ({"ratio": of({})}, FAILS),
        ({"scatter": 0.1}, OPEN),
    ],
    "rows-lower-at-15": [
        ({"ratio": AS_THE_PAPER}, HOLDS),
        ({"ratio": only_in_a(AS_THE_PAPER, UNLIKE)}, "holds only if: setting A"),
        ({"ratio": UNLIKE}, FAILS),
        ({"scatter": 0.1}, OPEN),
    ],
    "entries-fail-at-0.001": [
        ({"ratio": AS_THE_PAPER}, HOLDS),
        ({"ratio": only_in_a(AS_THE_PAPER, UNLIKE)}, "holds only if: setting A"),
        ({"ratio": UNLIKE}, FAILS),
        ({"ratio": of({}, 1.0)}, OPEN),
    ],
    "rows-train-at-0.001": [
        ({"ratio": AS_THE_PAPER}, HOLDS),
        ({"ratio": only_in_a(AS_THE_PAPER, UNLIKE)}, "holds only if: setting A"),
        ({"ratio": UNLIKE}, FAILS),
        ({"ratio": of({}, 1.0)}, OPEN),
    ],
    "ten-times": [
        ({"ratio": AS_THE_PAPER}, HOLDS),
        ({"ratio": only_in_a(AS_THE_PAPER, UNLIKE)}, "holds only if: setting A"),
        ({"ratio": of({}, 0.5)}, FAILS),
        ({"ratio": of({}, 1.05)}, FAILS),
        ({"ratio": of({"Row-wise Momentum": 1.0})}, FAILS),  # it is not decided whether rows train, but Adam does
        ({"ratio": of({}, 1.0)}, OPEN),
    ],
    "larger-rates": [
        ({"ratio": up_to({"Adam": 0.005, "Row-wise Momentum": 0.01})}, HOLDS),
        (
            {"ratio": lambda c: up_to({"Row-wise Momentum": 0.05 if c.depth == 25 and c.setting == "A" else 0.01})(c)},
            "holds only if: setting A, 25 layers",
        ),
        ({"ratio": up_to({"Adam": 0.01})}, FAILS),  # equal
        ({"ratio": up_to({"Adam": 0.05})}, FAILS),
        ({"ratio": of({})}, OPEN),  # both at the top
    ],
    "larger-steps": [
        ({"ratio": up_to({"Adam": 0.005, "Row-wise, mean": 0.01})}, HOLDS),
        (
            {"ratio": lambda c: up_to({"Row-wise, mean": 0.05 if c.depth == 5 and c.setting == "A" else 0.01})(c)},
            "holds only if: setting A, 5 layers",
        ),
        ({"ratio": up_to({"Adam": 0.005, "Row-wise Momentum": 0.05}, 0.005)}, FAILS),  # by the sum alone
        ({"ratio": of({})}, OPEN),
    ],
    "columns-alike": [
        ({}, HOLDS),
        ({"ratio": of({"Column-wise Momentum": 0.9})}, HOLDS),  # worse, but it trains
        ({"ratio": of({}, 1.05)}, HOLDS),  # both fail
        (
            {"ratio": lambda c: 1.05 if c.setting != "A" and c.optimizer == "Column-wise Momentum" else 0.5},
            "holds only if: setting A",
        ),
        ({"ratio": UNLIKE}, FAILS),
        ({"ratio": of({}, 1.0)}, OPEN),
    ],
}


@pytest.mark.parametrize(("claim", "says", "expected"), cases(EARNED))
def test_a_rule_gives_the_verdict_that_is_earned(claim, says, expected):
    check("networks", claim, Fake(**says), expected)


def test_where_neither_trains_nothing_is_said_of_who_trains_better():
    found = judged(ratio=lambda c: 0.5 if c.setting == "A" else 1.05)
    assert [check.circumstances for check in found["better-than-a-learning-rate"].checks] == ["setting A"]
    assert {check.circumstances[:10] for check in found["larger-rates"].checks} == {"setting A,"}
    assert [check.circumstances for check in found["larger-rates"].checks][-1] == "setting A, 25 layers"


def test_a_network_that_went_astray_counts_as_the_best_constant():
    fake = Fake(ratio=lambda c: float("inf") if c.optimizer == "Adam" else 0.5)
    evidence = played("networks", is_quick=True, networks=fake).evidence("networks")
    adam = evidence.networks("A", 25, 0.01, "Adam")
    assert adam.ratios == [1.1] * 3
    assert adam.trains is False


def test_what_is_not_decided_anywhere_says_so():
    found = judged(ratio=of({}))
    assert found["larger-rates"].text == "not decided"
    assert found["rows-train-at-25"].text == HOLDS


def test_no_verdict_counts_the_comparison_with_unequal_eps():
    def ratio(config):
        """Whoever has the smaller eps trains."""
        return 0.5 if config.setting == "B with eps 1e-16" else 1.05

    found = judged(ratio=ratio)
    for claim in ("entries-fail-at-22", "entries-fail-at-25", "entries-fail-at-0.001", "ten-times"):
        *counted, unequal = found[claim].checks
        assert (unequal.holds, unequal.counts) == (True, False)
        assert all(check.counts and "unequal" not in check.circumstances for check in counted)
        assert "unequal" not in found[claim].text
    assert found["ten-times"].text == FAILS
    assert "setting B with eps 1e-16" not in found["entries-fail-at-25"].text


def test_adam_at_a_fraction_of_the_rate_is_adam_two_rungs_below():
    evidence = played("networks", networks=Fake(ratio=up_to({}))).evidence("networks")
    small = evidence.limit("A", 25, "Adam, lr/√width").trains
    assert small / evidence.limit("A", 25, "Adam").trains == pytest.approx(20**0.5, rel=1e-5)


@pytest.mark.parametrize(
    ("rows", "adam", "expected"),
    [
        ((0.02, 0.02), (0.01, 0.01), True),
        ((0.02, 0.02), (0.01, 0.02), None),  # it is not decided whether Adam trains at 0.02
        ((0.01, 0.02), (0.01, 0.01), None),  # or whether rows do
        ((0.01, 0.01), (0.01, 0.02), False),
        ((0.0, 0.0), (0.01, 0.01), False),
        ((0.1, 0.1), (0.1, 0.1), None),  # nobody knows what is above the ladder
        ((0.1, 0.1), (0.02, 0.02), True),
        ((0.02, 0.02), (0.1, 0.1), False),
    ],
)
def test_a_limit_exceeds_another_if_that_is_decided(rows, adam, expected):
    assert Limit(*rows, 0.1).exceeds(Limit(*adam, 0.1)) is expected


def judged(**says):
    return {verdict.claim.id: verdict for verdict in judge(played("networks", networks=Fake(**says)))}
