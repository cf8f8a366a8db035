"""Tables of results that are made up, and of the verdicts that they earn."""

from tests.reproduction.fakes import verdicts

HOLDS, FAILS, OPEN = "holds", "does not hold here", "not decided"
OTHERWISE_OPEN = " (otherwise not decided)"


def cases(earned):
    """A table of claims, each with pairs of what a fake says and of the verdict, as parameters of a test."""
    return [(claim, says, expected) for claim, pairs in earned.items() for says, expected in pairs]


def check(experiment, claim, fake, expected):
    assert verdicts(experiment, fake)[claim] == expected
