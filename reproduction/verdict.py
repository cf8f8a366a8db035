"""Claims, their checks, and the verdicts.

Each claim is checked in every circumstance in which it was tried: the settings that the paper leaves open, and the
kinds of games. If it holds in all of them, it “holds”. If it holds in some, it “holds only if …”. If it holds in none,
it “does not hold here”.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["Check", "Claim", "Verdict"]


@dataclass(frozen=True)
class Check:
    """Whether a claim held in one circumstance (``None``: not decided), and the figures that show it.

    A check that does not count is shown for comparison, and the verdict ignores it.
    """

    circumstances: str
    holds: bool | None
    figures: str
    counts: bool = True

    def __str__(self) -> str:
        mark = {True: "✓", False: "✗", None: "? (not decided)"}[self.holds] if self.counts else "– not counted:"
        return f"{mark} {self.circumstances}: {self.figures}" if self.circumstances else self.figures


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, and how it is judged.

    Args:
        id: a short name.
        place: where the paper makes it.
        statement: what the paper says.
        rule: when it counts as true, in words; ``checks`` is the same in code.
        checks: returns one check per circumstance, given the evidence of its experiment.
    """

    id: str
    place: str
    statement: str
    rule: str
    checks: Callable[[Any], Iterator[Check]]


@dataclass(frozen=True)
class Verdict:
    """A claim and its checks. It has none if its experiment has not finished."""

    experiment: str
    claim: Claim
    checks: tuple[Check, ...]

    @property
    def text(self) -> str:
        """“holds”, “holds only if …”, “does not hold here”, “not decided” (no check was conclusive) or “not run”."""
        counted = [check for check in self.checks if check.counts]
        good = [check.circumstances for check in counted if check.holds]
        if not counted:
            return "not run"
        if len(good) == len(counted):
            return "holds"
        is_open = not any(check.holds is False for check in counted)
        if good:
            return f"holds only if: {'; or '.join(good)}" + " (otherwise not decided)" * is_open
        return "not decided" if is_open else "does not hold here"

    @property
    def figures(self) -> str:
        """The figures, one line per circumstance."""
        return "\n".join(map(str, self.checks))

    def command(self, quick: bool) -> str:
        """The command that reproduces it."""
        return f"python -m reproduction {self.experiment}" + " --quick" * quick

    def to_dict(self, quick: bool) -> dict[str, object]:
        """The entry in claims.json."""
        claim = self.claim
        return {
            "id": claim.id,
            "place": claim.place,
            "statement": claim.statement,
            "rule": claim.rule,
            "figures": [
                {"if": c.circumstances, "holds": c.holds, "figures": c.figures, "counts": c.counts} for c in self.checks
            ],
            "verdict": self.text,
            "command": self.command(quick),
        }
