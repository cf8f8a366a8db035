"""The content of the report: the claims, and a section for each experiment that was run."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from matrix_adagrad.pages.document import Document, Table
from matrix_adagrad.version import __version__
from reproduction import cells
from reproduction.experiments import EXPERIMENTS, Results
from reproduction.verdict import Verdict

__all__ = ["document"]

LEADING = ("movielens", "movielens-lr", "mlp-depth")


def document(results: Results, verdicts: Sequence[Verdict]) -> Document:
    """The report on the results so far."""
    found = {name: results.evidence(name) for name in EXPERIMENTS}
    sections = [EXPERIMENTS[name].section(evidence) for name, evidence in found.items() if evidence is not None]
    names = {part.name for section in sections for part in section.parts}
    return Document(
        "Matrix AdaGrad, reproduced",
        "Which claims of “Matrix AdaGrad: Row-wise and Column-wise Adaptive Subgradient Methods” (Zhang, Yu and Zhao) "
        "hold, in which settings, and by how much. Every verdict follows from a rule in code, which is shown below.",
        (
            ("matrix-adagrad", __version__),
            ("code", cells.source_hash()[:12]),
            ("torch", torch.__version__),
            ("size", "quick: fewer seeds and a coarser grid" if results.is_quick else "full"),
            ("command", "python -m reproduction" + " --quick" * results.is_quick),
        ),
        results.is_quick,
        tuple(name for name in LEADING if name in names),
        tuple(sections),
        claims=_claims(verdicts, results.is_quick),
    )


def _claims(verdicts: Sequence[Verdict], quick: bool) -> Table:
    rows = []
    for verdict in verdicts:
        claim = verdict.claim
        rows.append(
            (claim.id, claim.place, claim.statement, claim.rule, verdict.figures, verdict.text, verdict.command(quick))
        )
    return Table(
        "claims",
        "The paper's claims",
        "Each claim was checked in every setting in which it was tried. Intervals are 95 % intervals of paired "
        "differences over folds or seeds.",
        ("id", "place", "statement", "rule", "figures", "verdict", "command"),
        tuple(rows),
    )
