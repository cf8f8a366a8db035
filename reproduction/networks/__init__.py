"""Stacked MLPs of growing depth (§5.2, App. G, Figs. 2 and 3)."""

from reproduction.experiment import Experiment
from reproduction.networks import sweep
from reproduction.networks.claims import CLAIMS
from reproduction.networks.evidence import Evidence
from reproduction.networks.report import section

__all__ = ["EXPERIMENT"]

EXPERIMENT = Experiment(
    "networks",
    "stacked MLPs of growing depth (§5.2, App. G, Figs. 2 and 3)",
    sweep.FULL,
    sweep.QUICK,
    sweep.needed,
    Evidence,
    CLAIMS,
    section,
)
