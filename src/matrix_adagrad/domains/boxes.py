"""An interval for each entry."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from matrix_adagrad.domains.base import BlockDomain, set_number
from matrix_adagrad.geometry import Entry, Partition

__all__ = ["Box", "NonNegative", "WholeSpace"]


@dataclass(frozen=True)
class Box(BlockDomain):
    """``low`` ≤ x ≤ ``high`` for each entry; either may be infinite.

    Each entry is constrained separately, so the projection is the same in every metric.

    Example:
        >>> import torch
        >>> Box(-1.0, 2.0).project(torch.tensor([-3.0, 0.5, 3.0]))
        tensor([-1.0000,  0.5000,  2.0000])
    """

    low: float
    high: float

    depends_on_metric = False

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            set_number(self, name, positive=False)
        if not (self.low <= self.high and self.low < math.inf and self.high > -math.inf):
            raise ValueError(f"{type(self).__name__}: low must be at most high, got {self.low} and {self.high}")

    @property
    def blocks(self) -> Partition:
        return Entry()

    def project(self, x: Tensor, scale: Tensor | float = 1.0) -> Tensor:  # noqa: ARG002
        return x if self.low == -math.inf and self.high == math.inf else x.clamp(self.low, self.high)

    def project_(self, x: Tensor, scale: Tensor | float = 1.0) -> Tensor:  # noqa: ARG002
        return x if self.low == -math.inf and self.high == math.inf else x.clamp_(self.low, self.high)

    def excess(self, x: Tensor) -> Tensor:
        if self.low == -math.inf and self.high == math.inf:
            return torch.zeros(())
        size = max((abs(end) for end in (self.low, self.high) if math.isfinite(end)), default=0.0) or 1.0
        return torch.maximum(self.low - x, x - self.high).amax() / size

    def argmin(self, g: Tensor) -> Tensor:
        ends = [end for end, used in ((self.low, bool((g > 0).any())), (self.high, bool((g < 0).any()))) if used]
        if not all(map(math.isfinite, ends)):
            raise ValueError(f"{self!r} is unbounded where the linear function falls, so there is no minimum")
        inside = min(max(0.0, self.low), self.high)  # where g is 0 any point will do
        lowest = torch.full_like(g, inside)
        return torch.where(g > 0, self.low, torch.where(g < 0, self.high, lowest)).to(g.dtype)

    def width(self, entries: int, members: int) -> float:  # noqa: ARG002
        return self.high - self.low

    def check_fits(self, name: str, x: Tensor) -> None:
        if x.is_complex():
            raise TypeError(f"{name} is complex, and {self!r} is a set of real numbers")


@dataclass(frozen=True)
class NonNegative(Box):
    """x ≥ 0 for each entry.

    Example:
        >>> import torch
        >>> NonNegative().project(torch.tensor([-3.0, 0.5]))
        tensor([0.0000, 0.5000])
    """

    low: float = field(default=0.0, init=False, repr=False)
    high: float = field(default=math.inf, init=False, repr=False)


@dataclass(frozen=True)
class WholeSpace(Box):
    """All tensors: no constraint."""

    low: float = field(default=-math.inf, init=False, repr=False)
    high: float = field(default=math.inf, init=False, repr=False)

    def check_fits(self, name: str, x: Tensor) -> None:
        pass

    def is_invariant(self, dims: object, shape: object) -> bool:  # noqa: ARG002
        return True
