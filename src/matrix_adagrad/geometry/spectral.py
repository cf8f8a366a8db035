r"""The spectral norm, in which the direction of steepest descent is the polar factor.

.. math:: \|X\| = \sigma_{\max}(X), \qquad \|G\|_* = \sum_k \sigma_k(G), \qquad
    \operatorname{argmax}_{\|X\| \le 1} \langle G, X \rangle = U V^\top \quad\text{for } G = U \Sigma V^\top.

It keeps nothing: there is no statistic and no scale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from matrix_adagrad.geometry.base import Shape, Unscaled
from matrix_adagrad.geometry.partitions import Batched, Partition, Whole
from matrix_adagrad.geometry.squares import wide_dtype

__all__ = ["Spectral"]


@dataclass(frozen=True, repr=False)
class Spectral(Unscaled):
    r"""The spectral norm. `SteepestDescent` in it orthogonalizes the momentum, as Muon does.

    The polar factor is computed by Newton–Schulz iterations. Each applies the odd polynomial
    :math:`p(x) = a x + b x^3 + c x^5` to all singular values, which drives them towards 1, up to ±0.3 with the default
    coefficients. Tensors of more than two dimensions are batches of matrices.

    Args:
        steps: the number of iterations. ``None`` takes the exact polar factor, by a singular value decomposition.
        coefficients: a, b, c.
        dtype: of the iterations. ``None`` takes float32 on a CPU, where bfloat16 matrix products may be slow or
            missing, and bfloat16 elsewhere. `torch.optim.Muon` takes bfloat16 everywhere. Double precision and complex
            numbers stay as they are.

    Example:
        >>> import torch
        >>> x = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
        >>> Spectral().norm(x), Spectral().dual_norm(x)
        (tensor(4.), tensor(7.))
        >>> Spectral(steps=None).steepest(x)
        tensor([[1., 0.],
                [0., 1.]])
    """

    steps: int | None = 5
    coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315)
    dtype: torch.dtype | None = None

    def __repr__(self) -> str:
        changed = [f"{f.name}={getattr(self, f.name)}" for f in fields(self) if getattr(self, f.name) != f.default]
        return f"Spectral({', '.join(changed)})"

    def __post_init__(self) -> None:
        if self.steps is not None and (isinstance(self.steps, bool) or not isinstance(self.steps, int)):
            raise TypeError(f"Spectral: steps must be an int or None, got {self.steps!r}")
        if self.steps is not None and not 1 <= self.steps < 100:
            raise ValueError(f"Spectral: steps must be from 1 to 99, got {self.steps}")
        given: Any = self.coefficients
        is_list = isinstance(given, tuple | list) and len(given) == 3
        if not is_list or not all(isinstance(c, Real) and math.isfinite(c) for c in given):
            raise ValueError(f"Spectral: coefficients must be three finite numbers, got {given!r}")
        object.__setattr__(self, "coefficients", tuple(given))  # a list could not be hashed
        if self.dtype not in (None, torch.float16, torch.bfloat16, torch.float32, torch.float64):
            raise ValueError(f"Spectral: dtype must be a floating-point torch.dtype or None, got {self.dtype!r}")

    def independent_blocks(self, shape: Shape) -> Partition:
        return Batched(Whole())

    @property
    def transpose(self) -> Spectral:
        return self

    def norm(self, x: Tensor) -> Tensor:
        """The largest singular value of any matrix of the batch."""
        values: Tensor = torch.linalg.svdvals(x.to(wide_dtype(x.dtype)))
        return values.amax() if values.numel() else values.sum()

    def dual_norm(self, x: Tensor) -> Tensor:
        """The nuclear norm, the sum of all singular values."""
        values: Tensor = torch.linalg.svdvals(x.to(wide_dtype(x.dtype)))
        return values.sum()

    @property
    def norm_partition(self) -> Partition:
        """The Frobenius norm is at least the spectral one."""
        return Whole()

    def steepest_rms(self, shape: Shape) -> float:
        """The root mean square of the polar factor's entries: 1/√max(m, n) at full rank."""
        return 1 / math.sqrt(max(1, *shape[-2:]))

    def steepest(self, x: Tensor, floor: float = 0.0) -> Tensor:
        """The polar factor UVᵀ of each matrix: exactly, or by Newton–Schulz iterations. It has no floor."""
        if floor:
            raise ValueError(f"{self!r} has no blocks to compare with each other: leave floor=0, got {floor}")
        if self.steps is None:
            u, values, vh = torch.linalg.svd(x.to(wide_dtype(x.dtype)), full_matrices=False)
            positive = values > values[..., :1] * (max(x.shape[-2:]) * torch.finfo(values.dtype).eps)
            polar: Tensor = (u * positive[..., None, :]) @ vh
            return polar.to(x.dtype)
        narrow = torch.float32 if x.device.type == "cpu" else torch.bfloat16
        is_real = wide_dtype(x.dtype) is torch.float32  # and not double precision
        y = x.to(self.dtype or narrow) if is_real else x
        return newton_schulz(y, self.steps, self.coefficients).to(x.dtype)


torch.serialization.add_safe_globals([Spectral])  # for wrappers that save parameter groups as they are


def newton_schulz(x: Tensor, steps: int, coefficients: tuple[float, float, float], eps: float = 1e-7) -> Tensor:
    """Drive all singular values of each matrix towards 1, in the dtype of the matrix."""
    a, b, c = coefficients
    is_tall = x.shape[-2] > x.shape[-1]
    y = x.mH if is_tall else x
    if y.dim() != 2:
        y = y.reshape(math.prod(x.shape[:-2]), min(x.shape[-2:]), max(x.shape[-2:]))
    multiply_add = torch.addmm if y.dim() == 2 else torch.baddbmm  # which is slower for one matrix
    y = y / torch.linalg.matrix_norm(y, keepdim=True).clamp(min=eps)  # no singular value exceeds the Frobenius norm
    for _ in range(steps):
        gram = y @ y.mH
        y = multiply_add(y, multiply_add(gram, gram, gram, beta=b, alpha=c), y, beta=a)
    return (y.mH if is_tall else y).reshape(x.shape)
