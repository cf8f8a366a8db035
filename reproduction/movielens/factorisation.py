r"""MovieLens 100K as a product of two tables of k factors (Figure 1).

.. math:: \min_{U, V} \sum_{(i, j) \in \Omega} (R_{ij} - u_i^\top v_j)^2 + \tfrac\lambda2 (\|U\|_F^2 + \|V\|_F^2)

A step on a batch takes its unbiased share of the penalty: for each rating of a user with n of them, λ u/n.

A cell trains a stack of models side by side: runs, each with its geometry, held-out ratings, start and shuffles, and
for each run several learning rates. All factors are in one tensor, and the geometry keeps the models independent. A
run has rows of its own. With S rates, each entry of a row of S·k entries belongs to one model only, and so does each
column of a run. The models' rows are separate rows of a table of S times as many rows that shares the same memory.

AdaGrad moves a parameter by η G/√V, and G/√V does not depend on the unit of G. So if a model's parameters are measured
in units of its η, p = u/η and q = v/η, then G/η = 2 (η² p·q - R) q + λ p/n, its steps have rate 1, and all models of a
stack can share an optimizer.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from matrix_adagrad.datasets.movielens import Ratings, movielens
from matrix_adagrad.optim import MatrixAdaGrad

__all__ = ["FOLDS", "STARTS", "Config", "Result", "Run", "run"]

FOLDS = 5
PIECE = 1 << 12  # products evaluated at once

# Initializations: functions of rows, k and a generator.
STARTS: dict[str, Callable[[int, int, torch.Generator], Tensor]] = {
    "N(0, 0.1²)": lambda rows, k, random: 0.1 * torch.randn(rows, k, generator=random),
    "N(0, 0.01²)": lambda rows, k, random: 0.01 * torch.randn(rows, k, generator=random),
    "N(0, 1)": lambda rows, k, random: torch.randn(rows, k, generator=random),
    "U(0, 1)/√k": lambda rows, k, random: torch.rand(rows, k, generator=random) / math.sqrt(k),
}


@dataclass(frozen=True)
class Run:
    """Models that are trained on the same batches from the same start, one per learning rate.

    Args:
        geometry: ``"row"``, ``"entry"`` or ``"column"``.
        held_out: the folds of the ratings that they are not trained on.
        lrs: the learning rates.
        seed: the start and the shuffles follow from it and from the folds.
    """

    geometry: str
    held_out: tuple[int, ...]
    lrs: tuple[float, ...]
    seed: int = 0

    def __post_init__(self) -> None:
        if self.geometry not in ("row", "entry", "column"):
            raise ValueError(f"geometry must be 'row', 'entry' or 'column', got {self.geometry!r}")
        if not set(self.held_out) < set(range(FOLDS)) or len(set(self.held_out)) < len(self.held_out):
            raise ValueError(f"held_out must be some of the folds 0 to {FOLDS - 1}, got {self.held_out}")
        if not self.lrs:
            raise ValueError("lrs must hold at least one learning rate")

    @property
    def stream(self) -> int:
        """The seed of its start and shuffles, the same for all geometries."""
        return (self.seed << FOLDS) + sum(1 << fold for fold in self.held_out)


@dataclass(frozen=True)
class Config:
    """A stack of models.

    Args:
        runs: the runs, with as many folds held out and as many learning rates each, sorted by geometry.
        batch: ratings per step; 0 means all of them.
        decay: λ.
        per_rating: whether λ u is added for each rating of the batch, and not only its share λ u / n.
        start: one of `STARTS`.
        centred: whether to subtract the mean of the training ratings first.
        transposed: whether an embedding is a column of its table instead of a row. Needs single learning rates.
        epochs: passes over the training ratings.
        measured: the epochs after which the RMSE on the held-out ratings is measured.
        trained: the epochs after which the RMSE on the training ratings is measured.
    """

    runs: tuple[Run, ...]
    batch: int = 1024
    decay: float = 0.02
    per_rating: bool = False
    start: str = "N(0, 0.1²)"
    centred: bool = False
    transposed: bool = False
    factors: int = 20
    epochs: int = 30
    measured: tuple[int, ...] = (30,)
    trained: tuple[int, ...] = (30,)

    def __post_init__(self) -> None:
        if self.start not in STARTS:
            raise ValueError(f"start must be one of {', '.join(STARTS)}, got {self.start!r}")
        if not self.runs or len({(len(run.held_out), len(run.lrs)) for run in self.runs}) > 1:
            raise ValueError(f"runs must hold out as many folds and have as many learning rates each, got {self.runs}")
        if list(self.runs) != sorted(self.runs, key=lambda run: run.geometry):
            raise ValueError(f"runs must be sorted by geometry, got {[run.geometry for run in self.runs]}")
        if self.transposed and len(self.runs[0].lrs) > 1:
            raise ValueError(f"a run with transposed storage must have one learning rate, got {self.runs[0].lrs}")
        for name, epochs in (("measured", self.measured), ("trained", self.trained)):
            if not epochs or list(epochs) != sorted(set(epochs) & set(range(1, self.epochs + 1))):
                raise ValueError(f"{name} must be ascending epochs from 1 to {self.epochs}, got {epochs}")

    @property
    def cost(self) -> float:
        """The estimated run time, in seconds."""
        ratings = 100_000 * (1 - len(self.runs[0].held_out) / FOLDS)
        steps = math.ceil(ratings / self.batch) if self.batch else 1
        runs, models = len(self.runs), len(self.runs[0].lrs)
        return self.epochs * (4e-4 * steps + ratings * runs * (1e-7 + 1e-7 * models))


@dataclass(frozen=True)
class Result:
    """What was measured. A diverged model has an RMSE of inf.

    Args:
        config: the cell.
        held_out: for each run, each of its folds and each learning rate, the RMSE after each measured epoch.
        train: for each run and learning rate, the RMSE on the training ratings after each epoch in `trained`.
        constant: for each run, the RMSE on its first fold of predicting the mean of the training ratings.
        state: for each run, the optimizer's memory in bytes, for one model.
    """

    config: Config
    held_out: tuple[tuple[tuple[tuple[float, ...], ...], ...], ...]
    train: tuple[tuple[tuple[float, ...], ...], ...]
    constant: tuple[float, ...]
    state: tuple[int, ...]


@torch.no_grad()
def run(config: Config, path: Path | None = None) -> Result:
    """Train the stack on MovieLens 100K, from ``path`` or from wherever `movielens` finds it."""
    ratings = _ratings(path)
    splits = [_split(ratings, run.held_out, config.centred) for run in config.runs]
    trained = [split[0] for split in splits]
    randoms = [torch.Generator().manual_seed(run.stream) for run in config.runs]
    sizes = int(ratings.users.max()) + 1, int(ratings.items.max()) + 1
    stack = _Stack(config, sizes, trained, randoms)
    optimizer = MatrixAdaGrad(stack.groups, lr=1.0)
    held_out, train_rmse = [], []
    for epoch in range(1, config.epochs + 1):
        orders = [torch.randperm(len(trained[0]), generator=random) for random in randoms]
        for batch in _Samples.stacked(trained, orders).split(config.batch or len(trained[0])):
            stack.set_gradients(batch)
            optimizer.step()
        if epoch in config.measured:
            held_out.append([[stack.rmse(r, part) for part in split[1:]] for r, split in enumerate(splits)])
        if epoch in config.trained:
            train_rmse.append([stack.rmse(r, some) for r, some in enumerate(trained)])
    means = [(train.values.mean(), test.values) for train, test, *_ in splits]
    return Result(
        config,
        held_out=_epochs_last(held_out, 3),
        train=_epochs_last(train_rmse, 2),
        constant=tuple((test - mean).square().mean().sqrt().item() for mean, test in means),
        state=tuple(stack.state_bytes(optimizer, r) for r in range(len(splits))),
    )


@dataclass(frozen=True)
class _Samples:
    """Ratings: the rows of U and of V (2, …, ratings), and their values (…, ratings)."""

    rows: Tensor
    values: Tensor

    def __len__(self) -> int:
        return self.values.shape[-1]

    def at(self, where: Tensor) -> _Samples:
        return _Samples(self.rows.index_select(-1, where), self.values.index_select(-1, where))

    def split(self, size: int) -> Iterator[_Samples]:
        return map(_Samples, self.rows.split(size, -1), self.values.split(size, -1))

    @staticmethod
    def stacked(runs: list[_Samples], orders: list[Tensor]) -> _Samples:
        shuffled = [run.at(order) for run, order in zip(runs, orders, strict=True)]
        return _Samples(torch.stack([run.rows for run in shuffled], 1), torch.stack([run.values for run in shuffled]))


@dataclass(frozen=True)
class _Table:
    """What the optimizer sees: the users or the items of some runs, as a parameter that shares the stack's memory."""

    geometry: str
    side: int
    runs: slice
    first: int
    parameter: nn.Parameter


class _Stack:
    """The factors of all models, in units of their learning rates: the users of all runs, then the items."""

    def __init__(
        self, config: Config, sizes: tuple[int, int], trained: list[_Samples], randoms: list[torch.Generator]
    ) -> None:
        self.transposed = config.transposed
        self.units = torch.tensor([run.lrs for run in config.runs])  # (runs, models)
        runs, self.models = self.units.shape
        starts = [[STARTS[config.start](size, config.factors, random) for size in sizes] for random in randoms]
        scaled = [start[side][:, None] / self.units[r, :, None] for side in (0, 1) for r, start in enumerate(starts)]
        self.factors = torch.cat(scaled)  # (rows of all runs, models, k)
        rows_before = itertools.accumulate((size for size in sizes for _ in range(runs)), initial=0)
        self.first = torch.tensor(list(rows_before)[:-1]).view(2, runs)
        counts = [torch.bincount(some.rows[side], minlength=sizes[side]) for side in (0, 1) for some in trained]
        share = torch.ones(len(self.factors)) if config.per_rating else 1 / torch.cat(counts).clamp(min=1)
        self.decay = config.decay * share
        self.tables = list(self._tables(config, sizes))

    def _tables(self, config: Config, sizes: tuple[int, int]) -> Iterator[_Table]:
        """One per geometry and side. But columns, and transposed rows, must not mix runs: these have tables each."""
        geometries = [run.geometry for run in config.runs]
        for geometry in dict.fromkeys(geometries):
            start, count = geometries.index(geometry), geometries.count(geometry)
            width = 1 if geometry == "column" or self.transposed else count
            for side, r in itertools.product((0, 1), range(start, start + count, width)):
                first = int(self.first[side, r])
                own = self.factors[first : first + width * sizes[side]]
                view = own.flatten(0, 1) if self._has_joint_rows(geometry) else own.flatten(1)
                table = nn.Parameter(view.T if self.transposed else view)
                yield _Table(geometry, side, slice(r, r + width), first, table)

    def _has_joint_rows(self, geometry: str) -> bool:
        return geometry == "row" and not self.transposed

    def set_gradients(self, batch: _Samples) -> None:
        """With e = η² p·q - R: ∂/∂p = 2 e q + λ p/n, ∂/∂q = 2 e p + λ q/n, for every rating of the batch."""
        rows = batch.rows + self.first[..., None]
        flat = rows.flatten()
        p, q = factors = self.factors.index_select(0, flat).view(*rows.shape, self.models, -1)
        error = (p * q).sum(-1, keepdim=True).mul_(self.units.square()[:, None, :, None])
        error = error.sub_(batch.values[..., None, None]).mul_(2)
        gradients = factors * self.decay.index_select(0, flat).view(*rows.shape, 1, 1)
        gradients[0].addcmul_(error, q)
        gradients[1].addcmul_(error, p)
        for own in self.tables:
            which, gradient = rows[own.side, own.runs].flatten() - own.first, gradients[own.side, own.runs]
            if self._has_joint_rows(own.geometry) and self.models > 1:
                which = (which[:, None] * self.models + torch.arange(self.models)).flatten()
            own.parameter.grad = self._gradient(own.parameter, which, gradient.reshape(len(which), -1))

    def _gradient(self, table: Tensor, rows: Tensor, values: Tensor) -> Tensor:
        if self.transposed:  # the gradient of columns is dense
            return torch.zeros_like(table.T).index_add_(0, rows, values).T
        return torch.sparse_coo_tensor(rows[None], values, table.shape, check_invariants=False)

    @property
    def groups(self) -> list[dict[str, Any]]:
        """The optimizer's parameter groups."""
        by_geometry = itertools.groupby(self.tables, lambda own: own.geometry)
        return [{"params": [own.parameter for own in some], "geometry": name} for name, some in by_geometry]

    def state_bytes(self, optimizer: MatrixAdaGrad, run: int) -> int:
        """The optimizer's memory for one model of a run."""
        total = 0
        for own in self.tables:
            runs = range(own.runs.start, own.runs.stop)
            total += (run in runs) * optimizer.state[own.parameter]["sum"].nbytes // (len(runs) * self.models)
        return total

    def rmse(self, run: int, known: _Samples) -> tuple[float, ...]:
        """The RMSE of the models of a run."""
        squares = torch.zeros(self.models, dtype=torch.float64)
        for piece in known.split(max(1, PIECE // self.models)):
            p, q = (self.factors.index_select(0, rows) for rows in piece.rows + self.first[:, run, None])
            products = p.mul_(q).sum(2).mul_(self.units[run].square())
            squares += products.sub_(piece.values[:, None]).square_().sum(0)
        rmse = squares.div_(max(1, len(known))).sqrt_().tolist()
        return tuple(value if math.isfinite(value) else math.inf for value in rmse)


def _split(ratings: Ratings, held_out: tuple[int, ...], centred: bool) -> list[_Samples]:
    """The training ratings, then each fold that is held out. The folds are the same for all cells."""
    known = _Samples(torch.stack([ratings.users, ratings.items]), ratings.ratings.float())
    random = torch.Generator().manual_seed(0)
    folds = torch.randperm(len(known), generator=random).tensor_split(FOLDS)
    train = torch.cat([fold for number, fold in enumerate(folds) if number not in held_out])
    if centred:
        known = _Samples(known.rows, known.values - known.values[train].mean())
    return [known.at(train), *(known.at(folds[number]) for number in held_out)]


def _epochs_last(measured: list[Any], depth: int) -> Any:
    """Turn lists by epoch of lists by … into tuples by … of tuples by epoch."""
    if not depth:
        return tuple(measured)
    return tuple(_epochs_last(list(some), depth - 1) for some in zip(*measured, strict=True))


@functools.cache
def _ratings(path: Path | None) -> Ratings:
    return movielens(path)
