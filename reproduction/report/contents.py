"""The content of the report: the claims, and a section for each experiment that was run."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from matrix_adagrad.pages.document import Document, Section, Table
from matrix_adagrad.version import __version__
from reproduction import cells
from reproduction.claims import Verdict
from reproduction.evidence import Evidence
from reproduction.report import movielens, networks

__all__ = ["document"]

LEADING = ("movielens", "movielens-lr", "mlp-depth")


def document(evidence: Evidence, verdicts: Sequence[Verdict]) -> Document:
    """The report on the results so far."""
    sections = []
    if evidence.has("movielens"):
        sections.append(movielens.section(evidence))
    if evidence.has("mlp"):
        sections.append(networks.section(evidence))
    if evidence.has("examples"):
        sections.append(_examples(evidence))
    names = {part.name for section in sections for part in section.parts}
    return Document(
        "Matrix AdaGrad, reproduced",
        "Which claims of “Matrix AdaGrad: Row-wise and Column-wise Adaptive Subgradient Methods” (Zhang, Yu and Zhao) "
        "hold, in which settings, and by how much. Every verdict follows from a rule in code, which is shown below.",
        (
            ("matrix-adagrad", __version__),
            ("code", cells.source_hash()[:12]),
            ("torch", torch.__version__),
            ("size", "quick: fewer seeds and a coarser grid" if evidence.size.is_quick else "full"),
            ("command", "python -m reproduction" + " --quick" * evidence.size.is_quick),
        ),
        evidence.size.is_quick,
        tuple(name for name in LEADING if name in names),
        tuple(sections),
        claims=_claims(verdicts, evidence.size.is_quick),
    )


def _claims(verdicts: Sequence[Verdict], quick: bool) -> Table:
    rows = []
    for verdict in verdicts:
        claim = verdict.claim
        rows.append(
            (claim.id, claim.place, claim.statement, claim.rule, verdict.figures, verdict.text, claim.command(quick))
        )
    return Table(
        "claims",
        "The paper's claims",
        "Each claim was checked in every setting in which it was tried. Intervals are 95 % intervals of paired "
        "differences over folds or seeds.",
        ("id", "place", "statement", "rule", "figures", "verdict", "command"),
        tuple(rows),
    )


def _examples(evidence: Evidence) -> Section:
    return Section(
        "examples",
        "The motivating examples, and the theorems (§4, App. E and F)",
        (
            "One row, or one column, is active in each round, and its label alternates. We compare the bound of the "
            "geometry aligned with the gradients with that of entry-wise AdaGrad. Both algorithms also play, with "
            "exact projections in their own metrics, from zero and from a random point. Their actual regret need not "
            "be ordered like the bounds.",
        ),
        (_games(evidence), _theorems(evidence), _memory(evidence)),
    )


def _games(evidence: Evidence) -> Table:
    rows = []
    for game in evidence.games():
        config = game.config
        rows.append(
            (
                *(config.active, config.m, config.n, config.K, config.start),
                *(f"{game.bound:.3f}", f"{game.entry_bound:.3f}", f"{game.ratio:.4f}", f"{game.expected_ratio:.4f}"),
                *(f"{game.regret:.3f}", f"{game.entry_regret:.3f}"),
                _lower(game.regret, game.entry_regret),
            )
        )
    return Table(
        "games",
        "The motivating examples as games",
        "Bounds and regrets of the aligned geometry and of entry-wise AdaGrad, on an m×n matrix, with K rounds per "
        "row or column. The last column says whose regret is lower.",
        (
            *("active", "m", "n", "K", "start", "bound", "entry bound", "ratio", "paper's ratio"),
            *("regret", "entry regret", "lower regret"),
        ),
        tuple(rows),
    )


def _lower(aligned: float, entry: float) -> str:
    if math.isclose(aligned, entry, rel_tol=1e-9):
        return "equal"
    return "aligned" if aligned < entry else "entry"


def _theorems(evidence: Evidence) -> Table:
    found: dict[tuple[str, str], list[tuple[bool, bool]]] = {}
    for game in evidence.theorems():
        for claim in game.checked:
            if not claim.is_condition:
                found.setdefault((claim.place, claim.name), []).append((claim.is_guaranteed, claim.holds))
    rows = []
    for (place, name), checks in found.items():
        promised, other = ([held for met, held in checks if met is is_met] for is_met in (True, False))
        rows.append((place, name, len(promised), promised.count(False), len(other), other.count(False)))
    return Table(
        "inequalities",
        "Every inequality, in every game",
        f"{len(evidence.theorems())} games, by Row-AdaGrad and Column-AdaGrad, with δ = 1e-8 and δ = 1000. Theorems "
        "1 and 2 are guaranteed only if δ meets the condition of App. E, which their statements do not mention. The "
        "table counts the games that meet it, those that do not, and how many of each break the inequality.",
        ("place", "inequality", "condition met", "broken", "not met", "broken if not met"),
        tuple(rows),
    )


def _memory(evidence: Evidence) -> Table:
    rows = []
    for found in evidence.identities():
        numbers = found.config.m * found.config.n
        rows += [(name, f"{size:,}", f"{size / 4 / numbers:.4f}") for name, size in found.states]
    return Table(
        "memory",
        "Memory of optimizer states",
        "Bytes for a 943 × 20 matrix in float32, and numbers of state per parameter.",
        ("optimizer", "bytes", "numbers per parameter"),
        tuple(rows),
    )
