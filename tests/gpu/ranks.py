"""What each of two ranks does, on its own device: training over both follows a single process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from tests.distributed.engines import WIDTH, Network
from tests.gpu.launched import launched

BACKENDS = {"cpu": "gloo", "cuda": "nccl"}


def in_group(kind: str, store: str, body: Callable[..., Any], *args: Any) -> Any:
    """Call ``body(device, …)`` in a process group of the backend for this kind of device."""
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device(kind, rank) if kind == "cuda" else torch.device(kind)
    if kind == "cuda":
        torch.cuda.set_device(device)
    dist.destroy_process_group()
    options = {"device_id": device} if kind == "cuda" else {}
    dist.init_process_group(BACKENDS[kind], store=dist.FileStore(store, world), rank=rank, world_size=world, **options)
    return body(device, *args)


def fsdp(model: nn.Module, device: torch.device) -> nn.Module:
    fully_shard(model, mesh=init_device_mesh(device.type, (dist.get_world_size(),)))
    return model


def replicated(model: nn.Module, device: torch.device) -> nn.Module:
    ids = [device] if device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=ids, find_unused_parameters=True)


def follows_a_single_process(
    device: torch.device, engine: Callable[[nn.Module, torch.device], nn.Module], make: Callable[[Any], Any]
) -> set[str]:
    """All ranks see the same batches. Returns the names of the kernels that ran."""
    alone = Network().to(device)
    together = engine(Network().to(device), device)
    single, sharded = make(alone.parameters()), make(together.parameters())
    with launched() as names:
        for step in range(10):
            x = torch.randn(12, WIDTH, generator=torch.Generator().manual_seed(step)).to(device)
            for model, optimizer in ((alone, single), (together, sharded)):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
    for mine, theirs in zip(alone.parameters(), together.parameters(), strict=True):
        torch.testing.assert_close(_whole(theirs), mine.detach(), rtol=1e-5, atol=1e-5)
    return set(names)


def sparse_tables_follow(device: torch.device, make: Callable[[Any], Any]) -> set[str]:
    """Each rank looks up its half of a batch, and sparse gradients are gathered."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    alone, table = (nn.Embedding(50, 16, sparse=True).to(device) for _ in range(2))
    table.load_state_dict(alone.state_dict())
    model = DistributedDataParallel(table, device_ids=[device] if device.type == "cuda" else None)
    single, sharded = make(alone.parameters()), make(table.parameters())
    with launched() as names:
        for step in range(5):
            ids = torch.randint(50, (8,), generator=torch.Generator().manual_seed(step)).to(device)
            for lookup, optimizer, own in ((alone, single, ids), (model, sharded, ids.chunk(world)[rank])):
                optimizer.zero_grad()
                lookup(own).square().sum(1).mean().backward()
                optimizer.step()
    torch.testing.assert_close(table.weight.detach(), alone.weight.detach(), rtol=1e-5, atol=1e-5)
    return set(names)


def _whole(x: Tensor) -> Tensor:
    return x.detach().full_tensor() if isinstance(x, DTensor) else x.detach()
