"""A process may get another rank, as in-process restarts do: nothing that it remembers may depend on the old one."""

import contextlib
import gc

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn import Parameter
from torch.testing._internal.distributed.fake_pg import FakeStore

from matrix_adagrad import Blocks, MatrixAdaGrad, RowAdaGrad
from matrix_adagrad.domains import RowBalls, RowProduct
from matrix_adagrad.optim import sharding


@contextlib.contextmanager
def a_mesh(rank, world=2):
    """What this process sees as a rank of a world whose other ranks say nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    try:
        yield init_device_mesh("cpu", (world,))
    finally:
        dist.destroy_process_group()


def shard_of(x, mesh):
    param = Parameter(distribute_tensor(x, mesh, [Shard(0)], src_data_rank=None))
    param.grad = distribute_tensor(torch.ones_like(x), mesh, [Shard(0)], src_data_rank=None)
    return param


@pytest.mark.parametrize("ranks", [(0, 1), (1, 0)], ids=str)
def test_rows_keep_their_own_sets_when_ranks_swap(ranks):
    x = torch.full((6, 4), 10.0)
    domain = RowProduct(((3, RowBalls(1.0)), (3, RowBalls(5.0))))
    for rank in ranks:
        with a_mesh(rank) as mesh:
            param = shard_of(x, mesh)
            RowAdaGrad([param], lr=0.0, domain=domain, project_start=True).step()
            lengths = param.to_local().norm(dim=1)
        torch.testing.assert_close(lengths, torch.full((3,), 1.0 if rank == 0 else 5.0))


@pytest.mark.parametrize("ranks", [(0, 1), (1, 0)], ids=str)
def test_blocks_are_cut_at_the_rows_of_a_rank(ranks):
    """Six rows in three groups on two ranks: each has a whole group and half of the one in the middle."""
    for rank in ranks:
        with a_mesh(rank) as mesh:
            param = shard_of(torch.zeros(6, 4), mesh)
            optimizer = MatrixAdaGrad([param], lr=1.0, geometry=Blocks(rows=3), eps=0.0)
            optimizer.step()
            sums = optimizer.state[param]["sum"].to_local().flatten().tolist()
        assert sums == ([8.0, 4.0, 0.0] if rank == 0 else [0.0, 4.0, 8.0])


def test_the_cache_for_a_table_does_not_grow_with_its_rows():
    rows = 100_003
    before = {id(x) for x in _long_indices()}  # other tests' own
    with a_mesh(1) as mesh:
        param = shard_of(torch.zeros(rows, 1), mesh)
        optimizer = RowAdaGrad([param], domain=RowBalls(1.0))
        optimizer.step()
        del param, optimizer
        gc.collect()
        assert not [x for x in _long_indices() if id(x) not in before]
        found = sharding._ranges(rows, 0, mesh, (Shard(0),), 1)
        assert found == (range(50_002, rows),)


def _long_indices():
    return [x for x in gc.get_objects() if type(x) is torch.Tensor and x.dtype is torch.int64 and x.numel() > 1000]
