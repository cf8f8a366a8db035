"""Results of whole reproductions that are made up."""

from reproduction.experiments import EXPERIMENTS, Results
from reproduction.verdict import Verdict
from tests.reproduction.games.fakes import Fake as FakeGames
from tests.reproduction.movielens.fakes import Fake as FakeMovieLens
from tests.reproduction.networks.fakes import Fake as FakeNetworks
from tests.reproduction.structure.fakes import Fake as FakeStructure

USUAL = {
    "games": FakeGames(),
    "structure": FakeStructure(),
    "movielens": FakeMovieLens(),
    "networks": FakeNetworks(),
}


def made_up(cell, **fakes):
    """A cell's result, by the fake of its experiment."""
    _, experiment, module = type(cell).__module__.split(".")
    return getattr({**USUAL, **fakes}[experiment], module)(cell)


def played(what="all", is_quick=False, **fakes):
    """All results of an experiment, by fakes of the experiments that are named."""
    return rounds_played(what, is_quick, **fakes)[0]


def rounds_played(what="all", is_quick=False, **fakes):
    """The same, and in how many rounds they were asked for."""
    known, rounds = {}, 0
    while wanted := [cell for cell in Results(known, is_quick).needed(what) if cell not in known]:
        known.update((cell, made_up(cell, **fakes)) for cell in wanted)
        rounds += 1
    return Results(known, is_quick), rounds


def verdicts(experiment, fake):
    """The text of each of an experiment's verdicts, in a full run."""
    evidence = played(experiment, **{experiment: fake}).evidence(experiment)
    return {
        claim.id: Verdict(experiment, claim, tuple(claim.checks(evidence))).text
        for claim in EXPERIMENTS[experiment].claims
    }
