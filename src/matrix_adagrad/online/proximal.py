r"""Matrix proximal functions (§2): the quadratic forms that measure how far a step may go.

.. math:: \psi(X) = \tfrac12 \|X\|_H^2 = \tfrac12 \langle X, H X \rangle_F, \qquad H \succ 0.

H multiplies from the left (rows) or the right (columns), acts on the stacked columns, or holds one number per block of
a geometry. ψ is 1-strongly convex in its own norm, whose dual is :math:`\|G\|_{H^{-1}}` (App. D).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from matrix_adagrad.domains import Domain, WholeSpace
from matrix_adagrad.geometry import Geometry, Partition, as_partition
from matrix_adagrad.online.fingerprints import full_repr
from matrix_adagrad.online.solver import inner, minimise

__all__ = ["ColumnWise", "GeometryMetric", "Proximal", "RowWise", "Scaled", "Vectorised"]


EVERYWHERE = WholeSpace()


class Proximal(ABC):
    """ψ(X) = ½⟨X, HX⟩. A subclass multiplies by H and by its inverse, and projects in its norm."""

    strong_convexity = 1.0  # in its own norm

    @abstractmethod
    def gradient(self, x: Tensor) -> Tensor:
        """∇ψ(X) = HX."""

    @abstractmethod
    def inverse(self, g: Tensor) -> Tensor:
        """H⁻¹G: the point whose gradient is G."""

    @abstractmethod
    def trace(self) -> float:
        """Tr(H), where a block of a geometry counts once."""

    @abstractmethod
    def least_curvature(self) -> float:
        """The smallest eigenvalue of H: the strong convexity of ψ in the Frobenius norm."""

    @abstractmethod
    def project(self, x: Tensor, domain: Domain) -> Tensor:
        """The nearest point of the domain in ψ's norm."""

    def __repr__(self) -> str:
        return full_repr(self)

    def value(self, x: Tensor) -> float:
        """ψ(X)."""
        return 0.5 * inner(x, self.gradient(x))

    def norm(self, x: Tensor) -> float:
        """‖X‖_H = √⟨X, HX⟩."""
        return math.sqrt(max(0.0, inner(x, self.gradient(x))))

    def dual_norm(self, g: Tensor) -> float:
        """‖G‖_{H⁻¹} = √⟨G, H⁻¹G⟩."""
        return math.sqrt(max(0.0, inner(g, self.inverse(g))))

    def bregman(self, x: Tensor, y: Tensor) -> float:
        """The Bregman divergence by its definition: ψ(X) - ψ(Y) - ⟨∇ψ(Y), X - Y⟩."""
        return self.value(x) - self.value(y) - inner(self.gradient(y), x - y)

    def divergence(self, x: Tensor, y: Tensor) -> float:
        """The same in its compact form, ½‖X - Y‖²_H (App. C), which loses no digits when X is close to Y."""
        return self.value(x - y)

    def step(self, x: Tensor, g: Tensor, eta: float, domain: Domain = EVERYWHERE) -> Tensor:
        """The mirror descent step: argmin over the domain of η⟨G, ·⟩ + B_ψ(·; X)."""
        return self.project(x - eta * self.inverse(g), domain)


class Scaled(Proximal):
    r"""One scale per block of a geometry: :math:`\psi(X) = \tfrac12 \sum_b s_b \|X_b\|_2^2`.

    Args:
        scale: positive numbers in the shape of the geometry's statistic, or in one that broadcasts to it.
        geometry: the geometry. By default, each entry is a block, and so the scale broadcasts against X.

    Example:
        >>> import torch
        >>> x = torch.tensor([[3.0, 4.0], [1.0, 0.0]])
        >>> Scaled(torch.tensor([[1.0], [2.0]]), "row").value(x)
        13.5
    """

    def __init__(self, scale: Tensor, geometry: Geometry | str = "entry") -> None:
        _check_positive("scale", scale.min() if scale.numel() else scale.new_ones(()))
        self.scale: Tensor = scale
        self.geometry: Partition = as_partition(geometry)

    def gradient(self, x: Tensor) -> Tensor:
        return self._spread(x) * x

    def inverse(self, g: Tensor) -> Tensor:
        return g / self._spread(g)

    def trace(self) -> float:
        return float(self.scale.sum())

    def least_curvature(self) -> float:
        return float(self.scale.min())

    def project(self, x: Tensor, domain: Domain) -> Tensor:
        return domain.project(x, self._spread(x))

    def _spread(self, x: Tensor) -> Tensor:
        needed = self.geometry.statistic_shape(x.shape)
        try:
            self.scale.expand(needed)
        except RuntimeError:
            shapes = f"{tuple(self.scale.shape)}, and geometry {self.geometry} of a tensor of shape {tuple(x.shape)}"
            raise ValueError(f"scale has shape {shapes} needs {needed}") from None
        return self.geometry.spread(self.scale, x.shape)


class GeometryMetric(Proximal):
    """The metric that a geometry, diagonal or not, builds from its statistics and a stabilizer: ψ(X) = ½⟨X, HX⟩.

    Args:
        geometry: multiplies by H and by its inverse.
        statistics: what the geometry has measured so far.
        delta: the stabilizer.
    """

    def __init__(self, geometry: Geometry, statistics: tuple[Tensor, ...], delta: float) -> None:
        self.geometry, self.statistics, self.delta = geometry, statistics, delta

    def gradient(self, x: Tensor) -> Tensor:
        return self.geometry.weigh(x, self.delta, *self.statistics)

    def inverse(self, g: Tensor) -> Tensor:
        return self.geometry.precondition(g, 1.0, self.delta, *self.statistics)

    def trace(self) -> float:
        raise TypeError(f"the trace of a metric of {self.geometry!r} is not known")

    def least_curvature(self) -> float:
        return self.delta

    def project(self, x: Tensor, domain: Domain) -> Tensor:
        if isinstance(domain, WholeSpace):
            return x
        raise TypeError(
            f"{self.geometry!r} has no diagonal metric to project onto {domain!r} in: play without a domain"
        )


class _Metric(Proximal):
    """A metric matrix, or its diagonal, that multiplies X unfolded into a matrix."""

    mixes: tuple[int, ...]  # the dimensions of X whose entries the metric couples

    def __init__(self, metric: Tensor, *, eigen: tuple[Tensor, Tensor] | None = None) -> None:
        if metric.dim() not in (1, 2) or (metric.dim() == 2 and metric.shape[0] != metric.shape[1]):
            raise ValueError(f"metric must be a square matrix or the vector of its diagonal, got {tuple(metric.shape)}")
        if metric.dim() == 1:
            eigen = metric, torch.empty(0)
        elif eigen is None:
            excess = float((metric - metric.T).abs().max())
            if excess > 16 * len(metric) * torch.finfo(metric.dtype).eps * float(metric.abs().max()):
                raise ValueError(
                    f"metric must be symmetric, but entries differ from their mirror images by {excess:.3g}"
                )
            metric = (metric + metric.T) / 2
            eigen = tuple(torch.linalg.eigh(metric))
        self.metric, (self.values, self.vectors) = metric, eigen
        _check_positive("metric", self.values.min())

    @abstractmethod
    def _unfold(self, x: Tensor) -> Tensor:
        """X as the matrix that the metric multiplies from the left."""

    @abstractmethod
    def _fold(self, y: Tensor, shape: torch.Size) -> Tensor:
        """The inverse of `_unfold`. A column of numbers becomes scales that broadcast against X."""

    def _checked(self, x: Tensor) -> Tensor:
        """`_unfold`, if the metric fits tensors of this shape."""
        unfolded = self._unfold(x) if x.dim() > max(self.mixes) else x
        if x.dim() <= max(self.mixes) or len(unfolded) != len(self.values):
            size = f"{len(self.values)}×{len(self.values)}"
            raise ValueError(f"{type(self).__name__} has a metric of {size}, and X has shape {tuple(x.shape)}")
        return unfolded

    def gradient(self, x: Tensor) -> Tensor:
        unfolded = self._checked(x)
        product = self.values[:, None] * unfolded if self.metric.dim() == 1 else self.metric @ unfolded
        return self._fold(product, x.shape)

    def inverse(self, g: Tensor) -> Tensor:
        unfolded = self._checked(g)
        if self.metric.dim() == 1:
            return self._fold(unfolded / self.values[:, None], g.shape)
        return self._fold(self.vectors @ ((self.vectors.T @ unfolded) / self.values[:, None]), g.shape)

    def trace(self) -> float:
        return float(self.values.sum())

    def least_curvature(self) -> float:
        return float(self.values.min())

    def project(self, x: Tensor, domain: Domain) -> Tensor:
        if isinstance(domain, WholeSpace):
            return x
        scale = self._fold(self.values[:, None], x.shape)
        if self.metric.dim() == 1:
            return domain.project(x, scale)
        if domain.is_invariant(self.mixes, x.shape):  # in the eigenbasis, H is diagonal
            turned = self._fold(self.vectors.T @ self._unfold(x), x.shape)
            return self._fold(self.vectors @ self._unfold(domain.project(turned, scale)), x.shape)

        start = domain.project(x)

        def distance(y: Tensor, _: float) -> tuple[float, float, Tensor]:
            force = self.gradient(y - x)
            value = 0.5 * inner(y - x, force)
            return value, value, force

        rounding = 4 * torch.finfo(x.dtype).eps * float(self.values.max()) * inner(x, x)
        return minimise(distance, domain, start, tolerance=1e-10 * distance(start, 0.0)[0] + rounding).certified().x


class RowWise(_Metric):
    r"""ψ_C(X) = ½⟨X, CX⟩: the metric couples and scales rows.

    Args:
        metric: C, symmetric and positive definite, or the vector of its diagonal.

    Example:
        >>> import torch
        >>> x = torch.tensor([[3.0, 4.0], [1.0, 0.0]])
        >>> RowWise(torch.tensor([[2.0, 1.0], [1.0, 2.0]])).value(x)  # ½(2·25 + 2·1 + 2·3)
        29.0
    """

    mixes = (0,)

    def _unfold(self, x: Tensor) -> Tensor:
        return x.reshape(len(x), -1)

    def _fold(self, y: Tensor, shape: torch.Size) -> Tensor:
        return y.reshape(shape) if y.numel() == shape.numel() else y.reshape(-1, *(1 for _ in shape[1:]))


class ColumnWise(_Metric):
    r"""ψ_D(X) = ½⟨X, XD⟩: the metric couples and scales the columns of a matrix.

    Args:
        metric: D, symmetric and positive definite, or the vector of its diagonal.

    Example:
        >>> import torch
        >>> x = torch.tensor([[3.0, 4.0], [1.0, 0.0]])
        >>> ColumnWise(torch.tensor([1.0, 10.0])).value(x)  # ½(1·10 + 10·16)
        85.0
    """

    mixes = (1,)

    def _unfold(self, x: Tensor) -> Tensor:
        return x.T

    def _fold(self, y: Tensor, shape: torch.Size) -> Tensor:  # noqa: ARG002
        return y.T


class Vectorised(_Metric):
    r"""ψ_B(X) = ½⟨vec(X), B vec(X)⟩ with the columns of a matrix stacked.

    Args:
        metric: B, of mn × mn entries, symmetric and positive definite, or the vector of its diagonal.

    Example:
        >>> import torch
        >>> x = torch.tensor([[3.0, 4.0], [1.0, 0.0]])
        >>> Vectorised(torch.tensor([1.0, 1.0, 2.0, 1.0])).value(x)  # ½(9 + 1 + 2·16)
        21.0
    """

    mixes = (0, 1)

    def _unfold(self, x: Tensor) -> Tensor:
        return x.T.reshape(-1, 1)

    def _fold(self, y: Tensor, shape: torch.Size) -> Tensor:
        return y.reshape(shape[1], shape[0]).T


def _check_positive(name: str, least: Tensor) -> None:
    if not float(least) > 0:
        raise ValueError(f"{name} must be positive definite, but its smallest eigenvalue is {float(least):.3g}")
