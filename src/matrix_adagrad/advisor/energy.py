r"""How the energy of a parameter's gradients is spread, in O(m + n) numbers.

The energy of an entry is :math:`V_{ij} = \sum_t G_{t,ij}^2`. Its sums over rows and over columns are exact. The m·n
entries themselves are not kept: in every row a few of them, the same at all steps, stand for the others. Which ones moves
on from row to row by the golden ratio, so that all columns are seen about equally often.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from matrix_adagrad.geometry import wide_dtype

__all__ = ["Energy", "Seen", "as_matrix", "row_and_column_sums"]

BINS = 48  # of rows and of columns, in the history
WINDOWS = 24  # of the history, at least, once there are as many observations
_PIECE = 1 << 18  # entries that are squared at once: they stay in the cache
_GOLDEN = (math.sqrt(5) - 1) / 2


def as_matrix(x: Tensor) -> Tensor:
    """A tensor as rows × everything else, and a vector as rows of one entry each."""
    return x.flatten(1) if x.dim() > 1 else x.reshape(-1, 1)


def row_and_column_sums(x: Tensor) -> tuple[Tensor, Tensor]:
    """The sums of squared magnitudes over rows and over columns of a matrix, in one pass, without a copy of it."""
    wide = wide_dtype(x.dtype)
    rows = torch.empty(x.shape[0], dtype=wide.to_real(), device=x.device)
    columns = torch.zeros(x.shape[1], dtype=wide.to_real(), device=x.device)
    step = max(1, _PIECE // max(1, x.shape[1]))
    for start in range(0, x.shape[0], step):
        piece = x[start : start + step].to(wide)
        squares = (piece.abs() if piece.is_complex() else piece).square()
        torch.sum(squares, 1, out=rows[start : start + step])
        columns += squares.sum(0)
    return rows, columns


@dataclass
class Seen:
    """A gradient: the sums of its rows, of its columns, its sampled entries; ``where`` are the rows that it has."""

    rows: Tensor
    columns: Tensor
    sample: Tensor
    where: Tensor | None  # all of them

    @property
    def is_finite(self) -> Tensor:
        """Whether all of it is; a tensor, so that nobody waits for a GPU."""
        return self.rows.sum().isfinite()


@dataclass
class Window:
    """Energy over a stretch of observations, in bins of neighbouring rows and of neighbouring columns."""

    observations: int
    rows: Tensor
    columns: Tensor

    def __add__(self, other: Window) -> Window:
        return Window(self.observations + other.observations, self.rows + other.rows, self.columns + other.columns)


@dataclass
class Energy:
    """The energy of one parameter's gradients, or of the part of it that lies on this machine.

    Args:
        like: the parameter, or that part of it.
    """

    like: Tensor
    observations: int = 0
    history: list[Window] = field(default_factory=list)

    def __post_init__(self) -> None:
        x = as_matrix(self.like.detach())
        self.m, self.n = x.shape
        zeros = functools.partial(torch.zeros, dtype=wide_dtype(x.dtype).to_real(), device=x.device)
        self.rows, self.columns = zeros(self.m), zeros(self.n)
        self.sampled = min(self.n, 4 + 4 * math.ceil(self.n / max(1, self.m)))  # entries of each row
        self.sample = zeros(self.m, self.sampled)
        self.silent_rows, self.silent_columns = zeros(()), zeros(())
        self.broken, self.updates, self.weights = zeros(()), zeros(()), zeros(())
        self.marks = [(0, self.rows.clone(), self.columns.clone())] * 2  # what there was at the last two powers of 2
        self._stride = max(1, round(self.n * _GOLDEN))
        self._together = 1  # observations a window

    # ------------------------------------------------------------------------------------------------ one observation

    def look(self, grad: Tensor, scale: Tensor | None = None) -> Seen:
        """What is needed of a gradient, dense or sparse; ``scale`` is what mixed precision has multiplied it by."""
        where, values = None, grad
        if grad.is_sparse:
            grad = grad.coalesce()
            where, values = grad.indices()[0], grad.values()
        values = as_matrix(values)
        rows, columns = row_and_column_sums(values)
        sample = self._entries(values, where).to(wide_dtype(values.dtype))
        sample = (sample.abs() if sample.is_complex() else sample).square()
        if scale is not None:
            rows, columns, sample = (part / scale.square() for part in (rows, columns, sample))
        return Seen(rows, columns, sample, where)

    def add(self, seen: Seen) -> None:
        """Count an observation; one that is not finite is counted as such and adds nothing else."""
        ok = seen.is_finite
        rows, columns, sample = (torch.where(ok, part, 0) for part in (seen.rows, seen.columns, seen.sample))
        self.broken += ~ok
        self.silent_rows += ok * (self.m - rows.count_nonzero())
        self.silent_columns += ok * (self.n - columns.count_nonzero())
        if seen.where is None:
            self.rows += rows
            self.sample += sample
        else:
            self.rows.index_add_(0, seen.where, rows)
            self.sample.index_add_(0, seen.where, sample)
        self.columns += columns
        self._remember(Window(1, _binned(rows, self.m, seen.where), _binned(columns, self.n)))

    def _remember(self, window: Window) -> None:
        """Keep a history of at least WINDOWS and at most twice as many windows, however long the run gets."""
        self.observations += 1
        if self.history and self.history[-1].observations < self._together:
            self.history[-1] += window
        else:
            self.history.append(window)
        if len(self.history) == 2 * WINDOWS and self.history[-1].observations == self._together:
            self.history = [a + b for a, b in zip(self.history[::2], self.history[1::2], strict=True)]
            self._together *= 2
        if self.observations & (self.observations - 1) == 0:
            self.marks = [self.marks[1], (self.observations, self.rows.clone(), self.columns.clone())]

    # ------------------------------------------------------------------------------------------------- sampled entries

    def entries(self, param: Tensor, where: Tensor | None) -> Tensor:
        """The parameter's own values at the sampled entries, of all rows or of some."""
        x = as_matrix(param.detach())
        values = self._entries(x if where is None else x[where], where)
        return values.to(wide_dtype(values.dtype))

    def _entries(self, values: Tensor, where: Tensor | None) -> Tensor:
        if self.sampled == self.n:
            return values
        rows = torch.arange(self.m, device=values.device) if where is None else where
        first = rows[:, None] * self._stride
        spaced = torch.arange(self.sampled, device=values.device) * self.n // self.sampled
        return values.gather(1, (first + spaced) % self.n)

    def moved(self, before: Tensor, after: Tensor) -> None:
        """Count an update, from the sampled entries before and after it."""
        change = (after - before).abs().square().sum()
        self.updates += torch.where(change.isfinite(), change, 0)
        self.weights += torch.where(change.isfinite(), before.abs().square().sum(), 0)

    def roots(self) -> Tensor:
        r"""For each row :math:`\sum_j \sqrt{V_{ij}}`, estimated from its sampled entries."""
        return self.sample.sqrt().sum(1) * (self.n / max(1, self.sampled))

    def squares(self) -> Tensor:
        r"""For each row :math:`\sum_j V_{ij}^2`, estimated from its sampled entries."""
        return self.sample.square().sum(1) * (self.n / max(1, self.sampled))

    @property
    def nbytes(self) -> int:
        """The memory that it takes."""
        windows = [part for window in self.history for part in (window.rows, window.columns)]
        marks = [part for mark in self.marks for part in mark[1:]]
        return sum(x.nbytes for x in (self.rows, self.columns, self.sample, *windows, *marks))


def _binned(values: Tensor, size: int, where: Tensor | None = None) -> Tensor:
    """Sums over bins of neighbours; ``where`` are the places of the values, if they are not all."""
    bins = min(size, BINS)
    width = math.ceil(size / max(1, bins))
    if where is not None:
        return values.new_zeros(bins).index_add_(0, where // width, values)
    return torch.nn.functional.pad(values, (0, bins * width - size)).view(bins, width).sum(1)
