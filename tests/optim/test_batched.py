"""A batch of matrices, such as experts, is trained as its matrices would be, each alone."""

import functools

import pytest
import torch
from torch.distributed.tensor import Replicate, Shard
from torch.nn import Parameter

from matrix_adagrad import Batched, Blocks, Column, MatrixAdaGrad, MatrixMomentum, Row, RowAdaGrad, RowMomentum, Whole
from matrix_adagrad.optim.sharding import statistic_layout
from tests.optim.table import BACKENDS
from tests.optim.training import assert_bitwise, assert_same, make_grads, make_params, train

SHAPE = (2, 3, 4, 6)
each_backend = pytest.mark.parametrize("backend", BACKENDS)
each_class = pytest.mark.parametrize("cls", [MatrixAdaGrad, MatrixMomentum])


@each_backend
@each_class
@pytest.mark.parametrize("geometry", [Row(), Column(), Whole(), Blocks(rows=2), Blocks(columns=3)], ids=str)
def test_a_batch_takes_the_steps_of_its_matrices(geometry, cls, backend):
    (batch,) = make_params(shapes=[SHAPE])
    alone = [Parameter(x.clone()) for x in batch.detach().flatten(0, 1)]
    options = {"lr": 0.1, "reduction": "mean", "weight_decay": 0.1, **BACKENDS[backend]}
    batched, separate = cls([batch], geometry=Batched(geometry), **options), cls(alone, geometry=geometry, **options)
    for t in range(3):
        (batch.grad,) = make_grads([batch], t)
        for x, grad in zip(alone, batch.grad.flatten(0, 1), strict=True):
            x.grad = grad
        batched.step()
        separate.step()
    assert_same([batch.flatten(0, 1)], [torch.stack(alone)], rtol=1e-12, atol=1e-13)
    statistics = torch.stack([separate.state[x][cls.STATISTIC] for x in alone])
    assert_same([batched.state[batch][cls.STATISTIC].flatten(0, 1)], [statistics], rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("cls", "by_row"), [(MatrixAdaGrad, RowAdaGrad), (MatrixMomentum, RowMomentum)])
def test_the_kernels_take_the_rows_of_a_batch_for_the_rows_of_one_matrix(cls, by_row, dtype):
    (batch,) = make_params(dtype, [SHAPE])
    stacked = Parameter(batch.detach().clone().view(-1, SHAPE[-1]))
    batched, flat = cls([batch], geometry=Batched(Row()), fused=True), by_row([stacked], fused=True)
    for t in range(3):
        (batch.grad,) = make_grads([batch], t)
        stacked.grad = batch.grad.view(stacked.shape)
        batched.step()
        flat.step()
    assert_bitwise([batch.view(stacked.shape)], [stacked])
    assert batched.state[batch][cls.STATISTIC].shape == (*SHAPE[:-1], 1)


@pytest.mark.parametrize("geometry", [Row(), Column(), Blocks(rows=2)], ids=str)
def test_experts_without_a_token_may_be_left_out_of_a_sparse_gradient(geometry):
    ends = []
    for is_sparse in (True, False):
        (experts,) = make_params(shapes=[(5, 4, 6)])
        optimizer = MatrixAdaGrad([experts], geometry=Batched(geometry))
        for t in range(3):
            (grad,) = make_grads([experts], t)
            grad[[0, 3]] = 0.0
            experts.grad = grad.to_sparse(1) if is_sparse else grad
            optimizer.step()
        ends.append((experts, optimizer.state[experts]["sum"]))
    assert_same(ends[0], ends[1], rtol=1e-12, atol=1e-13)


def test_a_checkpoint_knows_a_batch_by_its_geometry():
    make = functools.partial(MatrixAdaGrad, geometry=Batched(Row()))
    params, optimizer = train(make, make_params(shapes=[(4, 3, 2)]))
    saved = optimizer.state_dict()
    assert saved["param_groups"][0]["geometry"] == "batched(row)"
    resumed = make(params)
    resumed.load_state_dict(saved)
    assert_bitwise([resumed.state[params[0]]["sum"]], [optimizer.state[params[0]]["sum"]])
    with pytest.raises(ValueError, match=r"geometry batched\(row\) and shape \(4, 3, 1\).*needs geometry row"):
        MatrixAdaGrad(params).load_state_dict(saved)


@pytest.mark.parametrize(
    ("geometry", "theirs", "mine"),
    [
        (Row(), Shard(0), Shard(0)),  # experts on their own machines: nothing is sent
        (Row(), Shard(1), Shard(1)),
        (Row(), Shard(2), Replicate()),
        (Column(), Shard(1), Replicate()),
        (Column(), Shard(2), Shard(2)),
        (Blocks(rows=2), Shard(0), Shard(0)),
        (Blocks(rows=2), Shard(1), Replicate()),
        (Blocks(columns=2), Shard(1), Shard(1)),
    ],
)
def test_the_scales_of_a_matrix_lie_where_it_lies(geometry, theirs, mine):
    layout = statistic_layout(Batched(geometry), torch.Size((8, 4, 6)), (theirs,))
    assert layout.placements == (mine,)
    assert layout.divided == ((0,) if mine == Replicate() else ())
