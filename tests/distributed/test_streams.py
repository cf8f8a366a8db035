"""Stochastic rounding over many machines: replicas draw the same noise, and everything else draws its own."""

import itertools

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.nn import Parameter

from matrix_adagrad import Blocks, MatrixAdaGrad, RowAdaGrad, RowMomentum, step_in_backward
from matrix_adagrad.optim.step.update import mixed
from matrix_adagrad.optim.streams import Streams
from matrix_adagrad.torch_private import default_store
from tests.distributed.layouts import mesh_of, shared_out

SHAPE = (16, 64)


def halfway(*shape):
    """Ones, and a gradient that moves each up by half a unit in the last place: the noise alone decides."""
    x = Parameter(torch.ones(shape, dtype=torch.bfloat16))
    x.grad = torch.full_like(x, -1)
    return x


def make(params, **options):
    return MatrixAdaGrad(params, lr=2**-8, eps=0.0, stochastic_rounding=True, **{"geometry": "entry", **options})


def assert_all_differ(noises):
    """Independent coins agree on half of their throws."""
    for noise, other in itertools.combinations(noises, 2):
        assert 0.4 < (noise == other).float().mean() < 0.6


def seeded(seed, layers=1):
    torch.manual_seed(seed)
    params = [halfway(*SHAPE) for _ in range(layers)]
    optimizer = make(params)
    optimizer.step()
    return [param.detach().clone() for param in params]


def seeds_count():
    ours = [seeded(seed)[0] for seed in (0, 1, 2)]
    assert_all_differ(ours)
    for seed, before in enumerate(ours):
        assert torch.equal(seeded(seed)[0], before)  # and repeat


def everything_else_differs():
    params, other = [halfway(*SHAPE) for _ in range(3)], halfway(*SHAPE)
    make([{"params": params[:2]}, {"params": params[2:]}]).step()
    make([other]).step()
    assert_all_differ([*params, other])

    param = halfway(*SHAPE)
    optimizer, steps = make([param]), []
    for _ in range(3):
        with torch.no_grad():
            param.fill_(1.0)
        optimizer.state.clear() if not steps else None
        optimizer.state[param]["sum"].zero_() if steps else None
        optimizer.step()
        steps.append(param.detach().clone())
    assert_all_differ(steps)

    dense, sparse = halfway(*SHAPE), halfway(*SHAPE)
    sparse.grad = sparse.grad.to_sparse(1)
    make([dense, sparse]).step()
    assert_all_differ([dense, sparse])


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ParameterList([halfway(*SHAPE) for _ in range(3)])

    def forward(self):
        return -sum(layer.sum() for layer in self.layers)


def layers_differ_in_backward():
    model = Layers()
    model.zero_grad()
    optimizer = make(model.parameters())
    step_in_backward(optimizer)
    model().backward()
    assert_all_differ([layer.detach() for layer in model.layers])


@pytest.mark.parametrize("check", [seeds_count, everything_else_differs, layers_differ_in_backward])
def test_noise_in_one_of_several_processes(ranks, check):
    ranks.run(2, check)


def shards_of_one(placements, geometry):
    mesh = mesh_of((2, 2))
    whole = torch.ones(16, 64, dtype=torch.bfloat16)
    param = Parameter(shared_out(whole, mesh, placements))
    param.grad = shared_out(torch.full_like(whole, -1), mesh, placements)
    torch.manual_seed(torch.distributed.get_rank())
    reduction = "sum" if geometry == "entry" else "mean"
    make([param], geometry=geometry, reduction=reduction).step()
    return param.to_local().detach().float()


@pytest.mark.parametrize("geometry", ["entry", "row", "column", Blocks(rows=2)], ids=str)
def test_shards_of_a_parameter_draw_independent_noise(ranks, geometry):
    assert_all_differ(ranks.run(4, shards_of_one, (Shard(0), Shard(1)), geometry))


def test_replicas_of_a_shard_draw_the_same(ranks):
    a, b, c, d = ranks.run(4, shards_of_one, (Replicate(), Shard(0)), "row")
    assert torch.equal(a, c)
    assert torch.equal(b, d)
    assert_all_differ([a, b])


def pieces_of_a_shard():
    """Rows 0 to 11 of three groups of eight: two pieces, of which the second is shorter."""
    mesh = mesh_of((2,))
    whole = torch.ones(24, 64, dtype=torch.bfloat16)
    param = Parameter(shared_out(whole, mesh, (Shard(0),)))
    param.grad = shared_out(torch.full_like(whole, -1), mesh, (Shard(0),))
    make([param], geometry=Blocks(rows=3), reduction="mean").step()
    local = param.to_local().detach().float()
    assert_all_differ([local[:4], local[8:12]] if torch.distributed.get_rank() == 0 else [local[:4], local[4:8]])


def test_pieces_of_a_shard_draw_independent_noise(ranks):
    ranks.run(2, pieces_of_a_shard)


def test_one_process_draws_from_torchs_generator():
    assert not Streams("a test").are_shared()
    for cls in (RowAdaGrad, RowMomentum):
        results = []
        for seed in (0, 0, 1):
            x = halfway(*SHAPE)
            torch.manual_seed(seed)
            cls([x], lr=2**-8, reduction="mean", stochastic_rounding=True).step()
            results.append(x.detach())
        assert torch.equal(results[0], results[1])
        assert_all_differ(results[1:])


def test_mixed_numbers_are_all_different():
    numbers = {mixed(a, b, c) for a in range(20) for b in range(20) for c in range(20)}
    assert len(numbers) == 20**3
    assert all(0 < number < 1 << 62 for number in numbers)


def agreed():
    return default_store().compare_set("tests/agreed", "", str(torch.distributed.get_rank())).decode()


def test_ranks_agree_through_torchs_private_default_store(ranks):
    """Last seen to hold in torch 2.13.0."""
    first, second = ranks.run(2, agreed)
    assert first == second
