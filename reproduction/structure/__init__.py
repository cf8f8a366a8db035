"""Row, column, entry, whole or factored: which geometry pays on which structure (§4.3, §5.1, §6, §7)."""

from reproduction.experiment import Experiment
from reproduction.structure import sweep
from reproduction.structure.claims import CLAIMS
from reproduction.structure.evidence import Evidence
from reproduction.structure.report import section

__all__ = ["EXPERIMENT"]

EXPERIMENT = Experiment(
    "structure",
    "which geometry pays on which structure of gradients (§4.3, §5.1, §7)",
    sweep.FULL,
    sweep.QUICK,
    sweep.needed,
    Evidence,
    CLAIMS,
    section,
)
