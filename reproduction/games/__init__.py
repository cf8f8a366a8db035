"""The motivating examples and their controls, the theorems and the identities, played (§3, §4, App. E and F)."""

from reproduction.experiment import Experiment
from reproduction.games import sweep
from reproduction.games.claims import CLAIMS
from reproduction.games.evidence import Evidence
from reproduction.games.report import section

__all__ = ["EXPERIMENT"]

EXPERIMENT = Experiment(
    "games",
    "the motivating examples, and the theorems (§4, App. E and F)",
    sweep.FULL,
    sweep.QUICK,
    sweep.needed,
    Evidence,
    CLAIMS,
    section,
)
