"""What came out of a run: the regret, and what was promised."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from matrix_adagrad.online.bounds import Inequality, Ledger, TradeOff
from matrix_adagrad.online.solver import Solution

__all__ = ["Regret"]


@dataclass(frozen=True)
class Regret:
    """How a learner did against the best fixed decision in hindsight, and what was promised."""

    rounds: int
    loss: float
    best: Solution
    ledger: Ledger
    exact: bool
    inequalities: tuple[Inequality, ...]
    promised: dict[str, float]  # √2 D Σ_b √V_b of each geometry, for these gradients
    course: tuple[dict[str, float], ...] = ()  # `point` after rounds on the way, if they were asked for

    @property
    def regret(self) -> float:
        """Σ f_t(X_t) - Σ f_t(X*); the comparator's gap is the most by which it may be larger."""
        return self.ledger.regret

    @property
    def holds(self) -> bool:
        """Whether every inequality held that was promised: Theorems 1 and 2 are, if the condition on δ is met."""
        return all(one.holds for one in self.inequalities if one.is_promised and not one.is_condition)

    def __getitem__(self, name: str) -> Inequality:
        return {one.name: one for one in self.inequalities}[name]

    @property
    def tradeoff(self) -> TradeOff:
        """The bound of each block as a function of its scale."""
        if self.ledger.roots is None:
            raise ValueError("the trade-off is that of an AdaGrad scheme, and this run had another")
        roots = self.ledger.roots.flatten()
        return TradeOff(roots.square(), roots + self.ledger.delta, self.ledger.distance, self.ledger.eta)

    def point(self) -> dict[str, float]:
        """The rounds, the regret against the best decision for these rounds, and its bounds: a point of a curve."""
        general = self["regret ≤ general bound"].right
        return {"rounds": self.rounds, "regret": self.regret, "general bound": general, **self.promised}

    def table(self) -> str:
        """The regret and all inequalities, to be printed."""
        known = "exact" if self.exact else "upper bound"
        lines = [
            f"{self.rounds:,} rounds: loss {self.loss:.6g}, best fixed decision {self.best.value:.6g} "
            f"(gap ≤ {self.best.gap:.2g}), regret {self.regret:.6g}",
            f"η = {self.ledger.eta:.6g}"
            + ("" if math.isnan(self.ledger.distance) else f", Δ = {self.ledger.distance:.6g} ({known})")
            + ("" if math.isnan(self.ledger.diameter) else f", D = {self.ledger.diameter:.6g}"),
            "",
            f"{'':<8}{'inequality':<48}{'left':>13}{'right':>13}{'slack':>13}  place",
        ]
        lines += [
            f"{one.verdict:<8}{one.name:<48}{one.left:>13.5g}{one.right:>13.5g}{one.slack:>13.5g}  {one.place}"
            for one in self.inequalities
        ]
        if self.promised:
            lines += ["", "√2 D Σ_b √V_b for these gradients, in each geometry:"]
            lines += [f"{'':<8}{name:<48}{'':>13}{value:>13.5g}" for name, value in self.promised.items()]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """The figures, as plain numbers and strings."""
        ledger = {k: None if math.isnan(v) else v for k, v in vars(self.ledger).items() if isinstance(v, float)}
        checks = [{**vars(one), "slack": one.slack, "holds": one.holds} for one in self.inequalities]
        best = {"value": self.best.value, "gap": self.best.gap}
        return {
            "rounds": self.rounds,
            "loss": self.loss,
            "best": best,
            "exact": self.exact,
            **ledger,
            "inequalities": checks,
            "tradeoff": None if self.ledger.roots is None else self.tradeoff.to_dict(),
            "promised": dict(self.promised),
            "course": list(self.course),
        }
