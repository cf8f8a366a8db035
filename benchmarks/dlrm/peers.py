"""What the contestants differ in: the tables and their optimizer, which is AdaGrad, by row in all but torch's own.

Each takes the rows of the tables, their width and a learning rate, and imports what it needs.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from matrix_adagrad import EmbeddingBags, RowAdaGrad, step_in_backward
from matrix_adagrad.datasets.clicks import ClickBatch

__all__ = ["FBGEMM", "OURS", "PEERS", "SHARDED", "TORCH", "TORCHREC", "TUNED_AS", "Tables", "gap"]

OURS, TORCHREC, FBGEMM, TORCH = "matrix-adagrad", "TorchRec + FBGEMM", "FBGEMM alone", "torch"
TORCHREC_OURS = "TorchRec, RowAdaGrad"
EPS = 1e-8

# Whose rate each takes: AdaGrad by row is the same algorithm in all packages, and its steps are the same.
TUNED_AS = {OURS: OURS, TORCHREC: OURS, FBGEMM: OURS, TORCH: TORCH, TORCHREC_OURS: OURS}


@dataclass(frozen=True)
class Tables:
    """Tables with their optimizer.

    Attributes:
        lookup: the sums of all bags of a batch, ``(examples, tables × width)``.
        weights: what this process holds of each table, to be initialized.
        finish: the step after the backward pass, or nothing if that was in it.
    """

    lookup: Callable[[ClickBatch], Tensor]
    weights: Sequence[Tensor]
    finish: Callable[[], object]


def gap(name: str) -> str | None:
    """Why a contestant cannot run here, or None."""
    needs = {TORCHREC: ("torchrec", "fbgemm_gpu"), FBGEMM: ("fbgemm_gpu",), TORCHREC_OURS: ("torchrec", "fbgemm_gpu")}
    missing = [package for package in needs.get(name, ()) if importlib.util.find_spec(package) is None]
    return f"{' and '.join(missing)} not installed" if missing else None


def _ours(rows: Sequence[int], width: int, lr: float) -> Tables:
    bags = EmbeddingBags({f"t{i}": (n, width) for i, n in enumerate(rows)}, mode="sum")
    handle = step_in_backward(RowAdaGrad(bags.parameters(), lr=lr, eps=EPS, reduction="mean"))
    return Tables(lambda batch: bags(batch.index, batch.offsets), list(bags.tables.values()), lambda: handle)


def _fbgemm(rows: Sequence[int], width: int, lr: float) -> Tables:
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    bags = SplitTableBatchedEmbeddingBagsCodegen(
        [(n, width, EmbeddingLocation.HOST, ComputeDevice.CPU) for n in rows],
        optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        learning_rate=lr,
        eps=EPS,
    )
    return Tables(lambda batch: bags(batch.index, batch.offsets), bags.split_embedding_weights(), lambda: None)


def _torch(rows: Sequence[int], width: int, lr: float) -> Tables:
    bags = nn.ModuleList(nn.EmbeddingBag(n, width, mode="sum", sparse=True, include_last_offset=True) for n in rows)
    optimizer = torch.optim.Adagrad(bags.parameters(), lr=lr, eps=EPS)

    def lookup(batch: ClickBatch) -> Tensor:
        size = len(batch.dense)
        ends = batch.offsets[::size].tolist()
        sums = [
            bag(batch.index[ends[t] : ends[t + 1]], batch.offsets[t * size : (t + 1) * size + 1] - ends[t])
            for t, bag in enumerate(bags)
        ]
        return torch.cat(sums, 1)

    def finish() -> None:
        optimizer.step()
        optimizer.zero_grad()

    return Tables(lookup, list(bags.parameters()), finish)


def _torchrec(rows: Sequence[int], width: int, lr: float, kernel: str = "fused") -> Tables:
    """TorchRec's module, by rows over all processes. The fused kernel is FBGEMM's; the dense one leaves us the step."""
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
    from torchrec.distributed.types import ShardingEnv, ShardingPlan
    from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
    from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    names, world, sharder = [f"t{i}" for i in range(len(rows))], dist.get_world_size(), EmbeddingBagCollectionSharder()
    configs = [
        EmbeddingBagConfig(n, width, name=name, feature_names=[name]) for name, n in zip(names, rows, strict=True)
    ]
    bags: Any = EmbeddingBagCollection(configs, device=torch.device("meta"))
    if kernel == "fused":
        apply_optimizer_in_backward(RowWiseAdagrad, bags.parameters(), {"lr": lr, "eps": EPS})
    by_rows = {name: row_wise(compute_kernel=kernel) for name in names}
    plan = ShardingPlan({"": construct_module_sharding_plan(bags, by_rows, sharder, world, world, "cpu")})
    env, cpu = ShardingEnv.from_process_group(dist.group.WORLD), torch.device("cpu")
    model = DistributedModelParallel(bags, env, cpu, plan, [sharder], init_data_parallel=False)

    def lookup(batch: ClickBatch) -> Tensor:
        sums: Tensor = model(KeyedJaggedTensor(names, batch.index, lengths=batch.offsets.diff())).values()
        return sums

    finish: Callable[[], object] = lambda: None  # noqa: E731
    if kernel == "dense":
        optimizer = RowAdaGrad(model.parameters(), lr=lr, eps=EPS, reduction="mean")

        def finish() -> None:
            optimizer.step()
            optimizer.zero_grad()

    return Tables(lookup, [param.detach() for param in model.parameters()], finish)


PEERS: dict[str, Callable[[Sequence[int], int, float], Tables]] = {
    OURS: _ours,
    TORCHREC: _torchrec,
    FBGEMM: _fbgemm,
    TORCH: _torch,
}
# Over several processes, by TorchRec's sharding.
SHARDED: dict[str, Callable[[Sequence[int], int, float], Tables]] = {
    TORCHREC_OURS: functools.partial(_torchrec, kernel="dense"),
    TORCHREC: _torchrec,
}
