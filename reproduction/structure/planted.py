"""What is planted in gradients: sizes, activity and correlation of rows and columns."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Generator, Tensor

__all__ = ["Activity", "Structure", "active", "frequencies", "shared", "sizes"]

Activity = Literal["all", "one", "zipf"]


@dataclass(frozen=True)
class Structure:
    """The structure of the gradients of an m×n matrix.

    Args:
        m: rows.
        n: columns.
        row_decades: over how many powers of ten the sizes of rows spread, from 1 down.
        column_decades: the same for columns.
        entry_decades: the same for single entries, in an order that rows and columns do not explain.
        row_activity: ``"all"`` rows are active in each round, or ``"one"``, or one that is drawn like the words of a
            text, row i with a probability ∝ 1/i (``"zipf"``).
        column_activity: the same for columns.
        within_rows: the correlation of any two entries in a row.
        within_columns: the same for columns.
    """

    m: int = 16
    n: int = 16
    row_decades: float = 0.0
    column_decades: float = 0.0
    entry_decades: float = 0.0
    row_activity: Activity = "all"
    column_activity: Activity = "all"
    within_rows: float = 0.0
    within_columns: float = 0.0

    def __post_init__(self) -> None:
        shares = self.within_rows, self.within_columns
        if min(shares) < 0 or sum(shares) > 1:
            raise ValueError(f"correlations must be at least 0 and sum to at most 1, got {shares}")

    @property
    def transpose(self) -> Structure:
        """The mirror image: what rows have here, columns have there."""
        return replace(
            self,
            m=self.n,
            n=self.m,
            row_decades=self.column_decades,
            column_decades=self.row_decades,
            row_activity=self.column_activity,
            column_activity=self.row_activity,
            within_rows=self.within_columns,
            within_columns=self.within_rows,
        )


def sizes(count: int, decades: float) -> Tensor:
    """Sizes from 1 down to 10^-decades, on a logarithmic scale."""
    return torch.logspace(0, -decades, count, dtype=torch.float64)


def frequencies(count: int, activity: Activity) -> Tensor:
    """How often each of ``count`` rows or columns is active."""
    if activity == "all":
        return torch.ones(count, dtype=torch.float64)
    weights = torch.arange(1, count + 1, dtype=torch.float64) ** (-1 if activity == "zipf" else 0)
    return weights / weights.sum()


def active(rounds: int, count: int, activity: Activity, random: Generator) -> Tensor:
    """1 where a row or column is active: rounds × count."""
    if activity == "all":
        return torch.ones(rounds, count, dtype=torch.float64)
    chosen = torch.multinomial(frequencies(count, activity), rounds, replacement=True, generator=random)
    return torch.nn.functional.one_hot(chosen, count).double()


def shared(own: Tensor, *others: tuple[Tensor, float]) -> Tensor:
    """√ρ · other + … + √(1 - Σρ) · own: standard normal, if all of them are, with the correlations ρ."""
    rest = 1 - sum(share for _, share in others)
    return math.sqrt(rest) * own + sum(math.sqrt(share) * other for other, share in others)
