r"""The paper's inequalities, checked with the numbers of a run.

With :math:`\Delta = \max_u \|X^* - X_u\|` in the geometry's norm, :math:`V_b = \sum_t \|G_{t,b}\|_2^2` for each block,
and :math:`s_{T,b} = \sqrt{V_b} + \delta`. All of them hold for any point of the domain as X*.

A diagonal metric that is not one of a partition has other scales :math:`s_{t,ij}`. With :math:`\Delta` in the norm of
entries, its bound is

.. math:: R(T) \le \frac{\Delta^2}{2\eta} \sum_{ij} s_{T,ij} + \eta \sum_{ij} \sqrt{V_{ij}}
    \qquad\text{if}\quad s_{t,ij} \ge s_{t-1,ij} \quad\text{and}\quad s_{t,ij} \ge \sqrt{V_{t,ij}}.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from matrix_adagrad.geometry import Column, Entry, Geometry, Row

__all__ = ["Inequality", "RegretTerms", "TradeOff", "inequalities", "theorem"]

SLACK = 1e-9  # of both sides' size: rounding over many rounds


@dataclass(frozen=True)
class Inequality:
    """left ≤ right, and the place where the paper claims it, or requires it as the condition of a claim."""

    name: str
    place: str
    left: float
    right: float
    is_condition: bool = False
    is_guaranteed: bool = True  # False for a claim whose condition is not met

    @property
    def slack(self) -> float:
        """Right - left."""
        return self.right - self.left

    @property
    def holds(self) -> bool:
        """Whether it held, up to rounding."""
        return self.slack >= -SLACK * (abs(self.left) + abs(self.right))

    @property
    def verdict(self) -> str:
        """Whether it held, in a word or two."""
        if self.is_condition:
            return "met" if self.holds else "not met"
        return "holds" if self.holds else "FAILS" if self.is_guaranteed else "excused"


@dataclass(frozen=True)
class RegretTerms:
    """The terms of the bounds, measured on a run. Divergences are those of X*, or of another fixed point."""

    regret: float
    eta: float
    first: float  # B_{ψ_1}(X*; X_1)
    middle: float  # Σ_{t<T} B_{ψ_{t+1}}(X*; X_{t+1}) - B_{ψ_t}(X*; X_{t+1})
    last: float  # B_{ψ_T}(X*; X_{T+1})
    dual: float  # Σ_t ‖G_t‖²_{ψ_t,*}
    delta: float = math.nan
    distance: float = math.nan  # Δ, or an upper bound of it
    diameter: float = math.nan  # D of the domain in the geometry's norm
    roots: Tensor | None = None  # √V_b
    values: Tensor | None = None  # s_{T,b}
    fall: float = math.nan  # the largest s_{t-1} / s_t and √V_t / s_t, of a diagonal metric that may have others than 1
    short: float = math.nan
    absorbed: float = math.nan  # Σ_b √V_b ‖(X* - X_{T+1})_b‖², for the condition on δ
    geometry: Geometry | None = None

    @property
    def terminal(self) -> float:
        """Σ_t Tr(G_tᵀ H_T⁻¹ G_t) = Σ_b V_b / s_{T,b}."""
        assert self.roots is not None
        assert self.values is not None
        return float((self.roots.square() / self.values).sum())

    @property
    def is_theory(self) -> bool:
        """Whether η = D/√2."""
        return math.isfinite(self.diameter) and math.isclose(self.eta, self.diameter / math.sqrt(2), rel_tol=1e-12)

    @property
    def trace(self) -> float:
        """Tr(H_T) = Σ_b s_{T,b}."""
        assert self.values is not None
        return float(self.values.sum())


def theorem(geometry: Geometry | None) -> str:
    """Where the paper claims the regret bound of AdaGrad in this geometry."""
    places: dict[Geometry | None, str] = {Row(): "Thm 1", Column(): "Thm 2", Entry(): "§4.3, entry-wise"}
    return places.get(geometry, "extends Thm 1")


def inequalities(run: RegretTerms) -> Iterator[Inequality]:
    """All inequalities that can be checked on this run."""
    eta, regret = run.eta, run.regret
    general = (run.first + run.middle) / eta + eta / 2 * run.dual
    yield Inequality("regret ≤ general bound", "Cor. 1", regret, general - run.last / eta)
    yield Inequality("regret ≤ general bound, negative term dropped", "Cor. 1", regret, general)
    if run.roots is None or math.isnan(run.distance) or math.isnan(run.delta):
        return
    yield from _of_blocks(run, run.roots) if math.isnan(run.fall) else _of_entries(run, run.roots)


def _of_blocks(run: RegretTerms, roots: Tensor) -> Iterator[Inequality]:
    """For a partition, and for a full metric, whose eigenvalues take the place of the blocks' scales."""
    eta, regret, square, total = run.eta, run.regret, run.distance**2, float(roots.sum())
    stabilizer = square * roots.numel() * run.delta
    yield Inequality("divergences ≤ ½ Δ² Tr(H_T)", "§4.1", run.first + run.middle, square / 2 * run.trace)
    trace_form = square * run.trace / (2 * eta)
    yield Inequality("regret ≤ trace form", "§4.1", regret, trace_form + eta / 2 * run.dual)
    yield Inequality("regret ≤ trace form, terminal metric (a = 2)", "§4.1", regret, trace_form + eta * run.terminal)
    yield Inequality("Σ‖G_t‖²_{H_t⁻¹} ≤ 2 Σ‖G_t‖²_{H_T⁻¹}", "Cor. 2", run.dual, 2 * run.terminal)
    yield Inequality("2 Σ‖G_t‖²_{H_T⁻¹} ≤ 2 Σ_b √V_b", "Cor. 2", 2 * run.terminal, 2 * total)
    conditions = tuple(_conditions(run, roots))
    is_guaranteed = any(condition.holds for condition in conditions)
    place, bound = theorem(run.geometry), (square / (2 * eta) + eta) * total
    yield Inequality("regret ≤ (Δ²/2η + η) Σ_b √V_b", place, regret, bound, is_guaranteed=is_guaranteed)
    yield Inequality("the same, with the stabilizer's term", place, regret, bound + stabilizer / (2 * eta))
    if run.is_theory:
        bound = math.sqrt(2) * run.diameter * total
        yield Inequality("regret ≤ √2 D Σ_b √V_b", place, regret, bound, is_guaranteed=is_guaranteed)
    yield from conditions


def _conditions(run: RegretTerms, roots: Tensor) -> Iterator[Inequality]:
    r"""The conditions on δ. Each is sufficient for Theorems 1 and 2, and none is necessary.

    The paper's two need X_{T+1}; App. E's implies §4.2's. The others need only what the theorems name. They follow from
    the trace form with the terminal metric: there, the stabilizer costs a block :math:`\delta\Delta^2 / 2\eta`, and it
    saves :math:`\eta\delta \sqrt{V_b} / s_{T,b}` of the gradients' cost. The third is that the savings cover the costs;
    the fourth is that they do so in each block, and implies the third.
    """
    square, blocks, lengths = run.distance**2, roots.numel(), 2 * run.eta**2
    absorbed = "the stabilizer is absorbed: Δ² m δ ≤ 2 B_T"
    yield Inequality(absorbed, "§4.2", square * blocks * run.delta, 2 * run.last, is_condition=True)
    if not math.isnan(run.absorbed) and square > 0:
        limit = run.absorbed / (blocks * square)
        yield Inequality("δ ≤ Σ_b √V_b ‖(X* - X_{T+1})_b‖² / m Δ²", "App. E", run.delta, limit, is_condition=True)
    savings = float((roots / (roots + run.delta)).mean())
    yield Inequality("Δ²/2η² ≤ mean of √V_b / (√V_b + δ)", "extends App. E", square / lengths, savings, True)
    if square > 0:
        limit = float((roots * (lengths / square - 1)).min())
        yield Inequality("δ ≤ √V_b (2η²/Δ² - 1) for every b", "extends App. E", run.delta, limit, is_condition=True)


def _of_entries(run: RegretTerms, roots: Tensor) -> Iterator[Inequality]:
    """For a diagonal metric of any scales, each with what it takes to be guaranteed."""
    eta, regret, square, total = run.eta, run.regret, run.distance**2, float(roots.sum())
    rises = Inequality("no scale falls: max s_{t-1} / s_t ≤ 1", "extends Thm 1", run.fall, 1.0, True)
    covers = Inequality("no scale is short: max √V_t / s_t ≤ 1", "extends Thm 1", run.short, 1.0, True)
    evolution, both = square * run.trace / (2 * eta), rises.holds and covers.holds
    claims = {
        "divergences ≤ ½ Δ² Tr(H_T)": ("§4.1", run.first + run.middle, square / 2 * run.trace, rises.holds),
        "regret ≤ trace form": ("§4.1", regret, evolution + eta / 2 * run.dual, rises.holds),
        "Σ‖G_t‖²_{H_t⁻¹} ≤ 2 Σ_ij √V_ij": ("extends Cor. 2", run.dual, 2 * total, covers.holds),
        "regret ≤ Δ²/2η Tr(H_T) + η Σ_ij √V_ij": ("extends Thm 1", regret, evolution + eta * total, both),
    }
    if run.is_theory:
        bound = run.diameter / math.sqrt(2) * (run.trace + total)
        claims["regret ≤ D/√2 (Tr(H_T) + Σ_ij √V_ij)"] = ("extends Thm 1", regret, bound, both)
    for name, (place, left, right, is_guaranteed) in claims.items():
        yield Inequality(name, place, left, right, is_guaranteed=is_guaranteed)
    yield from (rises, covers)


@dataclass(frozen=True)
class TradeOff:
    r"""The two opposing terms of the bound for each block, as a function of its scale (§4.2).

    .. math:: R_b(s) = \frac{\Delta^2}{2\eta}\, s + \frac{\eta a}{2 \lambda}\, \frac{V_b}{s}, \qquad \lambda = 1

    AdaGrad's metric grows, and a = 2 (Cor. 2). A metric that stays the same has a = 1, and then the scales `optimal`
    are those of the best proximal function in hindsight.
    """

    squares: Tensor  # V_b
    used: Tensor  # s_{T,b}
    distance: float
    eta: float
    a: float = 2.0

    @property
    def optimal(self) -> Tensor:
        """The scale that minimises each block's bound: η √(a/λ) √V_b / Δ."""
        distance = torch.tensor(self.distance, dtype=self.squares.dtype)
        return self.eta * math.sqrt(self.a) * self.squares.sqrt() / distance

    def growing(self, scale: Tensor) -> Tensor:
        """The term that grows with the scale: the cost of the geometry's evolution."""
        return self.distance**2 / (2 * self.eta) * scale

    def falling(self, scale: Tensor) -> Tensor:
        """The term that falls with the scale: the gradients' cost."""
        return torch.where(self.squares > 0, self.eta * self.a / 2 * self.squares / scale, 0)

    def bound(self, scale: Tensor) -> Tensor:
        """R_b(s) for each block."""
        return self.growing(scale) + self.falling(scale)

    def to_dict(self) -> dict[str, list[float]]:
        """For each block, the scale that was used, the optimal scale, and the bound at both."""
        return {
            "used": self.used.tolist(),
            "optimal": self.optimal.tolist(),
            "bound": self.bound(self.used).tolist(),
            "least": self.least.tolist(),
        }

    @property
    def least(self) -> Tensor:
        """The minimum of each block's bound, Δ √(a/λ) √V_b."""
        return self.distance * math.sqrt(self.a) * self.squares.sqrt()
