"""Train embedding tables sharded by rows over processes by TorchRec, with RowAdaGrad: scales live with their rows.

    torchrun --standalone --nproc-per-node 2 examples/embedding_shards.py

Any number of processes prints the same losses, and none ever holds a whole table. Needs torchrec and fbgemm-gpu-cpu.
"""

import gc
import os
import resource

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
from torchrec.distributed.types import ShardingEnv, ShardingPlan

from matrix_adagrad import RowAdaGrad

ROWS = int(os.environ.get("ROWS", "100001"))  # of the larger table
WIDTH, BATCH, BAG, STEPS = 32, 1024, 5, 50  # BATCH is the global batch size; BAG is the number of ids per example


class Clicks(nn.Module):
    """The log-odds of a click: a linear function of the embeddings of a user and of items."""

    def __init__(self, rows: dict[str, int]) -> None:
        super().__init__()
        start = {"weight_init_min": 0.0, "weight_init_max": 0.0}
        tables = [EmbeddingBagConfig(n, WIDTH, name=name, feature_names=[name], **start) for name, n in rows.items()]
        self.tables = EmbeddingBagCollection(tables, device=torch.device("meta"))
        self.odds = nn.Linear(WIDTH * len(rows), 1)

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        return self.odds(self.tables(features).values()).squeeze(1)


def batches(rows: dict[str, int], rank: int, world: int):
    """Yield this process's part of every batch; a click depends on which ids are odd."""
    random, mine = torch.Generator().manual_seed(0), slice(rank * BATCH // world, (rank + 1) * BATCH // world)
    for _ in range(STEPS):
        ids = [(n * torch.rand(BATCH, BAG, generator=random) ** 3).long() for n in rows.values()]
        clicked = (sum(own % 2 for own in ids).sum(1) > BAG).float()[mine]
        values, lengths = torch.cat([own[mine].flatten() for own in ids]), torch.full((len(ids) * len(clicked),), BAG)
        yield KeyedJaggedTensor(list(rows), values, lengths=lengths), clicked


def main() -> None:
    dist.init_process_group("gloo")
    rank, world, rows = dist.get_rank(), dist.get_world_size(), {"user": ROWS, "item": ROWS // 5}
    torch.manual_seed(0)
    model, sharder = Clicks(rows), EmbeddingBagCollectionSharder()
    # The "dense" kernel leaves the step to us. TorchRec's planner would not choose it, so we write the plan ourselves.
    by_rows = {name: row_wise(compute_kernel="dense") for name in rows}
    plan = ShardingPlan({"tables": construct_module_sharding_plan(model.tables, by_rows, sharder, world, world, "cpu")})
    env, before = ShardingEnv.from_process_group(dist.group.WORLD), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model = DistributedModelParallel(model, env, torch.device("cpu"), plan, [sharder])
    optimizer = RowAdaGrad(model.named_parameters(), lr=0.1)
    for step, (features, clicked) in enumerate(batches(rows, rank, world)):
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(model(features), clicked)
        loss.backward()  # the mean over this part of the batch; TorchRec averages over processes
        optimizer.step()
        dist.all_reduce(mean := loss.detach() / world)
        if rank == 0 and (step % 10 == 0 or step == STEPS - 1):
            print(f"step {step:4}  loss {mean:.5f}", flush=True)
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    state = sum(own["sum"].nbytes for own in optimizer.state.values())
    dist.all_gather_object(held := [""] * world, f"{state:,} bytes of state, peak {peak} MiB")
    print("".join(f"rank {i} of {world}: {words}\n" for i, words in enumerate(held) if rank == 0), end="")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drop the last references to the process group: its threads must not outlive us
