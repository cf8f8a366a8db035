"""Claims, how they are checked, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from reproduction.evidence import Evidence

__all__ = ["Check", "Claim", "Verdict"]


@dataclass(frozen=True)
class Check:
    """Whether a claim held under some circumstances, and the figures that say so; ``None`` is not decided."""

    circumstances: str
    holds: bool | None
    figures: str

    def __str__(self) -> str:
        mark = {True: "✓", False: "✗", None: "? (not decided)"}[self.holds]
        return f"{mark} {self.circumstances}: {self.figures}" if self.circumstances else self.figures


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, and how it is judged.

    Args:
        id: a short name.
        place: where the paper says it.
        statement: what it says.
        rule: when it counts as true, in words; ``checks`` is the same in code.
        experiment: what has to be run.
        checks: under each of the circumstances.
    """

    id: str
    place: str
    statement: str
    rule: str
    experiment: str
    checks: Callable[[Evidence], Iterator[Check]]

    def command(self, quick: bool) -> str:
        """What reproduces it."""
        return f"python -m reproduction {self.experiment}" + " --quick" * quick


@dataclass(frozen=True)
class Verdict:
    """A claim, and what came out; no checks, if it was not run or not to the end."""

    claim: Claim
    checks: tuple[Check, ...]

    @property
    def text(self) -> str:
        """holds, holds only if …, does not hold here, not decided (where no check was), or not run."""
        good = [check.circumstances for check in self.checks if check.holds]
        if not self.checks:
            return "not run"
        if len(good) == len(self.checks):
            return "holds"
        is_open = not any(check.holds is False for check in self.checks)
        if good:
            return f"holds only if: {'; or '.join(good)}" + " (otherwise not decided)" * is_open
        return "not decided" if is_open else "does not hold here"

    @property
    def figures(self) -> str:
        """Of all circumstances, a line for each."""
        return "\n".join(map(str, self.checks))

    def to_dict(self, quick: bool) -> dict[str, object]:
        """For claims.json."""
        claim = self.claim
        return {
            "id": claim.id,
            "place": claim.place,
            "statement": claim.statement,
            "rule": claim.rule,
            "figures": [{"if": c.circumstances, "holds": c.holds, "figures": c.figures} for c in self.checks],
            "verdict": self.text,
            "command": claim.command(quick),
        }
