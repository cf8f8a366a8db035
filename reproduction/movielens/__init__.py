"""Matrix factorisation of MovieLens 100K (§5.1, Fig. 1)."""

from reproduction.experiment import Experiment
from reproduction.movielens import sweep
from reproduction.movielens.claims import CLAIMS
from reproduction.movielens.evidence import Evidence
from reproduction.movielens.report import section

__all__ = ["EXPERIMENT"]

EXPERIMENT = Experiment(
    "movielens",
    "matrix factorisation of MovieLens 100K (§5.1, Fig. 1)",
    sweep.FULL,
    sweep.QUICK,
    sweep.needed,
    Evidence,
    CLAIMS,
    section,
)
