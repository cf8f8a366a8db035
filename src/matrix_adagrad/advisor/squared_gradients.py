r"""Accumulates a parameter's squared gradients, :math:`V_{ij} = \sum_t G_{t,ij}^2`, in O(m + n) numbers.

The sums over rows and over columns are exact. Of the m·n entries, only a sample is kept: a few in every row, the same
at all steps. Their columns advance by the golden ratio from row to row, so that all columns are sampled about equally.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from matrix_adagrad.geometry import wide_dtype

__all__ = ["GOLDEN", "Observation", "SquaredGradients", "row_and_column_sums"]

BINS = 48  # of rows and of columns, in the history
WINDOWS = 24  # minimum length of the history, once there are as many observations
_CHUNK = 1 << 18  # entries that are squared at once: they fit into the cache
GOLDEN = (math.sqrt(5) - 1) / 2  # its multiples never repeat, modulo 1


def row_and_column_sums(x: Tensor) -> tuple[Tensor, Tensor]:
    """The sums of squared magnitudes over each row and over each column, in one pass and without a copy of ``x``."""
    x, wide = _in_rows(x), wide_dtype(x.dtype)
    m, n = x.shape[0], math.prod(x.shape[1:])
    rows = torch.empty(m, dtype=wide.to_real(), device=x.device)
    columns = torch.zeros(n, dtype=wide.to_real(), device=x.device)
    step = max(1, _CHUNK // max(1, n))
    for start in range(0, m, step):
        squares = _squares(x[start : start + step].flatten(1))
        torch.sum(squares, 1, out=rows[start : start + step])
        columns += squares.sum(0)
    return rows, columns


def _in_rows(x: Tensor) -> Tensor:
    """A vector as rows of one entry each; anything else as it is."""
    return x if x.dim() > 1 else x.reshape(-1, 1)


def _squares(x: Tensor) -> Tensor:
    x = x.to(wide_dtype(x.dtype))
    return (x.abs() if x.is_complex() else x).square()


@dataclass
class Observation:
    """One squared gradient: sums over rows and columns, and sampled entries. ``indices`` are the rows it has."""

    rows: Tensor
    columns: Tensor
    sample: Tensor
    indices: Tensor | None  # None for all rows

    @property
    def is_finite(self) -> Tensor:
        """Whether everything is finite, as a tensor, so as not to wait for a GPU."""
        return self.rows.sum().isfinite()


@dataclass
class Window:
    """Squared gradients of consecutive observations, in bins of neighbouring rows and of neighbouring columns."""

    observations: int
    finite: Tensor  # how many of them were finite
    rows: Tensor
    columns: Tensor

    def __add__(self, other: Window) -> Window:
        return Window(
            self.observations + other.observations,
            self.finite + other.finite,
            self.rows + other.rows,
            self.columns + other.columns,
        )


class SquaredGradients:
    """Running sums of one parameter's squared gradients, or of its local shard's.

    Args:
        like: the parameter, or its local shard.
        since: the optimizer's step after which the parameter was added.
    """

    def __init__(self, like: Tensor, since: int = 0) -> None:
        x = _in_rows(like.detach())
        self.since, self.m, self.n = since, x.shape[0], math.prod(x.shape[1:])
        zeros = functools.partial(torch.zeros, dtype=wide_dtype(x.dtype).to_real(), device=x.device)
        self.rows, self.columns = zeros(self.m), zeros(self.n)
        self.samples_per_row = min(self.n, 4 + 4 * math.ceil(self.n / max(1, self.m)))
        self.sample = zeros(self.m, self.samples_per_row)
        self.updates, self.weights = zeros(()), zeros(())
        self.observations = 0
        count = functools.partial(torch.zeros, (), dtype=torch.int64, device=x.device)  # float32 counts to 2²⁴ only
        self.finite, self.inactive_rows, self.inactive_columns = count(), count(), count()
        self.history: list[Window] = []
        self.snapshots = [self._snapshot()] * 2  # at the last two powers of 2
        self._stride = max(1, round(self.n * GOLDEN))
        self._window_length = 1  # observations

    # ------------------------------------------------------------------------------------------------ one observation

    def observe(self, grad: Tensor | None, scale: Tensor | None = None) -> Observation:
        """Square a dense or sparse gradient. ``scale``, the loss scale of mixed precision, is divided out."""
        if grad is None:  # like a sparse one without rows
            none = torch.empty(0, dtype=torch.int64, device=self.rows.device)
            return Observation(self.rows[:0], torch.zeros_like(self.columns), self.sample[:0], none)
        indices = None
        if grad.is_sparse and grad.sparse_dim() == 1:
            grad = grad.coalesce()
            indices, grad = grad.indices()[0], grad.values()
        elif grad.layout is not torch.strided:
            grad = grad.to_dense()
        rows, columns = row_and_column_sums(grad)
        sample = _squares(self._sampled(grad, indices))
        if scale is not None:
            rows, columns, sample = (part / scale.square() for part in (rows, columns, sample))
        return Observation(rows, columns, sample, indices)

    def add(self, observation: Observation) -> None:
        """Add an observation. If it is not finite, it is counted but adds nothing."""
        is_finite, indices = observation.is_finite, observation.indices
        rows, columns, sample = (
            torch.where(is_finite, part, 0) for part in (observation.rows, observation.columns, observation.sample)
        )
        self.observations += 1
        self.finite += is_finite
        # A shard without any entry of a row says nothing about the row.
        self.inactive_rows += is_finite * (self.m - rows.count_nonzero()) * bool(self.n)
        self.inactive_columns += is_finite * (self.n - columns.count_nonzero()) * bool(self.m)
        if indices is None:
            self.rows += rows
            self.sample += sample
        else:
            self.rows.index_add_(0, indices, rows)
            self.sample.index_add_(0, indices, sample)
        self.columns += columns
        self._remember(Window(1, is_finite.long(), _binned(rows, self.m, indices), _binned(columns, self.n)))

    def _remember(self, window: Window) -> None:
        """Keep a history of WINDOWS to 2 · WINDOWS windows, however long the run gets."""
        if self.history and self.history[-1].observations < self._window_length:
            self.history[-1] += window
        else:
            self.history.append(window)
        if len(self.history) == 2 * WINDOWS and self.history[-1].observations == self._window_length:
            self.history = [a + b for a, b in zip(self.history[::2], self.history[1::2], strict=True)]
            self._window_length *= 2
        if self.observations & (self.observations - 1) == 0:
            self.snapshots = [self.snapshots[1], self._snapshot()]

    def _snapshot(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.finite.clone(), self.rows.clone(), self.columns.clone()

    # ------------------------------------------------------------------------------------------------- sampled entries

    def sampled_weights(self, param: Tensor, indices: Tensor | None) -> Tensor:
        """A copy of the parameter's values at the sampled entries, of all rows or of some."""
        values = self._sampled(param.detach(), indices, indices)
        return values.to(wide_dtype(values.dtype), copy=True)

    def _sampled(self, x: Tensor, indices: Tensor | None, positions: Tensor | None = None) -> Tensor:
        """The sampled entries of the rows ``indices``, which are the rows ``positions`` of ``x``, or all of them."""
        x = _in_rows(x)
        if self.samples_per_row == self.n:
            return (x if positions is None else x[positions]).flatten(1)
        indices = torch.arange(self.m, device=x.device) if indices is None else indices
        positions = torch.arange(len(indices), device=x.device) if positions is None else positions
        spaced = torch.arange(self.samples_per_row, device=x.device) * self.n // self.samples_per_row
        columns = (indices[:, None] * self._stride).add(spaced).remainder_(self.n)
        # Not through x as a matrix, which copies where dimensions are permuted in memory.
        inner = (columns,) if x.dim() == 2 else torch.unravel_index(columns, x.shape[1:])
        sampled: Tensor = x[positions[:, None], *inner]
        return sampled

    def add_update(self, observation: Observation, before: Tensor, after: Tensor) -> None:
        """Add the size of an update, and of the weights, over rows with a gradient; both are sampled weights."""
        is_active = (observation.rows > 0) & observation.is_finite
        change, size = (torch.where(is_active, x.abs().square().sum(1), 0).sum() for x in (after - before, before))
        is_finite = (change + size).isfinite()
        self.updates += torch.where(is_finite, change, 0)
        self.weights += torch.where(is_finite, size, 0)

    def row_root_sums(self) -> Tensor:
        r"""For each row :math:`\sum_j \sqrt{V_{ij}}`, estimated from its sampled entries."""
        return self.sample.sqrt().sum(1) * (self.n / max(1, self.samples_per_row))

    def row_square_sums(self) -> Tensor:
        r"""For each row :math:`\sum_j V_{ij}^2`, estimated from its sampled entries."""
        sample = self.sample if self.sample.is_mps else self.sample.double()  # fourth powers of gradients are tiny
        return sample.square().sum(1) * (self.n / max(1, self.samples_per_row))

    @property
    def nbytes(self) -> int:
        """Its memory in bytes."""
        windows = [part for window in self.history for part in (window.rows, window.columns)]
        snapshots = [part for snapshot in self.snapshots for part in snapshot[1:]]
        return sum(x.nbytes for x in (self.rows, self.columns, self.sample, *windows, *snapshots))


def _binned(values: Tensor, size: int, indices: Tensor | None = None) -> Tensor:
    """Sums over bins of neighbours. ``indices`` are the positions of the values, unless all of them are present."""
    width = max(1, math.ceil(size / BINS))
    bins = math.ceil(size / width)
    if indices is not None:
        return values.new_zeros(bins).index_add_(0, indices // width, values)
    return torch.nn.functional.pad(values, (0, bins * width - size)).view(bins, width).sum(1)
