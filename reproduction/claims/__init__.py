"""The paper's claims, each with the rule for its verdict, in words and in code.

A claim is checked under all circumstances in which it was tried: settings that the paper leaves open, kinds of games.
If it holds under all of them it holds; if under some, it holds only if …; if under none, it does not hold here.
"""

from __future__ import annotations

from reproduction.claims import movielens, networks, theory
from reproduction.claims.verdict import Check, Claim, Verdict
from reproduction.evidence import Evidence

__all__ = ["CLAIMS", "Check", "Claim", "Verdict", "judge"]

CLAIMS = (*theory.CLAIMS, *movielens.CLAIMS, *networks.CLAIMS)


def judge(evidence: Evidence) -> list[Verdict]:
    """All claims, in the order of the paper; those of an experiment that is not finished have no verdict."""
    finished = {claim.experiment: evidence.has(claim.experiment) for claim in CLAIMS}
    return [Verdict(claim, tuple(claim.checks(evidence)) if finished[claim.experiment] else ()) for claim in CLAIMS]
