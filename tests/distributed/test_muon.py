"""Muon and rows together on sharded models: each matrix is orthogonalised as a whole, and checkpoints move."""

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard

from matrix_adagrad import muon_with_rows
from matrix_adagrad.checkpoints import Checkpoints
from tests.distributed.layouts import assert_same, mesh_of, random, shared_out

FIRST, LAST, LR = 2, 4, 0.02
BFLOAT16 = 2**-8  # what torch's Muon rounds by, fifteen products in a row; whole matrices, by 4 of these


def make_model(sharded):
    """A table, hidden matrices taller and wider than a square whose shards are uneven, vectors and a head."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 31), nn.Tanh(), nn.Linear(31, 8), nn.Linear(8, 11))
    if sharded:
        fully_shard(model, mesh=mesh_of((torch.distributed.get_world_size(),)))
    return model, muon_with_rows(model, lr=LR, rows_lr=0.01, muon={"momentum": 0.5})


def train(model, optimizer, first, last):
    for step in range(first, last):
        for i, param in enumerate(model.parameters()):
            grad, mesh = random(param.shape, 100 * step + i), getattr(param, "device_mesh", None)
            param.grad = grad if mesh is None else shared_out(grad, mesh, param.placements)
        optimizer.step()


def orthogonalised(x):
    """Muon's polynomial, in float64, where torch's Muon rounds to bfloat16."""
    x = x.double() / x.double().norm()
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x


def moved(shape, number, last):
    """How far a hidden matrix has moved after this many steps."""
    average = total = torch.zeros(shape, dtype=torch.float64)
    for step in range(last):
        grad = random(shape, 100 * step + number).double()
        average = 0.5 * average + 0.5 * grad
        total = total - LR * max(1, shape[0] / shape[1]) ** 0.5 * orthogonalised(0.5 * grad + 0.5 * average)
    return total


def follows(folder):
    (alone, single), (model, optimizer) = make_model(sharded=False), make_model(sharded=True)
    starts = [param.detach().clone() for param in alone.parameters()]
    checkpoints = Checkpoints(folder, model, optimizer)
    train(model, optimizer, 0, FIRST)
    checkpoints.save(FIRST)
    train(model, optimizer, FIRST, LAST)
    train(alone, single, 0, LAST)
    for number, (mine, theirs) in enumerate(zip(alone.parameters(), model.parameters(), strict=True)):
        if "momentum_buffer" in single.state[mine]:
            whole = (theirs.full_tensor().detach() - starts[number]).double()
            exact = moved(tuple(mine.shape), number, LAST)
            assert (whole - exact).norm() < 10 * BFLOAT16 * exact.norm()
        else:
            assert_same(theirs, mine, exact=False)

    again, resumed = make_model(sharded=True)
    assert Checkpoints(folder, again, resumed).resume() == FIRST
    train(again, resumed, FIRST, LAST)
    for mine, theirs in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(mine.to_local(), theirs.to_local())
        assert resumed.state[theirs].keys() == optimizer.state[mine].keys()


def more_shards_than_columns():
    """Torch's Muon fails there in the middle of a step: it is refused before."""
    layer = nn.ModuleDict({"body": nn.Sequential(nn.Linear(2, 6, bias=False)), "head": nn.Linear(6, 2)})
    layer["body"][0].weight = nn.Parameter(shared_out(torch.ones(6, 2), mesh_of((3,)), [Shard(1)]))
    with pytest.raises(ValueError, match=r"body\.0\.weight, of shape \(6, 2\), has 3 shards along dimension 1"):
        muon_with_rows(layer)
    assert len(muon_with_rows(layer, rules={"body.0.weight": "entry"}).optimizers) == 1


def test_a_sharded_run_follows_the_mathematics_and_its_checkpoints_resume_sharded_or_in_a_single_process(
    ranks, tmp_path
):
    ranks.run(3, more_shards_than_columns)
    ranks.run(2, follows, tmp_path)
    alone, single = make_model(sharded=False)
    assert Checkpoints(tmp_path, alone, single).resume() == FIRST
    assert all(single.state[param] for param in alone.parameters())
    train(alone, single, FIRST, LAST)
    table = next(alone.parameters()).detach()
    twin, expected = make_model(sharded=False)
    train(twin, expected, 0, LAST)
    assert_same(table, next(twin.parameters()).detach(), exact=False)
