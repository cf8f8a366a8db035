r"""The motivating examples (§4.3 and Appendix F): one active row, or column, a round.

The losses are hinge losses on a ball of radius B < 1/√n, where every margin is violated, so that the gradients do not
depend on the player: ±1 on one row, which the rounds take in turn. The regret bounds of both algorithms are

.. math:: \sqrt 2\, D\, \textstyle\sum_b \sqrt{\sum_t \|G_{t,b}\|_2^2}

with the blocks b of their geometries and the diameter D = 2B of the ball in either norm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from matrix_adagrad.geometry import Entry, Geometry, as_geometry

__all__ = ["Config", "Result", "run"]


@dataclass(frozen=True)
class Config:
    """An m×n game of K rounds a row (or, for ``active="column"``, a column)."""

    m: int = 16
    n: int = 9
    K: int = 10
    active: str = "row"


@dataclass(frozen=True)
class Result:
    """The regret bounds in the aligned and in the entry geometry, and what their ratio should be."""

    config: Config
    bound: float
    entry_bound: float
    expected_ratio: float

    @property
    def ratio(self) -> float:
        """How many times tighter the bound of the aligned geometry is."""
        return self.entry_bound / self.bound


def run(config: Config) -> Result:
    """Play the game and add up the gradients' squares, as the algorithms do."""
    aligned = as_geometry(config.active)
    shape = (config.m, config.n)
    blocks = aligned.scales(shape)
    radius = 0.5 / math.sqrt(aligned.members(shape))
    geometries: tuple[Geometry, Geometry] = (aligned, Entry())
    sums = [torch.zeros(geometry.statistic_shape(shape), dtype=torch.float64) for geometry in geometries]
    for t in range(config.K * blocks):
        gradient = torch.zeros(shape, dtype=torch.float64)
        gradient.select(0 if config.active == "row" else 1, t % blocks).fill_((-1) ** t)
        for geometry, total in zip(geometries, sums, strict=True):
            total += geometry.statistic(gradient)
    bound, entry_bound = (math.sqrt(2) * 2 * radius * total.sqrt().sum().item() for total in sums)
    return Result(config, bound, entry_bound, expected_ratio=math.sqrt(aligned.members(shape)))
