r"""Online mirror descent with a proximal function that may evolve (§3), and AdaGrad as the schemes that evolve it (§4).

.. math:: X_{t+1} = \operatorname{argmin}_{X \in \mathcal X}\ \eta \langle G_t, X \rangle_F + B_{\psi_t}(X; X_t)

A scheme defines ψ_t given the gradients :math:`G_1, \dots, G_t`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from matrix_adagrad.domains import Domain
from matrix_adagrad.geometry import Diagonal, Geometry, Partition, Shape, Whole, as_geometry, wide_dtype
from matrix_adagrad.online.fingerprints import full_repr
from matrix_adagrad.online.proximal import EVERYWHERE, ColumnWise, Measured, Proximal, RowWise, Scaled

__all__ = ["AdaGrad", "Fixed", "FullAdaGrad", "MirrorDescent", "Scheme"]


class Scheme(ABC):
    """How the proximal function follows the gradients. To write your own scheme, you only need `observe`.

    Tensors and numbers that it keeps as attributes are its state. They are saved and restored with a run.
    """

    @abstractmethod
    def observe(self, grad: Tensor) -> Proximal:
        """Take G_t and return ψ_t."""

    @property
    def geometry(self) -> Partition | None:
        """The partition whose norm measures distances in the scheme's bound. ``None`` leaves out what needs it."""
        return None

    delta = math.nan  # the stabilizer; without it, the bounds that use it are left out

    def roots(self) -> Tensor | None:
        """The metric's values, without δ: √V_b of each block b, or the eigenvalues of a full metric's root."""
        return None

    def diameter(self, domain: Domain, shape: Shape) -> float:
        """The domain's diameter in the norm of `geometry`; NaN if the scheme has none."""
        return math.nan if self.geometry is None else domain.diameter(self.geometry, shape)

    def state_dict(self) -> dict[str, Any]:
        """What the scheme has kept from the gradients."""
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        vars(self).update(state)

    def __repr__(self) -> str:
        return full_repr(self)


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
    r"""Algorithms 1 and 2, in any geometry: :math:`s_{t,b} = \sqrt{\sum_{k \le t} \|G_{k,b}\|_2^2} + \delta`.

    A geometry that is not a partition uses the metric it builds from its statistics. Its only bound is Corollary 1.
    """

    def __init__(self, geometry: Geometry | str, delta: float = 1e-8) -> None:
        self._geometry, self.delta = as_geometry(geometry), _checked_delta(delta)
        self.squares: tuple[Tensor, ...] | None = None  # V_t, one or more statistics

    @property
    def geometry(self) -> Partition | None:
        return self._geometry if isinstance(self._geometry, Partition) else None

    def observe(self, grad: Tensor) -> Proximal:
        measured, geometry = self._geometry.on(grad.shape).measure(grad), self._geometry.on(grad.shape)
        if self.squares is not None:
            measured = tuple(v + own for v, own in zip(self.squares, measured, strict=True))
        self.squares = measured
        if isinstance(geometry, Partition):
            return Scaled(measured[0].sqrt() + self.delta, geometry)
        if isinstance(geometry, Diagonal):
            return Scaled((geometry.scale(*measured) + self.delta).expand(grad.shape))
        return Measured(geometry, measured, self.delta)

    def roots(self) -> Tensor | None:
        return None if self.squares is None or self.geometry is None else self.squares[0].sqrt()

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
        # A zero eigenvalue comes out as anything below this. So the metric never decreases, as the bounds require.
        rounding = len(values) * torch.finfo(values.dtype).eps * values[-1]
        self.values = torch.maximum(values, rounding).sqrt()
        values = self.values + self.delta
        metric = (vectors * values) @ vectors.T
        return (RowWise if self.side == "row" else ColumnWise)(metric, eigen=(values, vectors))

    @property
    def geometry(self) -> Partition:
        return Whole()  # the bound holds with the spectral norm, and so with the Frobenius norm, which is no less

    def roots(self) -> Tensor | None:
        return self.values

    def state_dict(self) -> dict[str, Any]:
        return {"products": self.products, "values": self.values}

    def __repr__(self) -> str:
        return f"FullAdaGrad({self.side!r}, delta={self.delta})"


class MirrorDescent:
    r"""Online mirror descent: ``x`` is the decision X_t, and `update` takes G_t and moves to X_{t+1}.

    Args:
        x1: the first decision, in the domain.
        proximal: a fixed `Proximal`, a geometry (AdaGrad with one scale per block), or a `Scheme`.
        domain: the set of decisions.
        eta: the step size η, or ``"theory"`` for D/√2, where D is the diameter of the domain in the geometry's norm:
            the step size of Theorems 1 and 2.
        delta: the stabilizer δ, if ``proximal`` is a geometry. Defaults to 1e-8.

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
            raise ValueError(f"x1 lies outside {domain!r}, at a distance of {domain.distance(x1):.4g}: project it")
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
        if isinstance(self.scheme, AdaGrad) and self.scheme.geometry is None:
            raise ValueError(
                f"eta='theory' is the step size of Theorems 1 and 2, which need a partition, and {self.scheme!r} has "
                "none: give eta a number"
            )
        if not 0 < diameter < math.inf:
            raise ValueError(
                f"eta='theory' needs a bounded domain with more than one point, and an AdaGrad scheme: the diameter of "
                f"{self.domain!r} is {diameter} for {type(self.scheme).__name__}; give eta a number"
            )
        return diameter / math.sqrt(2)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue from here: the decision, the round, and the scheme's state."""
        return {"x": self.x, "rounds": self.rounds, "scheme": self.scheme.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
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
