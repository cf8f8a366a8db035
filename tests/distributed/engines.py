"""Models under PyTorch's own distributed engines, next to the same model in a single process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from tests.distributed.layouts import assert_same, mesh_of

WIDTH, HIDDEN = 10, 12  # neither is a multiple of 4 and of 3: shards are uneven


class Network(nn.Module):
    """A normalised layer, two matrices, and a parameter that never has a gradient."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH)
        self.unused = nn.Parameter(torch.ones(5, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.tanh(self.up(self.norm(x))))


def fsdp(model: nn.Module) -> nn.Module:
    fully_shard(model, mesh=mesh_of((torch.distributed.get_world_size(),)))
    return model


def offloaded(model: nn.Module) -> nn.Module:
    policy = CPUOffloadPolicy(pin_memory=False)
    fully_shard(model, mesh=mesh_of((torch.distributed.get_world_size(),)), offload_policy=policy)
    return model


def hsdp(model: nn.Module) -> nn.Module:
    fully_shard(model, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))
    return model


def tensor_parallel(model: nn.Module, mesh: Any = None) -> nn.Module:
    plan = {
        "norm": SequenceParallel(sequence_dim=0),  # its gradients are sums that are not taken yet
        "up": ColwiseParallel(input_layouts=Shard(0)),
        "down": RowwiseParallel(output_layouts=Replicate()),
    }
    return parallelize_module(model, mesh or mesh_of((torch.distributed.get_world_size(),)), plan)


def fsdp_and_tensor_parallel(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    tensor_parallel(model, mesh["tensor"])
    fully_shard(model, mesh=mesh["data"])
    return model


def replicated(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model, find_unused_parameters=True)


def assert_engine_follows(
    engine: Callable[[nn.Module], nn.Module], make: Callable[[Any], Any], prepare: Callable[[Any], Any] | None = None
) -> None:
    """All ranks see the same batch, so that the single process has the same gradients up to rounding.

    ``prepare`` is called with the optimizer under the engine.
    """
    alone, together = Network(), engine(Network())
    single, sharded = make(alone.parameters()), make(together.parameters())
    if prepare is not None:
        prepare(sharded)
    for step in range(20):
        x = torch.randn(12, WIDTH, generator=torch.Generator().manual_seed(step))
        for model, optimizer in ((alone, single), (together, sharded)):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    for mine, theirs in zip(alone.parameters(), together.parameters(), strict=True):
        assert_same(theirs.detach(), mine.detach(), exact=False, tolerance=TOLERANCE)


# Gradients of the engines differ from those of one process by rounding, and the training carries it on.
TOLERANCE = 1e-6
