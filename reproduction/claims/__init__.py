"""The paper's claims, each with the rule for its verdict, in words and in code.

Each claim is checked in every circumstance in which it was tried: the settings that the paper leaves open, and the
kinds of games. If it holds in all of them, it “holds”. If it holds in some, it “holds only if …”. If it holds in none,
it “does not hold here”.
"""

from __future__ import annotations

from reproduction.claims import movielens, networks, theory
from reproduction.claims.verdict import Check, Claim, Verdict
from reproduction.evidence import Evidence

__all__ = ["CLAIMS", "Check", "Claim", "Verdict", "judge"]

CLAIMS = (*theory.CLAIMS, *movielens.CLAIMS, *networks.CLAIMS)


def judge(evidence: Evidence) -> list[Verdict]:
    """The verdicts on all claims, in the paper's order. A claim whose experiment has not finished is “not run”."""
    finished = {claim.experiment: evidence.has(claim.experiment) for claim in CLAIMS}
    return [Verdict(claim, tuple(claim.checks(evidence)) if finished[claim.experiment] else ()) for claim in CLAIMS]
