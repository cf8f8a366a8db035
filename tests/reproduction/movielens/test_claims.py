"""Each rule gives every verdict that it can give, for results that are made up to earn it."""

import pytest

from reproduction.experiments import EXPERIMENTS
from tests.reproduction.earned import FAILS, HOLDS, OPEN, OTHERWISE_OPEN, cases, check
from tests.reproduction.fakes import played
from tests.reproduction.movielens.fakes import Fake


def by_geometry(row, entry, column):
    return lambda _, geometry: {"row": row, "entry": entry, "column": column}[geometry]


def row_in(is_setting, row, otherwise):
    """A number of Row-AdaGrad's in one setting, and another of all else."""
    return lambda config, geometry: row if geometry == "row" and is_setting(config) else otherwise


def centred(config):
    return config.centred


USUAL = by_geometry(0.93, 0.95, 0.97)
USELESS = by_geometry(1.2, 1.3, 1.4)  # the mean of the ratings is better: 1.12


def as_paper_or_useless(config, geometry):
    """As in the paper but for one setting, in which no model is any good, and the order is the opposite."""
    return by_geometry(1.4, 1.3, 1.2)(config, geometry) if config.start == "N(0, 1)" else USUAL(config, geometry)


# The default setting twice: as for the others, and with learning rates chosen for early epochs.
ONLY_LARGE = "holds only if: mean-centred ratings"

# For each claim: what earns “holds”, “holds only if: …” (with the circumstances), and “does not hold here”.
EARNED = {
    "rows-beat-entries": [
        ({"rmse": USUAL}, HOLDS),
        ({"rmse": as_paper_or_useless}, HOLDS),
        ({"rmse": row_in(centred, 0.93, 0.95)}, ONLY_LARGE),
        ({"rmse": by_geometry(0.95, 0.95, 0.97)}, FAILS),
        ({"rmse": by_geometry(0.96, 0.95, 0.97)}, FAILS),
        ({"rmse": by_geometry(1.2, 0.95, 0.97)}, FAILS),  # only the others learn something
        ({"rmse": USUAL, "scatter": 0.1}, OPEN),
        ({"rmse": USELESS}, OPEN),
    ],
    "rows-beat-entries-substantially": [
        ({"rmse": USUAL}, HOLDS),
        ({"rmse": as_paper_or_useless}, HOLDS),
        ({"rmse": row_in(lambda c: c.per_rating, 0.93, 0.95)}, "holds only if: λ once per rating"),
        ({"rmse": by_geometry(0.945, 0.95, 0.97)}, FAILS),
        ({"rmse": USELESS}, OPEN),
        ({"scatter": 0.1}, OPEN),
    ],
    "rows-lead-early": [
        ({"early": by_geometry(1.0, 2.0, 2.0)}, HOLDS),
        ({"early": row_in(centred, 1.0, 2.0)}, ONLY_LARGE),
        ({"early": by_geometry(2.0, 1.0, 2.0)}, FAILS),
        ({}, FAILS),
        ({"rmse": USELESS, "early": by_geometry(1.0, 2.0, 2.0)}, OPEN),
        ({"scatter": 0.1}, OPEN),
    ],
    "rows-have-less-area": [
        ({"early": by_geometry(1.0, 2.0, 2.0)}, HOLDS),
        ({"early": row_in(centred, 1.0, 2.0)}, ONLY_LARGE),
        ({"early": by_geometry(2.0, 1.0, 2.0)}, FAILS),
        ({"rmse": USELESS, "early": by_geometry(1.0, 2.0, 2.0)}, OPEN),
        ({"scatter": 0.1}, OPEN),
    ],
    "rows-need-fewer-epochs": [
        ({"early": by_geometry(0.1, 1.0, 1.0)}, HOLDS),
        ({"early": row_in(centred, 0.1, 1.0)}, ONLY_LARGE),
        ({"early": by_geometry(1.0, 0.1, 1.0)}, FAILS),
        ({"rmse": by_geometry(0.95, 1.05, 1.05)}, HOLDS),  # AdaGrad never gets there
        ({"rmse": USELESS}, OPEN),
        ({"scatter": 0.1}, OPEN),
    ],
    "rows-train-better": [
        ({"train": by_geometry(0.7, 0.8, 0.8)}, HOLDS),
        ({"train": row_in(centred, 0.7, 0.8)}, ONLY_LARGE + OTHERWISE_OPEN),
        ({"train": by_geometry(0.8, 0.7, 0.8)}, FAILS),
        ({"rmse": USELESS, "train": by_geometry(0.7, 0.8, 0.8)}, OPEN),
        ({"scatter": 0.1}, OPEN),
    ],
    "columns-are-worst": [
        ({"rmse": USUAL}, HOLDS),
        ({"rmse": as_paper_or_useless}, HOLDS),
        (
            {"rmse": lambda c, geometry: 0.99 if geometry == "column" and c.batch == 64 else 0.95},
            "holds only if: batches of 64" + OTHERWISE_OPEN,
        ),
        ({"rmse": by_geometry(0.93, 0.95, 0.94)}, FAILS),
        ({"rmse": USELESS}, OPEN),
        ({"scatter": 0.1}, OPEN),
    ],
    "storage": [
        ({"rmse": USUAL}, HOLDS),
        ({"rmse": lambda c, geometry: 0.95 if c.transposed else USUAL(c, geometry)}, FAILS),
        ({"rmse": by_geometry(0.97, 0.95, 0.93)}, FAILS),
    ],
}


@pytest.mark.parametrize(("claim", "says", "expected"), cases(EARNED))
def test_a_rule_gives_the_verdict_that_is_earned(claim, says, expected):
    check("movielens", claim, Fake(**says), expected)


def checks(claim, fake):
    evidence = played("movielens", movielens=fake).evidence("movielens")
    (found,) = (each for each in EXPERIMENTS["movielens"].claims if each.id == claim)
    return list(found.checks(evidence))


@pytest.mark.parametrize("claim", ["rows-beat-entries", "rows-lead-early", "rows-train-better", "columns-are-worst"])
def test_a_setting_in_which_nothing_is_learned_supports_nothing(claim):
    (useless,) = (each for each in checks(claim, Fake(rmse=as_paper_or_useless)) if not each.counts)
    assert useless.circumstances == "start N(0, 1)"
    assert useless.figures.endswith("; but no optimizer beats the mean of the training ratings, 1.120")
    (nothing,) = (each for each in checks(claim, Fake(rmse=USELESS)) if each.counts)
    assert nothing.holds is None
    assert nothing.figures == "no optimizer beats the mean of the training ratings in any setting"


def test_an_early_lead_that_a_learning_rate_explains_is_no_lead_at_rates_chosen_for_early_epochs():
    """Early epochs want twice the learning rate, and only AdaGrad does not get it if the last one chooses."""

    class Slow(Fake):
        def curve(self, config, run, lr, fold):
            wanted = lr / 2 if run.geometry == "entry" else lr
            early, last = (super(Slow, self).curve(config, run, own, fold) for own in (wanted, lr))
            return [b if epoch == 30 else a for a, b, epoch in zip(early, last, config.measured, strict=True)]

    found = {each.circumstances: each.holds for each in checks("rows-lead-early", Slow(scatter=3e-3))}
    assert found.pop("the default setting, each learning rate chosen for that epoch") is None
    assert set(found.values()) == {True}
