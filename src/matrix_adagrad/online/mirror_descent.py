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
from matrix_adagrad.geometry import Geometry, Shape, as_geometry, wide_dtype
from matrix_adagrad.online.fingerprints import full_repr
from matrix_adagrad.online.proximal import EVERYWHERE, ColumnWise, GeometryMetric, Proximal, RowWise, Scaled

__all__ = ["AdaGrad", "Fixed", "MirrorDescent", "Scheme"]


class Scheme(ABC):
    """How the proximal function follows the gradients. To write your own scheme, you only need `observe`.

    Tensors and numbers that it keeps as attributes are its state. They are saved and restored with a run.
    """

    @abstractmethod
    def observe(self, grad: Tensor) -> Proximal:
        """Take G_t and return ψ_t."""

    @property
    def geometry(self) -> Geometry | None:
        """The geometry whose norm measures distances in the scheme's bound. ``None`` leaves out what needs it."""
        return None

    delta = math.nan  # the stabilizer; without it, the bounds that use it are left out
    fall = short = math.nan  # the two conditions on a diagonal metric that is not one of a partition: see `AdaGrad`

    def roots(self) -> Tensor | None:
        """√V_b of each block b, or the eigenvalues of a full metric's root."""
        return None

    def values(self) -> Tensor | None:
        """The values of the last metric H_T. By default, `roots` plus δ."""
        return None if (roots := self.roots()) is None else roots + self.delta

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
    r"""Algorithms 1 and 2, in any geometry: :math:`H_t` is the metric of the squares so far, plus :math:`\delta`.

    - A partition has the scales :math:`s_{t,b} = \sqrt{\sum_{k \le t} \|G_{k,b}\|_2^2} + \delta`.
    - Any other diagonal metric has a bound with the largest distance of an entry, if no scale ever falls (``fall``, the
      largest :math:`s_{t-1,ij} / s_{t,ij}`, is at most 1) and none is less than the root of its entry's own squares
      (``short``, the largest :math:`\sqrt{V_{t,ij}} / s_{t,ij}`, is at most 1).
    - `Full` has a bound with the spectral norm. It takes an eigendecomposition in every round.
    - Any other metric has the bound of Corollary 1 alone, and cannot be projected.
    """

    def __init__(self, geometry: Geometry | str, delta: float = 1e-8) -> None:
        self._geometry, self.delta = as_geometry(geometry), _checked_delta(delta)
        self.squares: tuple[Tensor, ...] | None = None  # V_t, one or more statistics
        self.entries: Tensor | None = None  # V_{t,ij} and s_t, if the metric is diagonal, but its scales are not roots
        self.scale: Tensor | None = None
        if self._geometry.is_diagonal and not self._geometry.has_root_scale:
            self.fall = self.short = 0.0

    @property
    def geometry(self) -> Geometry | None:
        return self._geometry.regret_geometry

    def observe(self, grad: Tensor) -> Proximal:
        self._geometry = geometry = self._geometry.on(grad.shape)
        measured = geometry.measure(grad)
        if self.squares is not None:
            measured = tuple(map(torch.add, self.squares, measured))
        self.squares = measured
        if geometry.has_root_scale:
            return Scaled(geometry.scale(*measured) + self.delta, geometry)
        if geometry.is_diagonal:
            return self._watched(geometry.scale(*measured) + self.delta, grad)
        if (one_sided := geometry.one_sided(grad.shape, *measured)) is not None:
            dim, roots, vectors = one_sided
            values = roots + self.delta
            return (RowWise, ColumnWise)[dim]((vectors * values) @ vectors.T, eigen=(values, vectors))
        return GeometryMetric(geometry, measured, self.delta)

    def _watched(self, scale: Tensor, grad: Tensor) -> Proximal:
        """One scale per block of the bound's geometry, once its conditions are measured."""
        assert self.geometry is not None
        (own,) = self.geometry.measure(grad)
        scale = scale.expand_as(own)
        self.entries = own if self.entries is None else self.entries + own
        if self.scale is not None:
            self.fall = max(self.fall, float((self.scale / scale).max()))
        self.short = max(self.short, float((self.entries.sqrt() / scale).max()))
        self.scale = scale
        return Scaled(scale, self.geometry)

    def roots(self) -> Tensor | None:
        if self.entries is not None:
            return self.entries.sqrt()
        return None if self.squares is None else self._geometry.eigenvalues(*self.squares)

    def values(self) -> Tensor | None:
        return super().values() if self.scale is None else self.scale

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("squares", "entries", "scale", "fall", "short")}

    def __repr__(self) -> str:
        return f"AdaGrad({str(self._geometry)!r}, delta={self.delta})"


class MirrorDescent:
    r"""Online mirror descent: ``x`` is the decision X_t, and `update` takes G_t and moves to X_{t+1}.

    Args:
        x1: the first decision, in the domain.
        proximal: a fixed `Proximal`, a geometry (AdaGrad with one scale per block), or a `Scheme`.
        domain: the set of decisions.
        eta: the step size η, or ``"theory"`` for D/√2, where D is the diameter of the domain in the norm of the
            scheme's bound: the step size of Theorems 1 and 2.
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
        if not isinstance(proximal, Scheme):
            proximal = AdaGrad(as_geometry(proximal).on(x1.shape), 1e-8 if delta is None else delta)
        self.scheme = proximal
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
                f"eta='theory' is the step size of a bound with the domain's diameter, and {self.scheme!r} has none: "
                "give eta a number"
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
