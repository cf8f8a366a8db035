"""Games: sequences of convex losses, each with its best fixed decision in hindsight.

A game gives the loss of round t and a subgradient at any point. Both depend only on the round's number, so a game can
be replayed, or resumed from the middle. Rounds are numbered from 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from matrix_adagrad.domains import Box, Domain
from matrix_adagrad.online.data_streams import EntryStream, ExampleStream
from matrix_adagrad.online.fingerprints import full_repr
from matrix_adagrad.online.solver import Solution, minimise

__all__ = ["Completion", "Game", "Hinge", "Logistic"]

CHUNK = 1024  # rounds of random data drawn together


class Game(ABC):
    """A sequence of convex losses on a domain."""

    domain: Domain  # the set of decisions

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of a decision."""

    @abstractmethod
    def loss(self, t: int, x: Tensor) -> tuple[float, Tensor]:
        """f_t(X) and a subgradient there."""

    @abstractmethod
    def best(self, rounds: int, gradients: Tensor) -> Solution:
        """The best fixed decision for this many rounds, given the sum of the gradients played."""

    def __repr__(self) -> str:
        return full_repr(self)


# ------------------------------------------------------------------------------------------------------- classification


@dataclass(frozen=True, eq=False)
class _Classification(Game):
    """A convex function of the margin y⟨X_i, v⟩ for each example of a stream, which repeats when it ends."""

    stream: ExampleStream
    domain: Domain

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.stream.m, self.stream.features.shape[1])

    @staticmethod
    @abstractmethod
    def _of_margin(margin: Tensor, smoothing: float) -> tuple[Tensor, Tensor, Tensor]:
        """The loss, a smooth minorant that converges to it as the smoothing vanishes, and the minorant's derivative."""

    def loss(self, t: int, x: Tensor) -> tuple[float, Tensor]:
        t %= len(self.stream.tasks)
        i, y, v = int(self.stream.tasks[t]), float(self.stream.labels[t]), self.stream.features[t].to(x)
        value, _, slope = self._of_margin(y * torch.dot(x[i], v), 0.0)
        grad = torch.zeros_like(x)
        grad[i] = float(slope) * y * v
        return float(value), grad

    def best(self, rounds: int, gradients: Tensor) -> Solution:
        def total(x: Tensor, smoothing: float) -> tuple[float, float, Tensor]:
            exact, smooth, gradient = 0.0, 0.0, torch.zeros_like(x)
            for part, times in self._parts(rounds):
                tasks, features = self.stream.tasks[part], self.stream.features[part].to(x)
                labels = self.stream.labels[part].to(x)
                value, minorant, slope = self._of_margin(labels * (features * x[tasks]).sum(1), smoothing)
                exact += times * float(value.sum())
                smooth += times * float(minorant.sum())
                gradient.index_add_(0, tasks, times * (slope * labels)[:, None] * features)
            return exact, smooth, gradient

        start = self.domain.project(torch.zeros_like(gradients))
        return minimise(total, self.domain, start, tolerance=1e-6 * total(start, 0.0)[0])

    def _parts(self, rounds: int) -> Iterator[tuple[slice, int]]:
        """Slices of the stream and how often each is played."""
        length = len(self.stream.tasks)
        whole, rest = divmod(rounds, length)
        for start in range(0, length, CHUNK):
            stop = min(start + CHUNK, length)
            if whole and start >= rest:
                yield slice(start, stop), whole
            elif stop <= rest:
                yield slice(start, stop), whole + 1
            else:
                for low, high, times in ((start, min(stop, rest), whole + 1), (max(start, rest), stop, whole)):
                    if times and low < high:
                        yield slice(low, high), times


class Hinge(_Classification):
    """max{0, 1 - margin} on an `ExampleStream`."""

    @staticmethod
    def _of_margin(margin: Tensor, smoothing: float) -> tuple[Tensor, Tensor, Tensor]:
        short = (1 - margin).clamp_min(0)
        if smoothing == 0:
            return short, short, -(margin < 1).to(margin.dtype)
        weight = (short / smoothing).clamp_max(1)
        return short, weight * (short - smoothing / 2 * weight), -weight


class Logistic(_Classification):
    """log(1 + exp(-margin)) on an `ExampleStream`."""

    @staticmethod
    def _of_margin(margin: Tensor, smoothing: float) -> tuple[Tensor, Tensor, Tensor]:  # noqa: ARG004
        value = torch.nn.functional.softplus(-margin)
        return value, value, -torch.sigmoid(-margin)


# ----------------------------------------------------------------------------------------------------------- completion


@dataclass(frozen=True, eq=False)
class Completion(Game):
    r"""Matrix completion, :math:`f_t(X) = \tfrac12 (X_{i_t j_t} - v_t)^2` along an `EntryStream`, again and again.

    The sum of the losses is :math:`\tfrac12 \sum N_{ij} (X_{ij} - \bar v_{ij})^2` plus a constant, where N counts how
    often an entry appears, and v̄ is the mean of its values. So the best fixed decision is the projection of the means
    in the metric of the counts. This is exact for every domain.
    """

    stream: EntryStream
    m: int
    n: int
    domain: Domain = field(default_factory=lambda: Box(-3.0, 3.0))

    def __post_init__(self) -> None:
        for name, index, size in (("rows", self.stream.rows, self.m), ("columns", self.stream.columns, self.n)):
            if not 0 <= int(index.min()) <= int(index.max()) < size:
                raise ValueError(f"{name} must be from 0 to {size - 1}, got {int(index.min())} to {int(index.max())}")

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.m, self.n)

    def loss(self, t: int, x: Tensor) -> tuple[float, Tensor]:
        t %= len(self.stream.rows)
        i, j = int(self.stream.rows[t]), int(self.stream.columns[t])
        error = float(x[i, j]) - float(self.stream.values[t])
        grad = torch.zeros_like(x)
        grad[i, j] = error
        return 0.5 * error**2, grad

    def best(self, rounds: int, gradients: Tensor) -> Solution:
        length = len(self.stream.rows)
        times = torch.full((length,), rounds // length, dtype=torch.float64)
        times[: rounds % length] += 1
        where = self.stream.rows * self.n + self.stream.columns
        zeros = torch.zeros(self.m * self.n, dtype=torch.float64)
        counts = zeros.index_add(0, where, times)
        sums = zeros.index_add(0, where, times * self.stream.values)
        means = (sums / counts.clamp_min(1)).view(self.shape)
        # Entries that never appeared may be anywhere: moving them costs next to nothing.
        x = self.domain.project(means, counts.clamp_min(1e-200).view(self.shape))
        errors = x.view(-1)[where] - self.stream.values.to(x)
        return Solution(x.to(gradients), 0.5 * float((times * errors.square()).sum()), 0.0)
