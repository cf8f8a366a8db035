"""The regret of a run, with the bounds on it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from matrix_adagrad.online.bounds import Inequality, RegretTerms, TradeOff
from matrix_adagrad.online.solver import Solution

__all__ = ["Regret"]


@dataclass(frozen=True)
class Regret:
    """The regret of a learner against the best fixed decision in hindsight, and the bounds on it."""

    rounds: int
    loss: float
    best: Solution
    terms: RegretTerms
    exact: bool
    inequalities: tuple[Inequality, ...]
    geometry_bounds: dict[str, float]  # √2 D Σ_b √V_b of each further geometry, for these gradients
    curve: tuple[dict[str, float], ...] = ()  # `point` after some of the rounds, if asked for

    @property
    def regret(self) -> float:
        """Σ f_t(X_t) - Σ f_t(X*), exact up to the solver's gap for X*."""
        return self.terms.regret

    @property
    def holds(self) -> bool:
        """Whether every guaranteed inequality held. Theorems 1 and 2 are guaranteed if δ meets their condition.

        The bounds of other diagonal metrics are guaranteed if their scales meet theirs.
        """
        return all(
            inequality.holds
            for inequality in self.inequalities
            if inequality.is_guaranteed and not inequality.is_condition
        )

    def __getitem__(self, name: str) -> Inequality:
        return {inequality.name: inequality for inequality in self.inequalities}[name]

    @property
    def tradeoff(self) -> TradeOff:
        """The bound of each block as a function of its scale."""
        if self.terms.roots is None or self.terms.values is None:
            raise ValueError("only a run with an AdaGrad scheme has a trade-off, and this run had another scheme")
        squares, used = self.terms.roots.flatten().square(), self.terms.values.flatten()
        return TradeOff(squares, used, self.terms.distance, self.terms.eta)

    def point(self) -> dict[str, float]:
        """A point of the curve: the rounds, the regret so far and its bounds."""
        general = self["regret ≤ general bound"].right
        return {"rounds": self.rounds, "regret": self.regret, "general bound": general, **self.geometry_bounds}

    def table(self) -> str:
        """The regret and all inequalities, for a terminal."""
        known = "exact" if self.exact else "upper bound"
        lines = [
            f"{self.rounds:,} rounds: loss {self.loss:.6g}, best fixed decision {self.best.value:.6g} "
            f"(gap ≤ {self.best.gap:.2g}), regret {self.regret:.6g}",
            f"η = {self.terms.eta:.6g}"
            + ("" if math.isnan(self.terms.distance) else f", Δ = {self.terms.distance:.6g} ({known})")
            + ("" if math.isnan(self.terms.diameter) else f", D = {self.terms.diameter:.6g}"),
            "",
            f"{'':<8}{'inequality':<48}{'left':>13}{'right':>13}{'slack':>13}  place",
        ]
        lines += [
            f"{row.verdict:<8}{row.name:<48}{row.left:>13.5g}{row.right:>13.5g}{row.slack:>13.5g}  {row.place}"
            for row in self.inequalities
        ]
        if self.geometry_bounds:
            lines += ["", "√2 D Σ_b √V_b for these gradients, in each geometry:"]
            lines += [f"{'':<8}{name:<48}{'':>13}{value:>13.5g}" for name, value in self.geometry_bounds.items()]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """All numbers, for JSON."""
        terms = {k: None if math.isnan(v) else v for k, v in vars(self.terms).items() if isinstance(v, float)}
        checks = [
            {**vars(inequality), "slack": inequality.slack, "holds": inequality.holds}
            for inequality in self.inequalities
        ]
        best = {"value": self.best.value, "gap": self.best.gap}
        return {
            "rounds": self.rounds,
            "loss": self.loss,
            "best": best,
            "exact": self.exact,
            **terms,
            "inequalities": checks,
            "tradeoff": None if self.terms.roots is None else self.tradeoff.to_dict(),
            "geometry_bounds": dict(self.geometry_bounds),
            "curve": list(self.curve),
        }
