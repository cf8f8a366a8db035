"""Games with linear losses: the best fixed decision follows from the sum of the gradients alone."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from matrix_adagrad.domains import Domain, FrobeniusBall
from matrix_adagrad.geometry import Whole, as_partition
from matrix_adagrad.online.data_streams import generator
from matrix_adagrad.online.games import Game
from matrix_adagrad.online.solver import Solution, inner

__all__ = ["Adversarial", "GivenGradients", "Linear", "Motivating"]


class _LinearGame(Game):
    """Losses ⟨G_t, X⟩ + a constant: the best decision minimizes the sum of the gradients."""

    constant = 0.0

    def best(self, rounds: int, gradients: Tensor) -> Solution:
        x = self.domain.argmin(gradients)
        return Solution(x, rounds * self.constant + inner(gradients, x), 0.0)


@dataclass(frozen=True)
class Motivating(_LinearGame):
    r"""The paper's motivating examples (§4.3, App. F): hinge losses with one active row, or column, per round.

    .. math:: f_t(X) = \max\{0,\ 1 - y_t \langle X, D_t \rangle_F\}, \qquad y_t = (-1)^t

    The radius of the Frobenius ball is less than 1/√n (1/√m for columns). So every margin is violated, and the losses
    are linear on the ball.

    Example:
        >>> import torch
        >>> Motivating(2, 3).loss(0, torch.zeros(2, 3))
        (1.0, tensor([[1., 1., 1.],
                [0., 0., 0.]]))
    """

    m: int
    n: int
    active: str = "row"
    radius: float = 0.0  # by default, half the largest allowed
    domain: Domain = field(init=False, repr=False)

    constant = 1.0

    def __post_init__(self) -> None:
        if self.active not in ("row", "column"):
            raise ValueError(f"active must be 'row' or 'column', got {self.active!r}")
        limit = 1 / math.sqrt(as_partition(self.active).members(self.shape))
        if self.radius == 0:
            object.__setattr__(self, "radius", limit / 2)
        if not 0 < self.radius < limit:
            raise ValueError(f"radius must be positive and less than {limit:.6g}, got {self.radius}")
        object.__setattr__(self, "domain", FrobeniusBall(self.radius))

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.m, self.n)

    @property
    def cycle(self) -> int:
        """The number of rounds in which each row, or column, is active once."""
        return self.m if self.active == "row" else self.n

    def loss(self, t: int, x: Tensor) -> tuple[float, Tensor]:
        label = (-1) ** (t + 1)  # round t here is the paper's t + 1
        dim, i = (0, t % self.m) if self.active == "row" else (1, t % self.n)
        grad = torch.zeros_like(x)
        grad.select(dim, i).fill_(-label)
        return 1 - label * float(x.select(dim, i).sum()), grad


@dataclass(frozen=True)
class Linear(_LinearGame):
    """Linear losses ⟨G_t, X⟩ with Gaussian gradients: row i has size 1/(i + 1), and each entry has a fixed mean.

    Args:
        m: the number of rows.
        n: the number of columns.
        domain: the set of decisions. Defaults to the Frobenius ball of radius 1.
        drift: the largest ratio of an entry's mean to its standard deviation.
        seed: the random seed.
    """

    m: int
    n: int
    domain: Domain = field(default_factory=lambda: FrobeniusBall(1.0))
    drift: float = 0.1
    seed: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.m, self.n)

    def loss(self, t: int, x: Tensor) -> tuple[float, Tensor]:
        grad = _gradients(self.m, self.n, self.drift, self.seed, t // 64)[t % 64].to(x)
        return inner(grad, x), grad


@functools.lru_cache(maxsize=2)
def _gradients(m: int, n: int, drift: float, seed: int, chunk: int) -> Tensor:
    mean = drift * torch.rand(m, n, dtype=torch.float64, generator=generator(seed, 0)).mul_(2).sub_(1)
    noise = torch.randn(64, m, n, dtype=torch.float64, generator=generator(seed, chunk + 1))
    return (noise + mean) / torch.arange(1, m + 1, dtype=torch.float64)[:, None]


@dataclass(frozen=True)
class Adversarial(_LinearGame):
    """An adversary that cycles through the rows and charges for the row's norm: the gradient is the row's direction.

    If a row is 0, all of its entries have the same gradient. The best decision follows from the sum of gradients.
    """

    m: int
    n: int
    domain: Domain = field(default_factory=lambda: FrobeniusBall(1.0))

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.m, self.n)

    @functools.cached_property
    def _visible(self) -> float:
        diameter = self.domain.diameter(Whole(), self.shape)
        return 1e-12 * diameter if math.isfinite(diameter) else 0.0

    def loss(self, t: int, x: Tensor) -> tuple[float, Tensor]:
        row, grad = x[t % self.m], torch.zeros_like(x)
        length = float(row.norm())
        grad[t % self.m] = row / length if length > self._visible else 1 / math.sqrt(self.n)
        return inner(grad, x), grad


@dataclass(frozen=True, eq=False, repr=False)
class GivenGradients(_LinearGame):
    """Linear losses ⟨G_t, X⟩ with given gradients, again and again.

    Args:
        gradients: G_1, G_2, … along the first dimension.
        domain: the set of decisions.

    Example:
        >>> import torch
        >>> from matrix_adagrad.domains import Box
        >>> game = GivenGradients(torch.ones(1, 1, 1), Box(-1.0, 1.0))  # f_t(x) = x
        >>> game.best(3, torch.tensor([[3.0]])).value
        -3.0
    """

    gradients: Tensor
    domain: Domain

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.gradients.shape[1:])

    def loss(self, t: int, x: Tensor) -> tuple[float, Tensor]:
        grad = self.gradients[t % len(self.gradients)].to(x)
        return inner(grad, x), grad
