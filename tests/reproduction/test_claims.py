"""Every claim has a rule that is tried, and a verdict says what its checks say."""

import pytest

from reproduction.experiments import EXPERIMENTS, Results, judge
from reproduction.verdict import Check, Verdict
from tests.reproduction.earned import FAILS, HOLDS, OPEN
from tests.reproduction.fakes import played
from tests.reproduction.games import test_claims as games
from tests.reproduction.movielens import test_claims as movielens
from tests.reproduction.networks import test_claims as networks
from tests.reproduction.structure import test_claims as structure

TRIED = {"games": games, "structure": structure, "movielens": movielens, "networks": networks}
EARNED = {name: module.EARNED for name, module in TRIED.items()}
DECIDED = {"storage", "cheaper-than-shampoo"}  # like those of games: by figures without intervals
CLAIM = EXPERIMENTS["games"].claims[0]


def test_every_claim_is_tried():
    ids = [claim.id for experiment in EXPERIMENTS.values() for claim in experiment.claims]
    assert len(set(ids)) == len(ids)
    for name, experiment in EXPERIMENTS.items():
        assert set(EARNED[name]) == {claim.id for claim in experiment.claims}
        for claim, cases in EARNED[name].items():
            found = {expected for _, expected in cases}
            assert found >= ({HOLDS, FAILS} if name == "games" or claim in DECIDED else {HOLDS, FAILS, OPEN}), claim


def test_what_was_not_run_has_no_verdict():
    assert {verdict.text for verdict in judge(Results({}))} == {"not run"}
    texts = {verdict.claim.id: verdict.text for verdict in judge(played("networks", is_quick=True))}
    assert texts["rows-beat-entries"] == "not run"
    assert texts["rows-train-at-25"] == "holds"


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_an_experiment_that_is_not_finished_has_no_verdicts(experiment):
    results = played(experiment)
    assert all(verdict.text != "not run" for verdict in judge(results) if verdict.experiment == experiment)
    for missing in (next(iter(results.known)), next(reversed(results.known))):
        some = {cell: result for cell, result in results.known.items() if cell != missing}
        assert {verdict.text for verdict in judge(Results(some))} == {"not run"}


def test_a_verdict_lists_all_circumstances():
    verdict = Verdict("games", CLAIM, (Check("one", True, "1"), Check("two", None, "2"), Check("three", True, "3")))
    assert verdict.text == "holds only if: one; or three (otherwise not decided)"
    assert Verdict("games", CLAIM, (Check("one", None, "1"), Check("two", False, "2"))).text == FAILS
    assert Verdict("games", CLAIM, (Check("one", True, "1"), Check("two", False, "2"))).text == "holds only if: one"
    assert verdict.figures.splitlines() == ["✓ one: 1", "? (not decided) two: 2", "✓ three: 3"]
    assert [check["holds"] for check in verdict.to_dict(quick=True)["figures"]] == [True, None, True]
    shown = Verdict("games", CLAIM, (Check("one", True, "1"), Check("two", False, "2", counts=False)))
    assert shown.text == HOLDS
    assert shown.figures.splitlines()[1] == "– not counted: two: 2"
    assert Verdict("games", CLAIM, shown.checks[1:]).text == "not run"
    assert verdict.command(quick=True) == "python -m reproduction games --quick"
