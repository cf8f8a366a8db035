"""A training step of embedding tables, from one to a hundred: forward, backward and update."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Adagrad

from benchmarks.speed.peers import named_gap
from matrix_adagrad import EmbeddingBags, RowAdaGrad, step_in_backward

__all__ = ["BARS", "CONTESTANTS", "FBGEMM", "IN_BACKWARD", "SHAPES", "TORCH", "Shape"]

TORCH = "nn.EmbeddingBag, torch Adagrad"
IN_BACKWARD = "EmbeddingBags, RowAdaGrad in the backward pass"
FBGEMM = "FBGEMM, EXACT_ROWWISE_ADAGRAD"
BARS = {False: 2.5, True: 1.6}  # FBGEMM's time over ours, at least: for uniform ids, and for ids by Zipf's law


@dataclass(frozen=True)
class Shape:
    """Tables of one size, and a batch of bags of each."""

    tables: int
    rows: int
    width: int
    batch: int
    ids: int  # in a bag
    exponent: float | None = None  # of Zipf's law; None: uniform

    @property
    def title(self) -> str:
        """The shape in words."""
        tables = f"{self.tables} × " if self.tables > 1 else "one table of "
        law = "uniform" if self.exponent is None else f"Zipf({self.exponent:g})"
        return f"{tables}{self.rows:,} × {self.width}, batch {self.batch} × {self.ids}, {law}"

    @property
    def parameter_bytes(self) -> int:
        """Of all tables, in float32."""
        return self.tables * self.rows * self.width * 4

    def draw(self) -> Tensor:
        """The ids of a batch, table by table."""
        count = self.tables * self.batch * self.ids
        if self.exponent is None:
            return torch.randint(self.rows, (count,))
        return zipf(self.exponent, self.rows, count)

    def offsets(self) -> Tensor:
        """Where each bag starts, and where the last one ends."""
        return torch.arange(0, self.tables * self.batch * self.ids + 1, self.ids)


def zipf(exponent: float, rows: int, *shape: int) -> Tensor:
    """Ranks 1 to rows with probability proportional to rank^-exponent, scattered over the table."""
    weights = torch.arange(1, rows + 1, dtype=torch.float64).pow(-exponent).cumsum(0)
    ranks = torch.searchsorted(weights, torch.rand(shape, dtype=torch.float64) * weights[-1])
    return ranks.clamp_(max=rows - 1) * 7919 % rows  # a prime, so that this reaches each row once, in another order


SHAPES = (
    Shape(26, 100_000, 64, 2048, 1),
    Shape(26, 100_000, 64, 2048, 1, 1.2),
    Shape(26, 100_000, 32, 2048, 10),
    Shape(100, 10_000, 16, 512, 3),
    Shape(1, 1_000_000, 64, 4096, 20),
    Shape(1, 1_000_000, 64, 4096, 20, 1.2),
    Shape(1, 1_000_000, 128, 256, 5),
)

Batches = Callable[[], Tensor]
Step = Callable[[], None]


def _torch(shape: Shape, batches: Batches, upstream: Tensor) -> Step:
    bags = [nn.EmbeddingBag(shape.rows, shape.width, mode="sum", sparse=True) for _ in range(shape.tables)]
    optimizer = Adagrad([bag.weight for bag in bags], lr=1e-2)

    def step() -> None:
        optimizer.zero_grad()
        ids = batches().view(shape.tables, shape.batch, shape.ids)
        torch.cat([bag(own) for bag, own in zip(bags, ids, strict=True)], 1).backward(upstream)
        optimizer.step()

    return step


def _ours(shape: Shape, batches: Batches, upstream: Tensor) -> Step:
    bags, optimizer = _bags(shape)
    offsets = shape.offsets()

    def step() -> None:
        optimizer.zero_grad()
        bags(batches(), offsets).backward(upstream)
        optimizer.step()

    return step


def _in_backward(shape: Shape, batches: Batches, upstream: Tensor) -> Step:
    bags, optimizer = _bags(shape)
    offsets, handle = shape.offsets(), step_in_backward(optimizer)

    def step(_: object = handle) -> None:
        bags(batches(), offsets).backward(upstream)

    return step


def _bags(shape: Shape) -> tuple[EmbeddingBags, RowAdaGrad]:
    bags = EmbeddingBags({f"table {i}": (shape.rows, shape.width) for i in range(shape.tables)})
    return bags, RowAdaGrad(bags.parameters(), lr=1e-2)


def _fbgemm(shape: Shape, batches: Batches, upstream: Tensor) -> Step:
    """FBGEMM's table-batched embedding, which updates its tables in the backward pass."""
    with named_gap("fbgemm-gpu-cpu"):
        from fbgemm_gpu.split_embedding_configs import EmbOptimType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
            ComputeDevice,
            SplitTableBatchedEmbeddingBagsCodegen,
        )

        table = (shape.rows, shape.width, EmbeddingLocation.HOST, ComputeDevice.CPU)
        bags = SplitTableBatchedEmbeddingBagsCodegen(
            list(itertools.repeat(table, shape.tables)),
            optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
            learning_rate=1e-2,
            eps=1e-10,
        )
        bags.init_embedding_weights_uniform(-1.0, 1.0)
    offsets = shape.offsets()

    def step() -> None:
        bags(batches(), offsets).backward(upstream)

    return step


CONTESTANTS: dict[str, Callable[[Shape, Batches, Tensor], Step]] = {
    TORCH: _torch,
    "EmbeddingBags, RowAdaGrad": _ours,
    IN_BACKWARD: _in_backward,
    FBGEMM: _fbgemm,
}
