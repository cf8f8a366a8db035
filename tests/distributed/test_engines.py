"""Training under FSDP2, HSDP, tensor parallel, CPU offload, DDP and ZeRO follows a single process."""

import functools

import pytest
import torch
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Replicate, Shard
from torch.nn.parallel import DistributedDataParallel

from matrix_adagrad import ColumnMomentum, EmbeddingBag, MatrixAdaGrad, MatrixMomentum, RowAdaGrad, step_in_backward
from matrix_adagrad.geometry import Column, Entry, Row, Whole
from tests.distributed import engines
from tests.distributed.layouts import assert_same, mesh_of, shared_out

ENGINES = (
    *((engines.fsdp, world) for world in (2, 3, 4)),
    (engines.offloaded, 2),
    (engines.hsdp, 4),
    (engines.tensor_parallel, 2),
    (engines.fsdp_and_tensor_parallel, 4),
    (engines.replicated, 3),
)


def named(value):
    return getattr(value, "__name__", str(value))


@pytest.mark.parametrize("optimizer", [MatrixAdaGrad, MatrixMomentum], ids=named)
@pytest.mark.parametrize("geometry", [Row(), Column(), Entry(), Whole()], ids=str)
@pytest.mark.parametrize(("engine", "world"), ENGINES, ids=named)
def test_training_under_an_engine_follows_a_single_process(ranks, engine, world, geometry, optimizer):
    make = functools.partial(optimizer, lr=0.03, geometry=geometry, eps=1e-3)
    ranks.run(world, engines.assert_engine_follows, engine, make)


@pytest.mark.parametrize("geometry", [Row(), Column()], ids=str)
@pytest.mark.parametrize("engine", [engines.fsdp, engines.tensor_parallel], ids=named)
def test_steps_in_the_backward_pass_follow_a_single_process(ranks, engine, geometry):
    make = functools.partial(MatrixAdaGrad, lr=0.03, geometry=geometry, eps=1e-3)
    ranks.run(2, engines.assert_engine_follows, engine, make, step_in_backward)


def zero_redundancy(cls, options):
    model = engines.replicated(engines.Network())
    alone = engines.Network()
    single = cls(alone.parameters(), **options)
    sharded = ZeroRedundancyOptimizer(model.parameters(), cls, **options)
    for step in range(20):
        x = torch.randn(12, engines.WIDTH, generator=torch.Generator().manual_seed(step))
        for network, optimizer in ((alone, single), (model, sharded)):
            optimizer.zero_grad()
            network(x).square().mean().backward()
            optimizer.step()
        if step == 10:  # its own checkpoint, gathered on rank 0
            sharded.consolidate_state_dict()
            states = [sharded.state_dict() if torch.distributed.get_rank() == 0 else None]
            torch.distributed.broadcast_object_list(states)
            sharded.load_state_dict(states[0])
    for mine, theirs in zip(alone.parameters(), model.parameters(), strict=True):
        assert_same(theirs.detach(), mine.detach(), exact=False, tolerance=engines.TOLERANCE)
    return len(sharded.optim.state)


@pytest.mark.parametrize("cls", [RowAdaGrad, ColumnMomentum], ids=named)
def test_zero_redundancy(ranks, cls):
    held = ranks.run(3, zero_redundancy, cls, {"lr": 0.03, "eps": 1e-3})
    assert all(count < 7 for count in held)  # of the seven parameters


def sparse_tables(table_cls, cls, options):
    """A batch of a rank is a part of the single process's batch."""
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    alone, table = (table_cls(50, 4, sparse=True) for _ in range(2))
    table.load_state_dict(alone.state_dict())
    torch.distributed.broadcast(alone.weight.data, 0)
    model = DistributedDataParallel(table)
    single, sharded = cls(alone.parameters(), **options), cls(table.parameters(), **options)
    for step in range(20):
        ids = torch.randint(50, (12, 2), generator=torch.Generator().manual_seed(step))
        for network, optimizer, own in ((alone, single, ids), (model, sharded, ids.chunk(world)[rank])):
            optimizer.zero_grad()
            network(own).square().sum(-1).mean().backward()
            optimizer.step()
    assert table.weight.grad.is_sparse
    assert_same(table.weight.detach(), alone.weight.detach(), exact=False, tolerance=1e-6)


@pytest.mark.parametrize("geometry", ["row", "column", "entry", "whole"])
@pytest.mark.parametrize(("world", "table"), [(2, EmbeddingBag), (3, nn.Embedding)])
def test_sparse_gradients_under_ddp(ranks, world, table, geometry):
    ranks.run(world, sparse_tables, table, MatrixAdaGrad, {"lr": 0.1, "geometry": geometry})


def rounded_at_random(engine):
    """Ranks whose generators differ: what they hold twice must stay the same."""
    model = engine(engines.Network().to(torch.bfloat16))
    optimizer = RowAdaGrad(model.parameters(), lr=0.1, stochastic_rounding=True)
    torch.manual_seed(torch.distributed.get_rank())
    for _ in range(5):
        for param in model.parameters():
            param.grad = torch.full_like(param, 0.01)
        optimizer.step()
    params = [param.detach() for param in model.parameters()]
    return [param.full_tensor().float() if hasattr(param, "full_tensor") else param.float() for param in params]


@pytest.mark.parametrize(("engine", "world"), [(engines.hsdp, 4), (engines.replicated, 2)], ids=named)
def test_replicas_round_the_same_way(ranks, engine, world):
    first, *others = ranks.run(world, rounded_at_random, engine)
    for other in others:
        for mine, theirs in zip(first, other, strict=True):
            assert torch.equal(mine, theirs)


def two_groups():
    params = [nn.Parameter(torch.ones(4, 4, dtype=torch.bfloat16)) for _ in range(2)]
    for param in params:
        param.grad = torch.full_like(param, 0.01)
    RowAdaGrad([{"params": [param]} for param in params], lr=0.1, stochastic_rounding=True).step()
    assert not torch.equal(params[0], params[1])  # each group draws numbers of its own


def test_groups_with_stochastic_rounding(ranks):
    ranks.run(2, two_groups)


def shards_of_another_parameter():
    """A rank may hold nothing of the first parameter; its replica of the second must not notice."""
    mesh = mesh_of((2, 2))
    layouts = {(3, 8): [Shard(0), Shard(0)], (4, 8): [Shard(0), Replicate()]}
    params = [
        nn.Parameter(shared_out(torch.ones(shape, dtype=torch.bfloat16), mesh, placements))
        for shape, placements in layouts.items()
    ]
    optimizer = MatrixAdaGrad(params, lr=0.1, geometry="column", stochastic_rounding=True)
    torch.manual_seed(torch.distributed.get_rank())
    for _ in range(5):
        for param in params:
            param.grad = torch.full_like(param, 0.01)
        optimizer.step()
    return params[1].detach().to_local().float()


def test_replicas_round_the_same_way_whatever_else_a_rank_holds(ranks):
    first, second, third, fourth = ranks.run(4, shards_of_another_parameter)
    assert torch.equal(first, second)
    assert torch.equal(third, fourth)
