"""Tables of results that are made up, and of the verdicts that they earn."""

from tests.reproduction.fakes import verdicts

HOLDS, FAILS = "holds", "does not hold here"


def cases(earned):
    """A table of claims, each with pairs of what a fake says and of the verdict, as parameters of a test."""
    return [(claim, says, expected) for claim, pairs in earned.items() for says, expected in pairs]


def check(experiment, claim, fake, expected):
    found = verdicts(experiment, fake)[claim].removesuffix(" (otherwise not decided)")
    assert (FAILS if found == "not decided" else found) == expected
