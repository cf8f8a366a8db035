"""Data that arrive one at a time: examples for many tasks, entries of a matrix."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from matrix_adagrad.online.fingerprints import fingerprint

__all__ = ["EntryStream", "ExampleStream", "generator"]


@dataclass(frozen=True, eq=False)
class ExampleStream:
    """Examples for many tasks: the task of each round, its features and its label ±1. Decisions have one row per task.

    `ExampleStream.random` draws a stream.
    """

    tasks: Tensor
    features: Tensor
    labels: Tensor
    m: int

    def __post_init__(self) -> None:
        lengths = (len(self.tasks), len(self.features), len(self.labels))
        if len(set(lengths)) != 1 or not lengths[0]:
            raise ValueError(f"tasks, features and labels must have the same length, at least 1, got {lengths}")
        if not 0 <= int(self.tasks.min()) <= int(self.tasks.max()) < self.m:
            raise ValueError(
                f"tasks must be from 0 to {self.m - 1}, got {int(self.tasks.min())} to {int(self.tasks.max())}"
            )
        if not bool(((self.labels == 1) | (self.labels == -1)).all()):
            raise ValueError("labels must be 1 or -1")

    @staticmethod
    def random(m: int, n: int, rounds: int, *, noise: float = 0.1, seed: int = 0) -> ExampleStream:
        """Tasks with Zipf frequencies, Gaussian features, labels by a random linear rule, some of them flipped."""
        random = generator(seed, 0)
        tasks = torch.multinomial(1 / torch.arange(1, m + 1, dtype=torch.float64), rounds, True, generator=random)
        rule = torch.randn(m, n, dtype=torch.float64, generator=random)
        features = torch.randn(rounds, n, dtype=torch.float64, generator=random) / math.sqrt(n)
        flips = torch.rand(rounds, dtype=torch.float64, generator=random) < noise
        labels = torch.where((features * rule[tasks]).sum(1) >= 0, 1.0, -1.0).double()
        return ExampleStream(tasks, features, torch.where(flips, -labels, labels), m)

    def __repr__(self) -> str:
        rounds, n = self.features.shape
        content = fingerprint(self.tasks, self.features, self.labels)
        return f"ExampleStream({rounds} rounds, {self.m} tasks, {n} features, {content})"


@dataclass(frozen=True, eq=False)
class EntryStream:
    """Entries of a matrix as they arrive: row, column, value. `EntryStream.random` draws those of a low-rank matrix."""

    rows: Tensor
    columns: Tensor
    values: Tensor

    def __post_init__(self) -> None:
        lengths = (len(self.rows), len(self.columns), len(self.values))
        if len(set(lengths)) != 1 or not lengths[0]:
            raise ValueError(f"rows, columns and values must have the same length, at least 1, got {lengths}")

    @staticmethod
    def random(m: int, n: int, rounds: int, *, rank: int = 2, noise: float = 0.1, seed: int = 0) -> EntryStream:
        """Uniformly drawn entries of a matrix of this rank, with entries of size 1, plus Gaussian noise."""
        random = generator(seed, 0)
        left = torch.randn(m, rank, dtype=torch.float64, generator=random)
        right = torch.randn(n, rank, dtype=torch.float64, generator=random) / math.sqrt(rank)
        rows, columns = (torch.randint(size, (rounds,), generator=random) for size in (m, n))
        values = (left[rows] * right[columns]).sum(1)
        return EntryStream(rows, columns, values + noise * torch.randn(rounds, dtype=torch.float64, generator=random))

    def __repr__(self) -> str:
        return f"EntryStream({len(self.rows)} entries, {fingerprint(self.rows, self.columns, self.values)})"


def generator(seed: int, chunk: int) -> torch.Generator:
    """A generator that draws the same numbers every time."""
    return torch.Generator().manual_seed((1_000_003 * seed + chunk) % (1 << 63))
