"""The model and its training, the same for all contestants but for their tables."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel

from benchmarks.dlrm.peers import PEERS, SHARDED, Tables
from benchmarks.measure import Times, resident_bytes, time_interleaved
from matrix_adagrad.datasets.clicks import ClickBatch, Clicks, auc

__all__ = ["FULL", "QUICK", "Result", "Run", "Setting", "drawing_time", "speeds", "train", "train_sharded", "tune"]

_HELD_OUT = 1 << 20  # is added to the seed of the stream


@dataclass(frozen=True)
class Setting:
    """The size of everything."""

    tables: int = 26  # half of them with one id each, half with 0 to `ids`
    rows: int = 100_000
    width: int = 64
    ids: int = 10
    dense: int = 13
    batch: int = 2048
    steps: int = 500
    held_out: int = 20_480
    rates: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3)  # and on, while the best is the first or the last
    most_rates: int = 6

    @property
    def all_rows(self) -> list[int]:
        """The rows of each table."""
        return [self.rows] * self.tables

    def clicks(self, seed: int) -> Clicks:
        """The planted model."""
        single = self.tables // 2
        ids = [1] * single + [self.ids] * (self.tables - single)
        return Clicks(self.all_rows, ids=ids, dense=self.dense, seed=seed)


FULL = Setting()
QUICK = Setting(rows=500, width=8, ids=4, batch=256, steps=30, held_out=2000, rates=(0.03, 0.1), most_rates=3)


@dataclass(frozen=True)
class Run:
    """One training run; the seed decides the planted model, the start and the batches."""

    contestant: str
    lr: float
    seed: int
    setting: Setting
    threads: int


@dataclass(frozen=True)
class Result:
    """What came of it. Memory is that of the process, and what it grew by after the imports; None if not on Linux."""

    auc: float
    ceiling: float
    samples_per_second: float
    peak_bytes: int | None
    grown_bytes: int | None


class Layers(nn.Module):
    """A DLRM without its tables: an MLP, the dot products of all pairs of vectors, another MLP."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        vectors = setting.tables + 1
        self.pairs = torch.triu_indices(vectors, vectors, offset=1)
        self.bottom = _mlp(setting.dense, 128, setting.width)
        self.top = _mlp(setting.width + self.pairs.shape[1], 256, 1)

    def forward(self, features: Tensor, rows: Tensor) -> Tensor:
        dense: Tensor = self.bottom(features)
        vectors = torch.cat([dense, rows], 1).view(len(dense), -1, dense.shape[1])
        dots = (vectors @ vectors.mT)[:, self.pairs[0], self.pairs[1]]
        odds: Tensor = self.top(torch.cat([dense, dots], 1)).squeeze(1)
        return odds


def _mlp(*sizes: int) -> nn.Sequential:
    layers = [layer for m, n in itertools.pairwise(sizes) for layer in (nn.Linear(m, n), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


class _Trainer:
    """A contestant's model. Layers are trained by Adam, with the same rate for all."""

    def __init__(
        self, make: Callable[[Sequence[int], int, float], Tables], lr: float, seed: int, setting: Setting
    ) -> None:
        torch.manual_seed(seed)
        self.layers: nn.Module = Layers(setting)
        if dist.is_initialized() and dist.get_world_size() > 1:
            self.layers = DistributedDataParallel(self.layers)
        self.optimizer = torch.optim.Adam(self.layers.parameters(), lr=1e-3)
        self.tables = make(setting.all_rows, setting.width, lr)
        random, bound = torch.Generator().manual_seed(seed), setting.rows**-0.5
        with torch.no_grad():
            for weight in self.tables.weights:
                weight.uniform_(-bound, bound, generator=random)

    def step(self, batch: ClickBatch) -> None:
        loss = binary_cross_entropy_with_logits(self.layers(batch.dense, self.tables.lookup(batch)), batch.clicked)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.tables.finish()

    def train(self, batches: Iterable[ClickBatch]) -> float:
        """The seconds that training took, without those in which batches are drawn and of the first steps."""
        seconds = 0.0
        for step, batch in enumerate(batches):
            start = time.perf_counter()
            self.step(batch)
            seconds += (time.perf_counter() - start) * (step >= _FIRST)
        return seconds

    def scores(self, batches: Iterable[ClickBatch]) -> tuple[Tensor, Tensor]:
        """The predicted and the true log-odds."""
        with torch.no_grad():
            found = [self.layers(batch.dense, self.tables.lookup(batch)) for batch in batches]
        return torch.cat(found), torch.cat([batch.clicked for batch in batches])


_FIRST = 3  # steps that are not timed


def train(run: Run) -> Result:
    """Train and judge on examples that are held out. For the memory to be its own, in a process of its own."""
    return _train(run, PEERS[run.contestant], 0, 1)


def tune(run: Run) -> dict[float, float]:
    """The AUC by rate. The grid grows until its best rate is neither the first nor the last."""
    tried: dict[float, float] = {}
    waiting = list(run.setting.rates)
    while waiting and len(tried) < run.setting.most_rates:
        lr = waiting.pop()
        tried[lr] = train(replace(run, lr=lr)).auc
        print(f"tuning {run.contestant}, rate {lr:g}: AUC {tried[lr]:.4f}", flush=True)
        best, first, last = max(tried, key=tried.__getitem__), min(tried), max(tried)
        if not waiting and best in (first, last):
            waiting = [_neighbour(best, 1 if best == last else -1)]
    return tried


def _neighbour(lr: float, way: int) -> float:
    """The next of 0.01, 0.03, 0.1, 0.3, … or the one before."""
    return float(f"{lr * 10 / 3 if way > 0 else lr / 3:.0e}")


def train_sharded(run: Run, rank: int, world: int, store: str) -> Result:
    """The same in one of several processes, which meet in a file. Each has its part of every batch."""
    limit = timedelta(minutes=10)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=limit)
    try:
        return _train(run, SHARDED[run.contestant], rank, world)
    finally:
        dist.destroy_process_group()


def _train(run: Run, make: Callable[[Sequence[int], int, float], Tables], rank: int, world: int) -> Result:
    torch.set_num_threads(run.threads)
    setting = run.setting
    _import(make)
    before = resident_bytes()
    trainer = _Trainer(make, run.lr, run.seed, setting)
    clicks, part = setting.clicks(run.seed), setting.batch // world
    stream = world * run.seed + rank
    seconds = trainer.train(itertools.islice(clicks.batches(part, stream), setting.steps))
    peak = resident_bytes(peak=True)
    held_out = itertools.islice(clicks.batches(part, stream + _HELD_OUT), max(1, setting.held_out // setting.batch))
    batches = list(held_out)
    scores, clicked = trainer.scores(batches)
    odds = torch.cat([batch.odds for batch in batches])
    if world > 1:
        found: list[Tensor] = [torch.empty(0)] * world
        dist.all_gather_object(found, torch.stack([scores, clicked, odds]))
        scores, clicked, odds = torch.cat(found, 1)
    return Result(
        auc(scores, clicked),
        auc(odds, clicked),
        setting.batch * (setting.steps - _FIRST) / seconds,
        peak,
        None if peak is None or before is None else peak - before,
    )


def _import(make: Callable[[Sequence[int], int, float], Tables]) -> None:
    """Import what the tables need, by making small ones."""
    make([10, 10], 4, 1.0)


def drawing_time(setting: Setting, threads: int) -> float:
    """The seconds that it takes to draw a batch."""
    torch.set_num_threads(threads)
    batches = setting.clicks(0).batches(setting.batch)
    return time_interleaved({"batch": lambda: next(batches)}, 5)["batch"].median


def speeds(setting: Setting, lrs: dict[str, float], rounds: int, threads: int) -> dict[str, Times]:
    """The time of a training step of each contestant, interleaved in one process, on the same batches."""
    torch.set_num_threads(threads)
    pool = list(itertools.islice(setting.clicks(0).batches(setting.batch), rounds + 1))  # one for the first call
    calls = {}
    for name, lr in lrs.items():
        trainer, batches = _Trainer(PEERS[name], lr, 0, setting), itertools.cycle(pool)
        calls[name] = lambda trainer=trainer, batches=batches: trainer.step(next(batches))
    return time_interleaved(calls, rounds)
