"""The layouts that a parameter may have over a mesh, and runs on them next to the run of a single process."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import Placement
from torch.nn import Parameter

from matrix_adagrad import Blocks, Partition
from matrix_adagrad.optim.sharding import statistic_layouts
from matrix_adagrad.torch_private import StridedShard

# Even and uneven shards, shards without a row for some ranks, vectors, a scalar, a convolution, a batch of matrices.
SHAPES: tuple[tuple[int, ...], ...] = ((12, 8), (8, 2), (10, 6), (2, 14), (7,), (), (6, 4, 3, 3), (6, 2, 10))


@dataclass(frozen=True)
class Layout:
    """A mesh, and the placements of a tensor on it; dimensions that a tensor does not have are not sharded."""

    mesh: tuple[int, ...]
    placements: tuple[Placement, ...]

    def of(self, shape: Sequence[int]) -> tuple[Placement, ...]:
        return tuple(
            placement if placement.is_replicate() or placement.dim < len(shape) else Replicate()
            for placement in self.placements
        )

    @property
    def world(self) -> int:
        return torch.Size(self.mesh).numel()

    def __str__(self) -> str:
        over = "x".join(map(str, self.mesh))
        return over + "-" + "".join(str(placement) for placement in self.placements)


LAYOUTS: tuple[Layout, ...] = (
    *(Layout((world,), (placement,)) for world in (2, 3, 4) for placement in (Shard(0), Shard(1))),
    Layout((3,), (Replicate(),)),
    Layout((2, 2), (Replicate(), Shard(0))),  # HSDP
    Layout((2, 2), (Shard(0), Shard(1))),  # FSDP2 and a row-wise parallel layer
    Layout((2, 2), (StridedShard(0, split_factor=2), Shard(0))),  # FSDP2 and a column-wise parallel layer
    Layout((2, 2), (Shard(0), Shard(0))),
    Layout((2, 2), (Shard(1), Replicate())),
    Layout((3, 1), (Shard(0), Shard(1))),
    Layout((1, 2), (Shard(0), Shard(1))),
)


def random(shape: Sequence[int], seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator)
    return x * 10 ** torch.rand(shape, generator=generator)


mesh_of = functools.cache(functools.partial(init_device_mesh, "cpu"))


@functools.lru_cache(maxsize=1 << 12)
def gradient(
    shape: torch.Size, seed: int, mesh: DeviceMesh, placements: tuple[Placement, ...]
) -> tuple[Tensor, DTensor]:
    """The same one, whole and in shards."""
    whole = random(shape, seed)
    return whole, shared_out(whole, mesh, placements)


def shared_out(x: Tensor, mesh: DeviceMesh, placements: Sequence[Placement]) -> DTensor:
    """A tensor that all ranks have, in shards: each takes its own."""
    return distribute_tensor(x, mesh, placements, src_data_rank=None)


# The kernels add up every row and every column in an order of its own; where torch adds, it depends on the others.
NOT_IN_KERNELS = (Blocks(rows=2, columns=None),)


def assert_follows(
    make: Callable[[list[Parameter]], Any], layout: Layout, steps: int = 20, shapes: Sequence[Sequence[int]] = SHAPES
) -> None:
    """A run on the layout gives what a single process gives: to the bit, unless a sum crosses ranks."""
    mesh = mesh_of(layout.mesh)
    starts = [random(shape, seed) for seed, shape in enumerate(shapes)]
    alone = [Parameter(start.clone()) for start in starts]
    shared = [Parameter(shared_out(start, mesh, layout.of(start.shape))) for start in starts]
    single, sharded = make(alone), make(shared)
    for step in range(steps):
        for i, (mine, theirs) in enumerate(zip(alone, shared, strict=True)):
            mine.grad, theirs.grad = gradient(mine.shape, 100 * step + i, mesh, theirs.placements)
        single.step()
        sharded.step()
    geometry = single.param_groups[0]["geometry"]
    for mine, theirs in zip(alone, shared, strict=True):
        own = geometry.on(theirs.shape)
        crosses = any(layout.divided for layout in statistic_layouts(own, theirs.shape, theirs.placements))
        has_kernels = isinstance(own, Partition) and own not in NOT_IN_KERNELS
        exact = not crosses and has_kernels and single.param_groups[0].get("foreach", True) is None
        assert_same(theirs, mine, exact=exact)
        assert single.state[mine].keys() == sharded.state[theirs].keys()
        for key, value in single.state[mine].items():
            assert_same(sharded.state[theirs][key], value, exact=exact)


def assert_same(theirs: Tensor, mine: Tensor, *, exact: bool, tolerance: float = 1e-6) -> None:
    whole = theirs.full_tensor() if hasattr(theirs, "full_tensor") else theirs
    assert whole.shape == mine.shape
    assert whole.dtype == mine.dtype
    if exact:
        assert torch.equal(whole, mine), (whole - mine).abs().max()
    else:
        assert (whole - mine).abs().max() <= tolerance * mine.abs().max()
