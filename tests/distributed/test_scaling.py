"""The formulas of benchmarks/scaling.py give the bytes that real ranks hold and send."""

import math
from collections import Counter
from unittest import mock

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn import Parameter
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import markdown, scaling
from matrix_adagrad import Blocks, Factored, MatrixAdaGrad, MatrixMomentum
from matrix_adagrad.geometry import Column, Entry, Row, Whole
from matrix_adagrad.optim import sharding
from matrix_adagrad.optim.step.update import local
from matrix_adagrad.torch_private import StridedShard
from tests.distributed.layouts import SHAPES, Layout, mesh_of, random, shared_out

LAYOUTS = (
    *(Layout((world,), (Shard(dim),)) for world in (2, 3, 4) for dim in (0, 1)),
    Layout((2, 2), (Replicate(), Shard(0))),  # HSDP
    Layout((2, 2), (StridedShard(0, split_factor=2), Shard(0))),  # FSDP2 and a column-wise parallel layer
    Layout((2, 2), (Shard(0), Shard(1))),  # FSDP2 and a row-wise parallel layer
)
GEOMETRIES = (Row(), Column(), Entry(), Whole(), Blocks(rows=2), Factored(), Factored("minimum"))
OPTIMIZERS = {MatrixAdaGrad: scaling.adagrad, MatrixMomentum: scaling.momentum}
TENSORS = [*((shape, torch.float32) for shape in SHAPES), ((10, 6), torch.bfloat16), ((7,), torch.bfloat16)]


def local_bytes(tensors):
    return sum(local(x).nbytes for x in tensors)


class Collectives(TorchDispatchMode):
    """Counts the bytes of what is made whole by each kind of collective: gathered, scattered or added up."""

    def __init__(self):
        super().__init__()
        self.bytes = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if DTensor in types:
            return NotImplemented
        if "c10d" in func.namespace:
            tensors = [x for arg in args for x in (arg if isinstance(arg, list) else [arg]) if torch.is_tensor(x)]
            self.bytes[func._opname] += max(x.nbytes for x in tensors)
        return func(*args, **(kwargs or {}))


def counted(layout, geometry):
    """With each optimizer, what this rank holds after a step, and what the step adds up over each dimension."""
    return {optimizer: counted_with(optimizer, layout, geometry) for optimizer in OPTIMIZERS}


def counted_with(optimizer, layout, geometry):
    mesh = mesh_of(layout.mesh)
    starts = [random(shape, seed).to(dtype) for seed, (shape, dtype) in enumerate(TENSORS)]
    params = [Parameter(shared_out(start, mesh, layout.of(start.shape))) for start in starts]
    stepping = optimizer(params, lr=0.1, geometry=geometry)
    for param, start in zip(params, starts, strict=True):
        param.grad = shared_out(start, mesh, param.placements)
    dims = {mesh.get_group(dim): dim for dim in range(mesh.ndim)}
    payloads, calls, all_reduce = Counter(), Counter(), sharding.dist.all_reduce

    def counting(flat, *args, group, **options):
        calls[dims[group]] += 1
        payloads[dims[group]] += flat.nbytes
        return all_reduce(flat, *args, group=group, **options)

    with mock.patch.object(sharding.dist, "all_reduce", counting), Collectives() as everything:
        stepping.step()
    assert everything.bytes == ({"allreduce_": payloads.total()} if calls else {}), "a step sends something else"
    state = [value for param in params for key, value in stepping.state[param].items() if key != "step"]
    return {
        "at": mesh.get_coordinate(),
        "parameters": local_bytes(params),
        "gradients": local_bytes(param.grad for param in params),
        "state": local_bytes(state),
        "payloads": dict(payloads),
        "calls": dict(calls),
    }


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_ranks_hold_and_send_what_the_formulas_say(ranks, layout, geometry):
    params, mesh = [scaling.ParameterSpec(shape, layout.of(shape), dtype) for shape, dtype in TENSORS], layout.mesh
    results = ranks.run(layout.world, counted, layout, geometry)
    for optimizer, formula in OPTIMIZERS.items():
        kind, found = formula(geometry), [result[optimizer] for result in results]
        for rank in found:
            payloads = scaling.payloads(params, kind, mesh, rank["at"])
            assert rank == {
                "at": rank["at"],
                "parameters": scaling.parameter_bytes(params, mesh, rank["at"]),
                "gradients": scaling.parameter_bytes(params, mesh, rank["at"]),
                "state": scaling.state_bytes(params, kind, mesh, rank["at"]),
                "payloads": payloads,
                "calls": dict.fromkeys(payloads, 1),
            }
        assert scaling.parameter_bytes(params, mesh) == max(rank["parameters"] for rank in found)
        assert scaling.state_bytes(params, kind, mesh) == max(rank["state"] for rank in found)
        if layout.placements[-1] == Shard(0) and geometry in (Row(), Entry()):
            assert not any(rank["calls"] for rank in found)


def moved_by_fsdp(mesh):
    """What FSDP2 itself makes whole, with layers that are not divided evenly."""
    model = nn.Sequential(nn.Linear(6, 10), nn.Linear(10, 7))
    named = init_device_mesh("cpu", mesh, mesh_dim_names=("replicas", "shards")[-len(mesh) :])
    for module in (*model, model):
        fully_shard(module, mesh=named, reshard_after_forward=True)
    with Collectives() as collectives:
        model(torch.ones(2, 6)).sum().backward()
    return dict(collectives.bytes)


@pytest.mark.parametrize("mesh", [(3,), (2, 2)], ids=str)
def test_fsdp_moves_what_the_formulas_say(ranks, mesh):
    layout = (Replicate(), Shard(0))[-len(mesh) :]
    params = [scaling.ParameterSpec(shape, layout) for shape in ((10, 6), (10,), (7, 10), (7,))]
    replicas = 0 if len(mesh) == 2 else None
    moved = scaling.fsdp_traffic(params, mesh, len(mesh) - 1, replicas, torch.float32, torch.float32)
    for found in ranks.run(math.prod(mesh), moved_by_fsdp, mesh):
        ranks_of_shards = mesh[-1]  # of what is gathered or scattered, each of them sends all shares but one
        assert found.pop("_allgather_base_") * (ranks_of_shards - 1) == moved.gathered * ranks_of_shards
        assert found.pop("_reduce_scatter_base_") * (ranks_of_shards - 1) == moved.scattered * ranks_of_shards
        assert scaling.ring_all_reduce(found.pop("allreduce_", 0), mesh[0]) == moved.replicas
        assert not found


def test_the_page_has_the_current_tables():
    page = scaling.PAGE.read_text(encoding="utf-8")
    assert markdown.with_blocks(page, scaling.BLOCKS) == page
    assert page.count("<!-- begin: ") == len(scaling.BLOCKS)


def test_a_page_without_a_block_is_refused():
    page = scaling.PAGE.read_text(encoding="utf-8")
    with pytest.raises(SystemExit, match="no block for table:"):
        markdown.with_blocks(page.replace("<!-- end: table -->", ""), scaling.BLOCKS)


def test_the_transformer_has_the_published_number_of_parameters():
    for setup in scaling.PARALLELISMS:
        assert sum(p.count * math.prod(p.shape) for p in scaling.llama(setup)) == 70_553_706_496
