"""Train a network sharded by FSDP2, with one scale per row, and keep going after any process is killed.

    torchrun --standalone --nproc-per-node 2 --max-restarts 3 examples/fsdp2_train.py

Kill a process while it runs: torchrun restarts them all, and they resume from the last checkpoint, even one saved by a
different number of processes. Set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, or torch 2.13 tries to reach the dead ones.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from matrix_adagrad import RowMomentum
from matrix_adagrad.checkpoints import Checkpoints

WIDTH, LAYERS, BATCH = 64, 4, 256


def make_model() -> nn.Module:
    torch.manual_seed(0)  # all processes start from the same weights
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 1))


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a batch that depends only on the step and the rank, so that a resumed run sees the same data."""
    x = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(1000 * step + rank))
    return x, x[:, :4].sum(1, keepdim=True).sin()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--every", type=int, default=50, help="steps from one checkpoint to the next")
    parser.add_argument("--folder", default="results/fsdp2_train")
    options = parser.parse_args()

    dist.init_process_group()
    rank, mesh = dist.get_rank(), init_device_mesh("cpu", (dist.get_world_size(),))
    model = make_model()
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = RowMomentum(model.parameters(), lr=0.01)
    checkpoints = Checkpoints(options.folder, model, optimizer)

    first = checkpoints.resume()
    if rank == 0 and first:
        print(f"resuming after step {first} of {options.steps}", flush=True)
    for step in range(first, options.steps):
        x, y = batch(step, rank)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % options.every == 0 or step + 1 == options.steps:
            checkpoints.save(step + 1)
            mean = loss.detach() / dist.get_world_size()
            dist.all_reduce(mean)
            if rank == 0:
                print(f"step {step + 1:5}  loss {mean.item():.6f}", flush=True)

    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        scales = optimizer.state[model[0][0].weight]["exp_avg_sq"]
        print(
            f"rank 0 holds {scales.to_local().numel()} of the {scales.numel()} scales of the first matrix", flush=True
        )
        torch.save(weights, f"{options.folder}/weights.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
