r"""Regret on gradients with planted structure: linear losses on a domain.

.. math:: f_t(X) = \langle G_t, X \rangle, \qquad G_t = A_t \circ S \circ (N_t + d\, M / \sqrt{T p})

S has the sizes of the entries. A_t is 1 where an entry is active, which it is with probability p. N_t is normal noise,
and M, drawn once, is what can be learned: over T rounds it adds up to d times what the noise does. The best fixed
decision has a closed form.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from matrix_adagrad.domains import Balls, Box, Domain
from matrix_adagrad.geometry import Batched, Column, Partition, Row, Whole
from reproduction.structure.planted import Structure, active, frequencies, shared, sizes
from reproduction.structure.tuned import Learner, compared

__all__ = ["DOMAINS", "Config", "Result", "gradients", "run"]

# The blocks that each have a ball. All domains have the corner of 1s on their surface.
DOMAINS: dict[str, Partition | None] = {
    "Frobenius ball": Whole(),
    "row balls": Row(),
    "column balls": Column(),
    "box": None,
}


@dataclass(frozen=True)
class Config:
    """A game in all geometries. Learning rates are tuned on as many seeds as ``tuning`` says, apart from the others.

    With ``transposed``, all matrices are, and so is the domain's shape (but not its name).
    """

    structure: Structure
    domain: str = "Frobenius ball"
    rounds: int = 400
    drift: float = 4.0
    seeds: int = 10
    tuning: int = 6
    transposed: bool = False

    def __post_init__(self) -> None:
        if self.domain not in DOMAINS:
            raise ValueError(f"domain must be one of {', '.join(DOMAINS)}, got {self.domain!r}")

    @property
    def cost(self) -> float:
        """The estimated run time, in seconds."""
        return self.rounds * self.tuning * (1.5e-4 if self.domain == "box" else 4e-4)


@dataclass(frozen=True)
class Result:
    """For each of the `GEOMETRIES`: its learning rate, and its regret for each seed."""

    config: Config
    rates: tuple[float, ...]
    scores: tuple[tuple[float, ...], ...]


def run(config: Config) -> Result:
    """Play the game with all geometries."""
    drawn = functools.cache(lambda seeds: gradients(config, seeds))

    def score(geometry: str, seeds: Sequence[int], rates: Tensor) -> Tensor:
        return _regrets(geometry, rates, drawn(tuple(seeds)), config.domain)

    return Result(config, *compared(score, range(1000, 1000 + config.tuning), range(config.seeds)))


def gradients(config: Config, seeds: Sequence[int]) -> Tensor:
    """All gradients: rounds × seeds × m × n."""
    drawn = torch.stack([_gradients(config, torch.Generator().manual_seed(seed)) for seed in seeds], 1)
    return drawn.mT.contiguous() if config.transposed else drawn


def _gradients(config: Config, random: torch.Generator) -> Tensor:
    own, rounds = config.structure, config.rounds
    m, n = own.m, own.n
    rows, columns, entries = (
        torch.randn(rounds + 1, *shape, dtype=torch.float64, generator=random) for shape in ((m, 1), (1, n), (m, n))
    )
    drift, noise = shared(entries, (rows, own.within_rows), (columns, own.within_columns)).split((1, rounds))
    often = frequencies(m, own.row_activity)[:, None] * frequencies(n, own.column_activity)
    size = sizes(m, own.row_decades)[:, None] * sizes(n, own.column_decades)
    size = size * sizes(m * n, own.entry_decades)[torch.randperm(m * n, generator=random)].view(m, n)
    now = active(rounds, m, own.row_activity, random)[:, :, None]
    now = now * active(rounds, n, own.column_activity, random)[:, None, :]
    gradients: Tensor = now * size * (noise + config.drift * drift / (rounds * often).sqrt())
    return gradients


def _regrets(geometry: str, rates: Tensor, gradients: Tensor, name: str) -> Tensor:
    domain = _domain(name, gradients.shape)
    learner = Learner(geometry, rates, gradients.shape[1:], domain)
    losses = torch.zeros(len(rates), gradients.shape[1], dtype=torch.float64)
    for gradient in gradients:
        losses += (gradient * learner.x).sum((-2, -1))
        learner.update(gradient[None])
    total = gradients.sum(0)
    return losses - (total * domain.argmin(total)).sum((-2, -1))


def _domain(name: str, shape: Sequence[int]) -> Domain:
    blocks = DOMAINS[name]
    return Box(-1.0, 1.0) if blocks is None else Balls(math.sqrt(blocks.members(shape[-2:])), Batched(blocks))
