r"""Online mirror descent with a proximal function that may evolve (§3), and AdaGrad as the schemes that evolve it (§4).

.. math:: X_{t+1} = \operatorname{argmin}_{X \in \mathcal X}\ \eta \langle G_t, X \rangle_F + B_{\psi_t}(X; X_t)

A scheme says what ψ_t is after the gradients :math:`G_1, \dots, G_t`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from matrix_adagrad.domains import Domain
from matrix_adagrad.geometry import Geometry, Shape, Whole, as_geometry, wide_dtype
from matrix_adagrad.online.identity import describe
from matrix_adagrad.online.proximal import EVERYWHERE, ColumnWise, Proximal, RowWise, Scaled

__all__ = ["AdaGrad", "Fixed", "FullAdaGrad", "MirrorDescent", "Scheme"]


class Scheme(ABC):
    """How the proximal function follows the gradients. A scheme of your own needs `observe` alone.

    Tensors and numbers that it keeps as attributes are its state: they are saved with a run and come back with it.
    """

    @abstractmethod
    def observe(self, grad: Tensor) -> Proximal:
        """Take G_t and return ψ_t."""

    @property
    def geometry(self) -> Geometry | None:
        """The geometry in whose norm distances enter the scheme's bound; ``None`` leaves out what needs it."""
        return None

    delta = math.nan  # the stabilizer, without which the bounds that have it are left out

    def roots(self) -> Tensor | None:
        """What the metric is made of, besides δ: √V_b of each block b, or the eigenvalues of a full metric's root."""
        return None

    def diameter(self, domain: Domain, shape: Shape) -> float:
        """The domain's diameter in the norm of `geometry`; NaN if the scheme has none."""
        return math.nan if self.geometry is None else domain.diameter(self.geometry, shape)

    def state_dict(self) -> dict[str, Any]:
        """What the scheme has kept of the gradients."""
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state that was saved."""
        vars(self).update(state)

    def __repr__(self) -> str:
        return describe(self)


class Fixed(Scheme):
    """The same proximal function in every round."""

    def __init__(self, proximal: Proximal) -> None:
        self._proximal = proximal

    def observe(self, grad: Tensor) -> Proximal:  # noqa: ARG002
        return self._proximal

    def state_dict(self) -> dict[str, Any]:
        return {}

    def __repr__(self) -> str:
        return f"Fixed({self._proximal!r})"


class AdaGrad(Scheme):
    r"""Algorithms 1 and 2, in any geometry: :math:`s_{t,b} = \sqrt{\sum_{k \le t} \|G_{k,b}\|_2^2} + \delta`."""

    def __init__(self, geometry: Geometry | str, delta: float = 1e-8) -> None:
        self._geometry, self.delta = as_geometry(geometry), _checked_delta(delta)
        self.squares: Tensor | None = None  # V_t

    @property
    def geometry(self) -> Geometry:
        """Which entries share one scale."""
        return self._geometry

    def observe(self, grad: Tensor) -> Proximal:
        square = self._geometry.statistic(grad)
        self.squares = square if self.squares is None else self.squares + square
        return Scaled(self.squares.sqrt() + self.delta, self._geometry)

    def roots(self) -> Tensor | None:
        return None if self.squares is None else self.squares.sqrt()

    def state_dict(self) -> dict[str, Any]:
        return {"squares": self.squares}

    def __repr__(self) -> str:
        return f"AdaGrad({str(self._geometry)!r}, delta={self.delta})"


class FullAdaGrad(Scheme):
    r"""A full metric for rows, :math:`H_t = \delta I + (\sum_{k \le t} G_k G_k^\top)^{1/2}`, or for columns, with GᵀG.

    Each round takes an eigendecomposition of an m×m (or n×n) matrix.
    """

    def __init__(self, side: str = "row", delta: float = 1e-8) -> None:
        if side not in ("row", "column"):
            raise ValueError(f"side must be 'row' or 'column', got {side!r}")
        self.side, self.delta = side, _checked_delta(delta)
        self.products: Tensor | None = None
        self.values: Tensor | None = None  # the eigenvalues of their sum's root

    def observe(self, grad: Tensor) -> Proximal:
        product = grad @ grad.T if self.side == "row" else grad.T @ grad
        self.products = product if self.products is None else self.products + product
        values, vectors = torch.linalg.eigh(self.products)
        # An eigenvalue 0 comes out as anything below this. So the metric never falls, as the bounds need it.
        rounding = len(values) * torch.finfo(values.dtype).eps * values[-1]
        self.values = torch.maximum(values, rounding).sqrt()
        values = self.values + self.delta
        metric = (vectors * values) @ vectors.T
        return (RowWise if self.side == "row" else ColumnWise)(metric, eigen=(values, vectors))

    @property
    def geometry(self) -> Geometry:
        return Whole()  # the bound holds with the spectral norm, and so with the Frobenius norm, which is no less

    def roots(self) -> Tensor | None:
        return self.values

    def state_dict(self) -> dict[str, Any]:
        return {"products": self.products, "values": self.values}

    def __repr__(self) -> str:
        return f"FullAdaGrad({self.side!r}, delta={self.delta})"


class MirrorDescent:
    r"""Online mirror descent: ``x`` is the decision X_t, and `update` takes G_t and moves on.

    Args:
        x1: the first decision, in the domain.
        proximal: a `Proximal` that stays, a geometry (AdaGrad with one scale a block), or a `Scheme`.
        domain: the set of decisions.
        eta: the step size η, or ``"theory"`` for D/√2, where D is the diameter of the domain in the geometry's norm:
            the step size of Theorems 1 and 2.
        delta: the stabilizer δ, if ``proximal`` is a geometry; by default 1e-8.

    Example:
        >>> import torch
        >>> from matrix_adagrad.domains import FrobeniusBall
        >>> learner = MirrorDescent(torch.zeros(3, 2), "row", FrobeniusBall(1.0), eta="theory")
        >>> learner.eta  # 2/√2
        1.414213562373095
        >>> learner.update(torch.tensor([[3.0, 4.0], [0.0, 0.0], [0.0, 0.0]]))
        tensor([[-0.6000, -0.8000],
                [ 0.0000,  0.0000],
                [ 0.0000,  0.0000]])
    """

    def __init__(
        self,
        x1: Tensor,
        proximal: Proximal | Scheme | Geometry | str,
        domain: Domain = EVERYWHERE,
        eta: float | str = "theory",
        *,
        delta: float | None = None,
    ) -> None:
        if not x1.is_floating_point():
            raise TypeError(f"x1 must have a floating-point dtype, got {x1.dtype}")
        domain.check_fits("x1", x1)
        if not domain.contains(x1):
            raise ValueError(f"x1 lies outside of {domain!r}, at a distance of {domain.distance(x1):.4g}: project it")
        if isinstance(proximal, Proximal):
            proximal = Fixed(proximal)
        if isinstance(proximal, Scheme) and delta is not None:
            raise ValueError(f"delta={delta} is for a geometry: give it to {type(proximal).__name__}, if it has one")
        self.scheme = proximal if isinstance(proximal, Scheme) else AdaGrad(proximal, 1e-8 if delta is None else delta)
        self.x, self.domain, self.rounds = x1.detach().to(wide_dtype(x1.dtype), copy=True), domain, 0
        self.proximal: Proximal | None = None  # ψ_t, of the last round
        self.eta = self._theory() if eta == "theory" else _checked_eta(eta)

    def update(self, grad: Tensor) -> Tensor:
        """Take G_t, a subgradient of the round's loss at ``x``, and return the next decision."""
        if not isinstance(grad, Tensor) or grad.shape != self.x.shape:
            given = f"shape {tuple(grad.shape)}" if isinstance(grad, Tensor) else f"the type {type(grad).__name__}"
            raise ValueError(f"grad has {given}, and the decision is a tensor of shape {tuple(self.x.shape)}")
        self.proximal = self.scheme.observe(grad)
        if not isinstance(self.proximal, Proximal):
            raise TypeError(f"{type(self.scheme).__name__}.observe must return a Proximal, got {self.proximal!r}")
        self.x = self.proximal.step(self.x, grad, self.eta, self.domain)
        self.rounds += 1
        return self.x

    def _theory(self) -> float:
        diameter = self.scheme.diameter(self.domain, self.x.shape)
        if not 0 < diameter < math.inf:
            raise ValueError(
                f"eta='theory' needs a bounded domain with more than one point, and an AdaGrad scheme: the diameter of "
                f"{self.domain!r} is {diameter} for {type(self.scheme).__name__}; give eta a number"
            )
        return diameter / math.sqrt(2)

    def state_dict(self) -> dict[str, Any]:
        """What is needed to go on from here: the decision, the round, and what the scheme has seen."""
        return {"x": self.x, "rounds": self.rounds, "scheme": self.scheme.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.x, self.rounds = state["x"].clone(), state["rounds"]
        self.scheme.load_state_dict(state["scheme"])

    def __repr__(self) -> str:
        return f"MirrorDescent({self.scheme!r}, {self.domain!r}, eta={self.eta!r}, shape={tuple(self.x.shape)})"


def _checked_eta(eta: Any) -> float:
    if isinstance(eta, bool) or not isinstance(eta, int | float):
        raise TypeError(f"eta must be a number or 'theory', got {eta!r}")
    if not (math.isfinite(eta) and eta > 0):
        raise ValueError(f"eta must be positive and finite, got {eta!r}")
    return float(eta)


def _checked_delta(delta: float) -> float:
    if not (math.isfinite(delta) and delta > 0):
        raise ValueError(f"delta must be positive and finite, got {delta!r}: the metric has to be positive definite")
    return delta
