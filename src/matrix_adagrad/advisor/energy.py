r"""How the energy of a parameter's gradients is spread, in O(m + n) numbers.

The energy of an entry is :math:`V_{ij} = \sum_t G_{t,ij}^2`. Its sums over rows and over columns are exact. The m·n
entries themselves are not kept: in every row a few of them, the same at all steps, stand for the others. Which ones
moves on from row to row by the golden ratio, so that all columns are seen about equally often.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from matrix_adagrad.geometry import wide_dtype

__all__ = ["Energy", "Seen", "row_and_column_sums"]

BINS = 48  # of rows and of columns, in the history
WINDOWS = 24  # of the history, at least, once there are as many observations
_PIECE = 1 << 18  # entries that are squared at once: they stay in the cache
_GOLDEN = (math.sqrt(5) - 1) / 2


def row_and_column_sums(x: Tensor) -> tuple[Tensor, Tensor]:
    """The sums of squared magnitudes over rows and over all that is not rows, in one pass, without a copy of it."""
    x, wide = _in_rows(x), wide_dtype(x.dtype)
    m, n = x.shape[0], math.prod(x.shape[1:])
    rows = torch.empty(m, dtype=wide.to_real(), device=x.device)
    columns = torch.zeros(n, dtype=wide.to_real(), device=x.device)
    step = max(1, _PIECE // max(1, n))
    for start in range(0, m, step):
        squares = _squares(x[start : start + step].flatten(1))
        torch.sum(squares, 1, out=rows[start : start + step])
        columns += squares.sum(0)
    return rows, columns


def _in_rows(x: Tensor) -> Tensor:
    """A vector as rows of one entry each; what has rows already stays as it is."""
    return x if x.dim() > 1 else x.reshape(-1, 1)


def _squares(x: Tensor) -> Tensor:
    x = x.to(wide_dtype(x.dtype))
    return (x.abs() if x.is_complex() else x).square()


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
    finite: Tensor  # how many of them were
    rows: Tensor
    columns: Tensor

    def __add__(self, other: Window) -> Window:
        return Window(
            self.observations + other.observations,
            self.finite + other.finite,
            self.rows + other.rows,
            self.columns + other.columns,
        )


class Energy:
    """The energy of one parameter's gradients, or of the part of it that lies on this machine.

    Args:
        like: the parameter, or that part of it.
        since: the step of the optimizer after which it was there.
    """

    def __init__(self, like: Tensor, since: int = 0) -> None:
        x = _in_rows(like.detach())
        self.since, self.m, self.n = since, x.shape[0], math.prod(x.shape[1:])
        zeros = functools.partial(torch.zeros, dtype=wide_dtype(x.dtype).to_real(), device=x.device)
        self.rows, self.columns = zeros(self.m), zeros(self.n)
        self.sampled = min(self.n, 4 + 4 * math.ceil(self.n / max(1, self.m)))  # entries of each row
        self.sample = zeros(self.m, self.sampled)
        self.updates, self.weights = zeros(()), zeros(())
        self.observations = 0
        count = functools.partial(torch.zeros, (), dtype=torch.int64, device=x.device)  # float32 counts to 2²⁴ only
        self.finite, self.silent_rows, self.silent_columns = count(), count(), count()
        self.history: list[Window] = []
        self.marks = [self._mark()] * 2  # what there was at the last two powers of 2
        self._stride = max(1, round(self.n * _GOLDEN))
        self._together = 1  # observations a window

    # ------------------------------------------------------------------------------------------------ one observation

    def look(self, grad: Tensor | None, scale: Tensor | None = None) -> Seen:
        """What is needed of a gradient, dense or sparse; ``scale`` is what mixed precision has multiplied it by."""
        if grad is None:  # nothing to see: as a sparse one without any row
            none = torch.empty(0, dtype=torch.int64, device=self.rows.device)
            return Seen(self.rows[:0], torch.zeros_like(self.columns), self.sample[:0], none)
        where = None
        if grad.is_sparse and grad.sparse_dim() == 1:
            grad = grad.coalesce()
            where, grad = grad.indices()[0], grad.values()
        elif grad.layout is not torch.strided:
            grad = grad.to_dense()
        rows, columns = row_and_column_sums(grad)
        sample = _squares(self._entries(grad, where))
        if scale is not None:
            rows, columns, sample = (part / scale.square() for part in (rows, columns, sample))
        return Seen(rows, columns, sample, where)

    def add(self, seen: Seen) -> None:
        """Count an observation; one that is not finite is counted as such and adds nothing else."""
        ok = seen.is_finite
        rows, columns, sample = (torch.where(ok, part, 0) for part in (seen.rows, seen.columns, seen.sample))
        self.observations += 1
        self.finite += ok
        # Where there is no entry of a row, it is on other machines that it may be silent.
        self.silent_rows += ok * (self.m - rows.count_nonzero()) * bool(self.n)
        self.silent_columns += ok * (self.n - columns.count_nonzero()) * bool(self.m)
        if seen.where is None:
            self.rows += rows
            self.sample += sample
        else:
            self.rows.index_add_(0, seen.where, rows)
            self.sample.index_add_(0, seen.where, sample)
        self.columns += columns
        self._remember(Window(1, ok.long(), _binned(rows, self.m, seen.where), _binned(columns, self.n)))

    def _remember(self, window: Window) -> None:
        """Keep a history of at least WINDOWS and at most twice as many windows, however long the run gets."""
        if self.history and self.history[-1].observations < self._together:
            self.history[-1] += window
        else:
            self.history.append(window)
        if len(self.history) == 2 * WINDOWS and self.history[-1].observations == self._together:
            self.history = [a + b for a, b in zip(self.history[::2], self.history[1::2], strict=True)]
            self._together *= 2
        if self.observations & (self.observations - 1) == 0:
            self.marks = [self.marks[1], self._mark()]

    def _mark(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.finite.clone(), self.rows.clone(), self.columns.clone()

    # ------------------------------------------------------------------------------------------------- sampled entries

    def entries(self, param: Tensor, where: Tensor | None) -> Tensor:
        """The parameter's own values at the sampled entries, of all rows or of some; a copy."""
        values = self._entries(param.detach(), where, where)
        return values.to(wide_dtype(values.dtype), copy=True)

    def _entries(self, x: Tensor, numbers: Tensor | None, at: Tensor | None = None) -> Tensor:
        """The sampled entries of the rows of these numbers, which lie in ``x`` one after the other, or else ``at``."""
        x = _in_rows(x)
        if self.sampled == self.n:
            return (x if at is None else x[at]).flatten(1)
        numbers = torch.arange(self.m, device=x.device) if numbers is None else numbers
        at = torch.arange(len(numbers), device=x.device) if at is None else at
        spaced = torch.arange(self.sampled, device=x.device) * self.n // self.sampled
        columns = (numbers[:, None] * self._stride).add(spaced).remainder_(self.n)
        # Not of x as a matrix: if its dimensions lie in another order in memory, that would be a copy.
        found: Tensor = x[at[:, None], *((columns,) if x.dim() == 2 else torch.unravel_index(columns, x.shape[1:]))]
        return found

    def moved(self, seen: Seen, before: Tensor, after: Tensor) -> None:
        """Count an update of the rows that had a gradient, from the sampled entries before and after it."""
        had = (seen.rows > 0) & seen.is_finite
        change, size = (torch.where(had, x.abs().square().sum(1), 0).sum() for x in (after - before, before))
        ok = (change + size).isfinite()
        self.updates += torch.where(ok, change, 0)
        self.weights += torch.where(ok, size, 0)

    def roots(self) -> Tensor:
        r"""For each row :math:`\sum_j \sqrt{V_{ij}}`, estimated from its sampled entries."""
        return self.sample.sqrt().sum(1) * (self.n / max(1, self.sampled))

    def squares(self) -> Tensor:
        r"""For each row :math:`\sum_j V_{ij}^2`, estimated from its sampled entries."""
        sample = self.sample if self.sample.is_mps else self.sample.double()  # fourth powers of gradients are tiny
        return sample.square().sum(1) * (self.n / max(1, self.sampled))

    @property
    def nbytes(self) -> int:
        """The memory that it takes."""
        windows = [part for window in self.history for part in (window.rows, window.columns)]
        marks = [part for mark in self.marks for part in mark[1:]]
        return sum(x.nbytes for x in (self.rows, self.columns, self.sample, *windows, *marks))


def _binned(values: Tensor, size: int, where: Tensor | None = None) -> Tensor:
    """Sums over bins of neighbours; ``where`` are the places of the values, if they are not all."""
    width = max(1, math.ceil(size / BINS))
    bins = math.ceil(size / width)
    if where is not None:
        return values.new_zeros(bins).index_add_(0, where // width, values)
    return torch.nn.functional.pad(values, (0, bins * width - size)).view(bins, width).sum(1)
