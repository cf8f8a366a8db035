r"""MovieLens 100K as a product of two tables of k factors (Figure 1).

.. math:: \min_{U, V} \sum_{(i, j) \in \Omega} (R_{ij} - u_i^\top v_j)^2 + \tfrac\lambda2 (\|U\|_F^2 + \|V\|_F^2)

One run trains a stack of models side by side, one per learning rate, on the same batches from the same start. All
models live in one pair of tables, and the geometry keeps them independent. With S models, each entry of a row of S·k
entries belongs to one model only, and so does each column. The models' rows are separate rows of a table of S·m rows
that shares the same memory. AdaGrad moves a parameter by η G/√V. So if a model's parameters are measured in units of
its η, it takes steps of rate 1, and all models of a stack can share an optimizer.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from matrix_adagrad.datasets.movielens import Ratings, movielens
from matrix_adagrad.optim import MatrixAdaGrad

__all__ = ["FOLDS", "STARTS", "Config", "Result", "run"]

FOLDS = 5
VALIDATION = 10  # one in ten ratings outside the test set is held out to choose the learning rate
PIECE = 1 << 14  # ratings evaluated at once

# Initializations: functions of rows, k and a generator.
STARTS: dict[str, Callable[[int, int, torch.Generator], Tensor]] = {
    "N(0, 0.1²)": lambda rows, k, random: 0.1 * torch.randn(rows, k, generator=random),
    "N(0, 0.01²)": lambda rows, k, random: 0.01 * torch.randn(rows, k, generator=random),
    "N(0, 1)": lambda rows, k, random: torch.randn(rows, k, generator=random),
    "U(0, 1)/√k": lambda rows, k, random: torch.rand(rows, k, generator=random) / math.sqrt(k),
}


@dataclass(frozen=True)
class Config:
    """A stack of runs, one per learning rate.

    Args:
        geometry: ``"row"``, ``"column"`` or ``"entry"``.
        lrs: the learning rates.
        fold: which fifth of the ratings is the test set.
        validated: whether to hold out one in ten of the other ratings to choose the learning rate.
        batch: ratings per step; 0 means all of them.
        decay: λ.
        unbiased: whether λ acts once per epoch. By default it acts once for each rating in the batch; ``True``
            divides this by the number of ratings of the row.
        start: one of `STARTS`.
        centred: whether to subtract the mean of the training ratings first.
        transposed: whether an embedding is a column of its table instead of a row. Needs a single learning rate.
    """

    geometry: str = "row"
    lrs: tuple[float, ...] = (0.2,)
    fold: int = 0
    validated: bool = True
    batch: int = 1024
    decay: float = 0.02
    unbiased: bool = False
    start: str = "N(0, 0.1²)"
    centred: bool = False
    transposed: bool = False
    factors: int = 20
    epochs: int = 30
    seed: int = 0

    def __post_init__(self) -> None:
        if self.geometry not in ("row", "column", "entry"):
            raise ValueError(f"geometry must be 'row', 'column' or 'entry', got {self.geometry!r}")
        if self.start not in STARTS:
            raise ValueError(f"start must be one of {', '.join(STARTS)}, got {self.start!r}")
        if not 0 <= self.fold < FOLDS:
            raise ValueError(f"fold must be from 0 to {FOLDS - 1}, got {self.fold}")
        if not self.lrs or (self.transposed and len(self.lrs) > 1):
            raise ValueError(f"lrs must hold at least one learning rate, and just one if transposed, got {self.lrs}")

    @property
    def cost(self) -> float:
        """The estimated run time, in seconds."""
        steps = math.ceil(72_000 / self.batch) if self.batch else 1
        return self.epochs * (2.8e-4 * steps + 0.012 * len(self.lrs))


@dataclass(frozen=True)
class Result:
    """For each learning rate: the test and validation RMSE after each epoch, and the final training RMSE.

    A diverged run has an RMSE of inf. ``constant`` is the test RMSE of predicting the mean of the training ratings.
    ``state`` is the optimizer's memory in bytes, for one model of the stack.
    """

    config: Config
    test: tuple[tuple[float, ...], ...]
    validation: tuple[tuple[float, ...], ...]
    train: tuple[float, ...]
    constant: float
    state: int


def run(config: Config, path: Path | None = None) -> Result:
    """Train the stack on MovieLens 100K, from ``path`` or from wherever `movielens` finds it."""
    ratings = _ratings(path)
    train, validation, test = _split(config, ratings)
    random = torch.Generator().manual_seed(1000 * config.fold + config.seed)
    users, items = (
        _Side(config, STARTS[config.start](int(index.max()) + 1, config.factors, random), trained)
        for index, trained in ((ratings.users, train.users), (ratings.items, train.items))
    )
    optimizer = MatrixAdaGrad([users.table, items.table], lr=1.0, geometry=config.geometry)
    curves = []
    for _ in range(config.epochs):
        shuffled = train.at(torch.randperm(len(train.values), generator=random))
        for batch in shuffled.split(config.batch or len(train.values)):
            _set_gradients(users, items, batch, config.decay)
            optimizer.step()
        curves.append((_rmse(users, items, test), _rmse(users, items, validation)))
    of_test, of_validation = (tuple(zip(*curve, strict=True)) for curve in zip(*curves, strict=True))
    return Result(
        config,
        test=of_test,
        validation=of_validation,
        train=_rmse(users, items, train),
        constant=(test.values - train.values.mean()).square().mean().sqrt().item(),
        state=sum(optimizer.state[side.table]["sum"].nbytes for side in (users, items)) // len(config.lrs),
    )


@dataclass(frozen=True)
class _Samples:
    """Some of the ratings: users, items and values."""

    users: Tensor
    items: Tensor
    values: Tensor

    def at(self, where: Tensor) -> _Samples:
        return _Samples(self.users[where], self.items[where], self.values[where])

    def split(self, size: int) -> Iterator[_Samples]:
        return map(_Samples, self.users.split(size), self.items.split(size), self.values.split(size))


class _Side:
    """The users, or the items: their factors, measured in units of the learning rates."""

    def __init__(self, config: Config, start: Tensor, trained: Tensor) -> None:
        self.units = torch.tensor(config.lrs)[:, None]
        self.models = torch.arange(len(config.lrs))
        self.transposed = config.transposed
        rows, k = start.shape
        self.stack = start[:, None] / self.units  # (rows, models, k)
        # the table is a view of the stack, with one row per row and model, or one per row, or the transpose of that
        self.is_row = config.geometry == "row" and not config.transposed
        view = self.stack.view(-1, k) if self.is_row else self.stack.view(rows, -1)
        self.table = nn.Parameter(view.T if config.transposed else view)
        self.share = 1 / torch.bincount(trained, minlength=rows).clamp(min=1) if config.unbiased else None

    def factors(self, which: Tensor) -> Tensor:
        """(ratings, models, k)"""
        return self.stack.index_select(0, which).mul_(self.units)

    def decay(self, which: Tensor, factors: Tensor, decay: float) -> Tensor:
        return factors * (decay if self.share is None else decay * self.share[which, None, None])

    def set_gradient(self, which: Tensor, gradient: Tensor) -> None:
        if self.is_row and self.models.shape[0] > 1:
            which = (which[:, None] * self.models.shape[0] + self.models).flatten()
        if self.transposed:  # the gradient of columns is dense
            self.table.grad = torch.zeros_like(self.table.T).index_add_(0, which, gradient.flatten(1)).T
        else:
            values = gradient.view(which.shape[0], -1)
            self.table.grad = torch.sparse_coo_tensor(which[None], values, self.table.shape, check_invariants=False)


@torch.no_grad()
def _set_gradients(users: _Side, items: _Side, batch: _Samples, decay: float) -> None:
    r"""With e = u·v - r: ∂/∂u = 2 e v + λ u, ∂/∂v = 2 e u + λ v, for every rating of the batch."""
    u, v = users.factors(batch.users), items.factors(batch.items)
    error = (u * v).sum(2, keepdim=True).sub_(batch.values[:, None, None])
    users.set_gradient(batch.users, users.decay(batch.users, u, decay).addcmul_(error, v, value=2))
    items.set_gradient(batch.items, items.decay(batch.items, v, decay).addcmul_(error, u, value=2))


def _rmse(users: _Side, items: _Side, known: _Samples) -> tuple[float, ...]:
    squares = torch.zeros(len(users.models), dtype=torch.float64)
    for piece in known.split(max(1, PIECE // len(users.models))):
        products = users.factors(piece.users).mul_(items.factors(piece.items))
        squares += products.sum(2).sub_(piece.values[:, None]).square_().sum(0)
    rmse = squares.div_(max(1, len(known.values))).sqrt_().tolist()
    return tuple(value if math.isfinite(value) else math.inf for value in rmse)


def _split(config: Config, ratings: Ratings) -> tuple[_Samples, _Samples, _Samples]:
    """The training, validation and test ratings, the same for all optimizers."""
    known = _Samples(ratings.users, ratings.items, ratings.ratings.float())
    random = torch.Generator().manual_seed(config.seed)
    folds = list(torch.randperm(len(known.values), generator=random).tensor_split(FOLDS))
    test = folds.pop(config.fold)
    rest = torch.cat(folds)
    every_tenth = (torch.arange(len(rest)) % VALIDATION == 0).logical_and_(torch.tensor(config.validated))
    train = rest[~every_tenth]
    if config.centred:
        known = _Samples(known.users, known.items, known.values - known.values[train].mean())
    return known.at(train), known.at(rest[every_tenth]), known.at(test)


@functools.cache
def _ratings(path: Path | None) -> Ratings:
    return movielens(path)
