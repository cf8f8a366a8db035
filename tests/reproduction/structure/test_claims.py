"""Each rule gives every verdict that it can give, for results that are made up to earn it."""

import pytest

from reproduction.structure import training
from tests.reproduction.earned import FAILS, HOLDS, OPEN, cases, check
from tests.reproduction.fakes import played
from tests.reproduction.structure.fakes import Fake


def rows_lead_if(condition, by=0.5, otherwise=1.0):
    """Rows have so much of the others' loss or regret where a condition holds."""
    return lambda config, name: (by if condition(config) else otherwise) if name == "row" else 1.0


def is_training(config):
    return isinstance(config, training.Config)


def is_sparse(config):
    return config.structure.row_activity != "all"


def is_correlated(config):
    return config.structure.within_rows > 0


def aligned(config, name):
    """The side that has structure pays."""
    own = config.structure
    rows, columns = (
        activity == "zipf" or decades > 0
        for activity, decades in ((own.row_activity, own.row_decades), (own.column_activity, own.column_decades))
    )
    return 0.5 if (name == "row" and rows) or (name == "column" and columns) else 1.0


def always(_):
    return True


ONLY_TRAINING = "holds only if: training: loss"

# For each claim: what earns “holds”, “holds only if: …” (with the circumstances), and “does not hold here”.
EARNED = {
    "sparse-rows": [
        ({"score": rows_lead_if(is_sparse)}, HOLDS),
        ({"score": rows_lead_if(always)}, HOLDS),
        ({"score": rows_lead_if(lambda c: is_training(c) and is_sparse(c))}, ONLY_TRAINING),
        ({"score": rows_lead_if(lambda c: c.structure.row_activity == "one")}, FAILS),
        ({}, FAILS),
        ({"score": rows_lead_if(is_sparse), "noise": 3.0}, OPEN),
    ],
    "sparsity-is-why": [
        ({"score": rows_lead_if(is_sparse)}, HOLDS),
        ({"score": rows_lead_if(is_sparse, by=0.3, otherwise=0.5)}, HOLDS),
        ({"score": rows_lead_if(lambda c: is_training(c) and is_sparse(c))}, ONLY_TRAINING),
        ({"score": rows_lead_if(always)}, FAILS),
        ({"score": rows_lead_if(is_sparse, by=0.9, otherwise=0.5)}, FAILS),
        ({"noise": 3.0}, OPEN),
    ],
    "correlated-rows": [
        ({"score": rows_lead_if(is_correlated)}, HOLDS),
        ({"score": rows_lead_if(always)}, HOLDS),
        ({"score": rows_lead_if(lambda c: is_training(c) and is_correlated(c))}, ONLY_TRAINING),
        ({"score": rows_lead_if(lambda c: c.structure.within_rows == 0.9)}, FAILS),
        ({}, FAILS),
        ({"noise": 3.0}, OPEN),
    ],
    "correlation-is-why": [
        ({"score": rows_lead_if(is_correlated)}, HOLDS),
        ({"score": rows_lead_if(lambda c: is_training(c) and is_correlated(c))}, ONLY_TRAINING),
        ({"score": rows_lead_if(always)}, FAILS),
        ({"score": rows_lead_if(lambda c: not is_correlated(c))}, FAILS),
        ({"noise": 3.0}, OPEN),
    ],
    "alignment": [
        ({"score": aligned}, HOLDS),
        (
            {"score": lambda c, name: aligned(c, name) if is_training(c) and not c.proportional else 1.0},
            "holds only if: training: loss, different frequency; or training: loss, different size",
        ),
        ({"score": rows_lead_if(is_training)}, FAILS),  # columns must lead where they have the structure
        ({}, FAILS),
        ({"noise": 3.0}, OPEN),
    ],
    "cheaper-than-shampoo": [
        ({"state": lambda _, name: 99 if "full" in name else 1}, HOLDS),
        ({}, "holds only if: on the same side"),  # 943 numbers for rows, 20² for a full metric of columns
        ({"roots": lambda *_: 1}, FAILS),
        ({"state": lambda *_: 1}, FAILS),
    ],
}


@pytest.mark.parametrize(("claim", "says", "expected"), cases(EARNED))
def test_a_rule_gives_the_verdict_that_is_earned(claim, says, expected):
    check("structure", claim, Fake(**says), expected)


def outcome(task, structure, **says):
    return played("structure", structure=Fake(**says)).evidence("structure").outcome(task, structure)


def test_geometries_are_unbeaten_up_to_noise_and_to_two_percent():
    costs = {"row": 1.0, "column": 1.01, "entry": 1.05, "whole": 1.3, "factored": 1.0001}
    assert outcome("training", "none", score=lambda _, name: costs[name]).unbeaten == ("row", "column", "factored")
    assert len(outcome("training", "none", score=lambda _, name: costs[name], noise=0.9).unbeaten) > 3
    assert outcome("box", "none", score=lambda _, name: costs[name]).worst == pytest.approx(1.3, rel=1e-2)


def test_structure_in_columns_is_read_from_its_mirror_image():
    score = rows_lead_if(lambda config: config.structure.row_decades)
    for task in ("box", "Frobenius ball"):
        assert outcome(task, "row sizes", score=score).unbeaten == ("row",)
        assert outcome(task, "column sizes", score=score).unbeaten == ("column",)
    assert len(outcome("row balls", "column sizes", score=score).unbeaten) == 5  # it is no mirror image of itself
