"""What a step sends, and when: nothing for rows that lie whole, one call a mesh dimension for all that is divided."""

import functools
from unittest import mock

import pytest
import torch
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn import Parameter

from matrix_adagrad import Blocks, Factored, Full, MatrixAdaGrad, MatrixMomentum, Spectral, SteepestDescent, native
from matrix_adagrad.geometry import Column, Entry, Row, Whole
from matrix_adagrad.optim import sharding
from matrix_adagrad.optim.step import native as native_backend
from matrix_adagrad.torch_private import StridedShard
from tests.distributed.layouts import SHAPES, Layout, mesh_of, random, shared_out
from tests.optim.own_geometries import SumOfPartitions

BY_ROWS = Layout((2,), (Shard(0),))
BY_COLUMNS = Layout((2,), (Shard(1),))
HSDP = Layout((2, 2), (Replicate(), Shard(0)))
STRIDED = Layout((2, 2), (StridedShard(0, split_factor=2), Shard(0)))
CROSSED = Layout((2, 2), (Shard(0), Shard(1)))


def params_on(layout):
    mesh = mesh_of(layout.mesh)
    params = [Parameter(shared_out(random(shape, i), mesh, layout.of(shape))) for i, shape in enumerate(SHAPES)]
    for i, param in enumerate(params):
        param.grad = shared_out(random(param.shape, 9 + i), mesh, param.placements)
    return params


def count(make, layout):
    """The collectives of a second step; the first one makes the state."""
    params = params_on(layout)
    groups = [{"params": params[:3]}, {"params": params[3:], "lr": 0.2}]
    optimizer = make(groups)
    counts = []
    for _ in range(2):
        with CommDebugMode() as calls:
            optimizer.step()
        counts.append(calls.get_total_counts())
    return counts


@pytest.mark.parametrize("optimizer", [MatrixAdaGrad, MatrixMomentum], ids=lambda cls: cls.__name__)
@pytest.mark.parametrize(
    ("geometry", "layout", "calls"),
    [
        (Row(), BY_ROWS, 0),
        (Row(), HSDP, 0),
        (Row(), STRIDED, 0),
        (Row(), BY_COLUMNS, 1),
        (Row(), CROSSED, 1),
        (Column(), BY_ROWS, 1),
        (Column(), BY_COLUMNS, 0),
        (Column(), HSDP, 1),
        (Column(), STRIDED, 2),  # one for each dimension of the mesh that divides the rows
        (Column(), CROSSED, 1),
        (Entry(), CROSSED, 0),
        (Whole(), BY_ROWS, 1),
        (Whole(), CROSSED, 2),
        (Blocks(rows=2), BY_ROWS, 1),
        (Blocks(columns=2), BY_ROWS, 0),
        (Factored(), BY_ROWS, 1),
        (Factored(), BY_COLUMNS, 1),
        (Factored(), HSDP, 1),
        (Factored(), STRIDED, 2),
        (Factored(), CROSSED, 2),
        (SumOfPartitions(), CROSSED, 2),
    ],
    ids=str,
)
def test_a_step_makes_this_many_calls_for_all_parameters_of_all_groups(ranks, geometry, layout, calls, optimizer):
    make = functools.partial(optimizer, lr=0.1, geometry=geometry)
    for counts in ranks.run(layout.world, count, make, layout):
        assert counts == [calls, calls]


def sent_for_a_head(layout, geometry):
    """How many numbers each all-reduce of a step of a 12×8 matrix holds. A gather would be another collective."""
    param, sent, all_reduce = params_on(layout)[0], [], sharding.dist.all_reduce

    def watched(flat, **options):
        sent.append(flat.numel())
        return all_reduce(flat, **options)

    optimizer = MatrixMomentum([param], lr=0.1, betas=(0.0, 0.9), geometry=geometry)
    with CommDebugMode() as calls, mock.patch.object(sharding.dist, "all_reduce", watched):
        optimizer.step()
    assert calls.get_total_counts() == len(sent)
    return sent


@pytest.mark.parametrize(
    ("layout", "numbers"),
    [
        (BY_ROWS, [8 + 1]),  # columns and the whole
        (BY_COLUMNS, [12 + 1]),
        (HSDP, [8 + 1]),
        (STRIDED, [8 + 1, 8 + 1]),
        (CROSSED, [6 + 1, 4 + 1]),  # each rank has half of the rows and half of the columns
    ],
    ids=str,
)
def test_a_factored_step_gathers_nothing_and_sends_no_more_than_a_row_or_a_column(ranks, layout, numbers):
    for sent in ranks.run(layout.world, sent_for_a_head, layout, Factored()):
        assert sorted(sent) == sorted(numbers)


def experts():
    """A batch of matrices, each of which lies whole on a rank."""
    mesh = mesh_of((2,))
    param = Parameter(shared_out(random((4, 3, 5), 0), mesh, [Shard(0)]))
    param.grad = shared_out(random(param.shape, 1), mesh, [Shard(0)])
    optimizer = MatrixAdaGrad([param], lr=0.1, geometry=Factored())
    with CommDebugMode() as calls:
        optimizer.step()
    assert calls.get_total_counts() == 0
    assert {key: tuple(optimizer.state[param][f"sum_{key}"].to_local().shape) for key in Factored().statistics} == {
        "row": (2, 3, 1),
        "column": (2, 1, 5),
        "whole": (2, 1, 1),
    }


def test_experts_on_ranks_of_their_own_send_nothing(ranks):
    ranks.run(2, experts)


def layouts_of_statistics():
    param = params_on(CROSSED)[0]
    optimizer = MatrixAdaGrad([param], lr=0.1, geometry=Factored())
    optimizer.step()
    return [optimizer.state[param][f"sum_{key}"].placements for key in Factored().statistics]


def test_every_statistic_has_the_placements_of_its_own_partition(ranks):
    for placements in ranks.run(4, layouts_of_statistics):
        assert placements == [(Shard(0), Replicate()), (Replicate(), Shard(1)), (Replicate(), Replicate())]


MATRICES = [(6, 4), (4, 6), (3, 5), (8, 8), (5, 2)]


def polar_factors(layout):
    """The shapes of which this rank computes polar factors, and the collectives of a step."""
    mesh = mesh_of(layout.mesh)
    params = [Parameter(shared_out(random(shape, i), mesh, layout.of(shape))) for i, shape in enumerate(MATRICES)]
    for i, param in enumerate(params):
        param.grad = shared_out(random(param.shape, 9 + i), mesh, param.placements)
    shapes, steepest = [], Spectral.steepest

    def watched(self, x, *args):
        shapes.extend([tuple(x.shape)] if not x.is_meta else [])  # those are checks
        return steepest(self, x, *args)

    optimizer = SteepestDescent(params, lr=0.1, geometry=Spectral())
    with CommDebugMode() as calls, mock.patch.object(Spectral, "steepest", watched):
        optimizer.step()
    return shapes, calls.get_total_counts()


@pytest.mark.parametrize(("layout", "replicas"), [(BY_ROWS, 1), (BY_COLUMNS, 1), (HSDP, 2), (CROSSED, 1)], ids=str)
def test_every_polar_factor_is_computed_by_one_of_the_ranks_that_hold_its_matrix(ranks, layout, replicas):
    found = ranks.run(layout.world, polar_factors, layout)
    assert sorted(shape for shapes, _ in found for shape in shapes) == sorted(replicas * MATRICES)
    assert all(shapes for shapes, _ in found)  # everybody works


def spectral_experts():
    mesh = mesh_of((2,))
    param = Parameter(shared_out(random((4, 3, 5), 0), mesh, [Shard(0)]))
    param.grad = shared_out(random(param.shape, 1), mesh, [Shard(0)])
    for optimizer in (
        SteepestDescent([param], geometry=Spectral()),
        MatrixAdaGrad([param], geometry=Full("row", every=2), eps=1e-3),
    ):
        with CommDebugMode() as calls:
            optimizer.step()
        assert calls.get_total_counts() == 0


def test_whole_matrices_of_a_batch_stay_on_their_rank(ranks):
    ranks.run(2, spectral_experts)


def events():
    """What a step of columns (divided) and of entries (not) does, in order."""
    seen = []
    all_reduce, run = sharding.dist.all_reduce, native_backend._run

    class Call:
        def __init__(self, call):
            self.call = call

        def wait(self):
            seen.append("wait")
            return self.call.wait()

    def watched_all_reduce(*args, **options):
        seen.append("call")
        return Call(all_reduce(*args, **options))

    def watched_run(updates, config, what=native.READ | native.MOVE):
        seen.append({native.READ: "read", native.MOVE: "move"}.get(what, "step"))
        run(updates, config, what)

    params = params_on(BY_ROWS)
    optimizer = MatrixAdaGrad([{"params": params[:4], "geometry": "column"}, {"params": params[4:]}], geometry="entry")
    sharding.dist.all_reduce, native_backend._run = watched_all_reduce, watched_run
    try:
        optimizer.step()
    finally:
        sharding.dist.all_reduce, native_backend._run = all_reduce, run
    return seen


@pytest.mark.skipif(bool(native.missing()), reason=f"no native kernels: {native.missing()}")
def test_local_updates_run_while_sums_are_in_flight_and_shards_use_the_kernels(ranks):
    for seen in ranks.run(2, events):
        assert seen == ["read", "call", "step", "wait", "move"]


def unfinished_sum():
    """A gradient that is a sum over ranks which is not taken yet."""
    mesh = mesh_of((2,))
    start, grad = random((6, 4), 0), random((6, 4), 1)
    alone, together = Parameter(start.clone()), Parameter(shared_out(start, mesh, [Replicate()]))
    alone.grad = 2 * grad
    together.grad = sharding.DTensor.from_local(grad, mesh, [Partial()])
    for param in (alone, together):
        MatrixAdaGrad([param], lr=0.1).step()
    assert torch.equal(together.to_local(), alone)
    assert together.grad.placements == (Partial(),)  # as the user left it


def test_a_partial_gradient_is_reduced(ranks):
    ranks.run(2, unfinished_sum)


def own_layout():
    """A statistic in the parameter's own order, where `Shard(0)` alone would be in another one."""
    param = params_on(STRIDED)[0]
    optimizer = MatrixAdaGrad([param], lr=0.1, geometry="row")
    optimizer.step()
    statistic = optimizer.state[param]["sum"]
    assert statistic.placements == param.placements
    torch.testing.assert_close(statistic.full_tensor(), param.grad.full_tensor().square().sum(1, keepdim=True))
    assert statistic.to_local().shape[0] == param.to_local().shape[0]


def test_scales_live_with_their_rows(ranks):
    ranks.run(4, own_layout)


def plain_gradient():
    param = params_on(BY_ROWS)[0]
    param.grad = torch.ones(param.shape)
    before = param.to_local().clone()
    with pytest.raises(
        RuntimeError, match=r"shape \(12, 8\) is sharded over \(Shard\(dim=0\),\), and its gradient is a plain"
    ):
        MatrixAdaGrad([param]).step()
    assert torch.equal(param.to_local(), before)


def test_an_unsharded_gradient_is_refused(ranks):
    ranks.run(2, plain_gradient)
