"""What the report says: the claims, and a section for each experiment that was run."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from matrix_adagrad.experiments import cells
from matrix_adagrad.experiments.claims import Verdict
from matrix_adagrad.experiments.evidence import Evidence
from matrix_adagrad.experiments.report import movielens, networks
from matrix_adagrad.report.document import Document, Section, Table
from matrix_adagrad.version import __version__

__all__ = ["document"]

LEADING = ("movielens", "movielens-lr", "mlp-depth")


def document(evidence: Evidence, verdicts: Sequence[Verdict]) -> Document:
    """The report on what is known."""
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
        "hold, under which settings, and by how much. Every verdict is by a rule in code, which can be read below.",
        (
            ("matrix-adagrad", __version__),
            ("code", cells.code()[:12]),
            ("torch", torch.__version__),
            ("size", "quick: fewer seeds and a coarser grid" if evidence.size.is_quick else "full"),
            ("command", "matrix-adagrad reproduce" + " --quick" * evidence.size.is_quick),
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
        "Each was checked under all circumstances in which it was tried; intervals are 95 % intervals of paired "
        "differences over folds or seeds.",
        ("id", "place", "statement", "rule", "figures", "verdict", "command"),
        tuple(rows),
    )


def _examples(evidence: Evidence) -> Section:
    return Section(
        "examples",
        "The motivating examples, and the theorems (§4, App. E and F)",
        (
            "One row, or one column, is active in each round, and its label alternates. The bounds are those of "
            "the geometry that is aligned with the gradients and of entry-wise AdaGrad; both play too, with exact "
            "projections in their own metrics, from zero and from a random point. What they regret is another "
            "matter than what they are promised to regret at most.",
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
        "The motivating examples, played",
        "Bounds and regrets of the aligned geometry and of entry-wise AdaGrad, on an m×n matrix, K rounds for each "
        "row or column. The last column says whose regret is lower.",
        (
            *("active", "m", "n", "K", "start", "bound", "entry's bound", "ratio", "paper's ratio"),
            *("regret", "entry's regret", "lower regret"),
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
        for one in game.checked:
            if not one.is_condition:
                found.setdefault((one.place, one.name), []).append((one.is_promised, one.holds))
    rows = []
    for (place, name), checks in found.items():
        promised, other = ([held for met, held in checks if met is is_met] for is_met in (True, False))
        rows.append((place, name, len(promised), promised.count(False), len(other), other.count(False)))
    return Table(
        "inequalities",
        "Every inequality, on games that were played",
        f"{len(evidence.theorems())} games, by Row-AdaGrad and Column-AdaGrad, with δ = 1e-8 and δ = 1000. Theorems "
        "1 and 2 are promised only where δ meets the condition of App. E, which their statements do not mention.",
        ("place", "inequality", "condition met", "broken", "not met", "broken then"),
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
        "Bytes for a 943 × 20 matrix in float32, and numbers of state for each parameter.",
        ("optimizer", "bytes", "numbers a parameter"),
        tuple(rows),
    )
