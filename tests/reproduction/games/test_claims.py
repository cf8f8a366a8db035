"""Each rule gives every verdict that it can give, for results that are made up to earn it."""

import pytest

from reproduction.games.analysis import CONDITIONS
from tests.reproduction.earned import FAILS, HOLDS, cases, check
from tests.reproduction.games.fakes import Fake

# For each claim: what earns “holds”, “holds only if: …” (with the circumstances), and “does not hold here”.
ALL_CONDITIONS = f"holds only if: {'; or '.join(CONDITIONS)}"
TWO = "holds only if: Frobenius ball; or row balls"
EARNED = {
    "corollary-1": [
        ({}, HOLDS),
        ({"broken": lambda c: c.learner == "row"}, "holds only if: iterates in the interior"),
        ({"broken": lambda _: True}, FAILS),
    ],
    "corollary-2": [({}, HOLDS), ({"broken": lambda _: True}, FAILS)],
    "trace-forms": [({}, HOLDS), ({"broken": lambda _: True}, FAILS)],
    "trade-off": [
        ({}, HOLDS),
        ({"evolution": (1, 2, 3, 4, 5, 6, 7)}, "holds only if: the terms of the bound"),
        ({"evolution": (7, 6, 6, 4, 3, 2, 1)}, "holds only if: the terms of the bound"),  # equal is not lower
        ({"evolution": (1, 2, 3, 4, 5, 6, 7), "promised": (1.0,) * 7}, FAILS),
    ],
    "optimal-scale": [
        ({}, HOLDS),
        ({"excess": 1e-3}, "holds only if: the scales s*"),
        ({"promised": (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 1.5)}, "holds only if: the scales s*"),
        ({"off": 1e-3}, "holds only if: η = D/√2"),
        ({"off": 1e-3, "excess": 1e-3}, FAILS),
    ],
    "hindsight": [
        ({}, HOLDS),
        ({"competitive": (1.4, 2.0)}, "holds only if: the guarantees"),
        ({"competitive": (1.5, 1.0)}, "holds only if: the regrets"),
        ({"competitive": (1.5, 1.5)}, FAILS),
    ],
    "finer-form": [
        ({}, HOLDS),
        ({"broken": lambda c: c.delta != 1}, "holds only if: δ = 1"),
        ({"broken": lambda _: True}, FAILS),
    ],
    "theorem-1": [
        ({}, HOLDS),
        ({"broken": lambda c: c.delta > 10}, ALL_CONDITIONS),
        (
            {"broken": lambda c: c.delta > 10, "conditions": lambda c: [*CONDITIONS.values()][:1] * (c.delta < 10)},
            "holds only if: §4.2's condition is met",
        ),
        ({"broken": lambda _: True}, FAILS),
    ],
    "theorem-2": [
        ({}, HOLDS),
        ({"broken": lambda c: c.delta > 10 and c.learner == "column"}, ALL_CONDITIONS),
        ({"broken": lambda c: c.learner == "column"}, FAILS),
    ],
    "sublinear": [({}, HOLDS), ({"exponent": lambda _: 1.0}, FAILS), ({"exponent": lambda _: 0.8}, FAILS)],
    "stabilizer-is-constant": [
        ({}, HOLDS),
        ({"exponent": lambda c: 0.9 if c.delta > 10 else 0.5}, HOLDS),  # too early to see it
        ({"exponent": lambda c: 2.0 if c.delta > 10 else 0.5}, FAILS),  # above the bound with its term
        ({"exponent": lambda c: 0.9 if c.delta == 1 else 0.5}, FAILS),
    ],
    "stabilizer": [({}, HOLDS), ({"broken": lambda _: True}, FAILS)],
    "degeneration": [({}, HOLDS), ({"off": 1e-3}, FAILS)],
    "degeneration-of-the-bound": [({}, HOLDS), ({"off": 1e-3}, FAILS), ({"bound_ratio": 1.01}, FAILS)],
    "transposition": [({}, HOLDS), ({"off": 1e-3}, FAILS)],
    "memory": [({}, HOLDS), ({"off": 1e-3}, FAILS)],
    "ratio-of-rows": [({}, HOLDS), ({"bound_ratio": 1.01}, FAILS)],
    "ratio-of-columns": [({}, HOLDS), ({"bound_ratio": 1.01}, FAILS)],
    "tighter-if-row-sparse": [
        ({}, HOLDS),
        ({"domain_ratio": lambda c: 3.0 if c.domain in ("Frobenius ball", "row balls") else 1.0}, TWO),
        ({"domain_ratio": lambda c: 1.0 if c.structure == "row-sparse" else 3.0}, FAILS),
    ],
    "ratio-from-sparsity": [
        ({}, HOLDS),
        (
            {"domain_ratio": lambda c: 3.0 if c.structure == "row-sparse" and c.domain == "box" else 1.0},
            "holds only if: box",
        ),
        ({"domain_ratio": lambda _: 3.0}, FAILS),
    ],
    "beyond-a-step-size": [
        ({}, HOLDS),
        ({"control": lambda c: 2.0 if c.active == "row" else 1.0}, "holds only if: rows"),
        ({"control": lambda _: 1 + 1e-8}, FAILS),
        ({"control": lambda _: 0.5}, FAILS),
    ],
    "regret-of-rows": [
        ({}, HOLDS),
        ({"regret": lambda c: 0.5 if c.K >= 100 else 1.0}, "holds only if: K ≥ 100"),
        ({"regret": lambda _: 1.0}, FAILS),
    ],
    "regret-of-columns": [
        ({}, HOLDS),
        (
            {"regret": lambda c: 0.5 if 1 < c.K < 100 and c.n % 2 else 1.0},
            "holds only if: 1 < K < 100, an odd number of columns",
        ),
        ({"regret": lambda c: 0.5 if c.K == 1 else 2.0}, "holds only if: K = 1"),
        ({"regret": lambda _: 2.0}, FAILS),
    ],
}


@pytest.mark.parametrize(("claim", "says", "expected"), cases(EARNED))
def test_a_rule_gives_the_verdict_that_is_earned(claim, says, expected):
    check("games", claim, Fake(**says), expected)
