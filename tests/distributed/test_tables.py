"""Tables over several ranks: sharded ones are refused, and ranks share what has not changed in a checkpoint."""

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Shard, init_device_mesh
from torch.nn import Parameter

from matrix_adagrad import RowMomentum, evict, resize_table
from matrix_adagrad.checkpoints import Checkpoints, pieces
from matrix_adagrad.tables import map_table
from tests.distributed.layouts import shared_out


def a_run(folder=None):
    mesh = init_device_mesh("cpu", (2,))
    model = nn.Module()
    model.weight = Parameter(shared_out(torch.arange(64.0).view(16, 4), mesh, (Shard(0),)))
    model.whole = Parameter(torch.arange(32.0).view(8, 4))
    optimizer = RowMomentum(model.parameters(), lr=0.1)
    for param in model.parameters():
        param.grad = torch.ones_like(param)
    optimizer.step()
    return model, optimizer, Checkpoints(folder, model, optimizer, share_unchanged=True) if folder else None


def refuse(folder):
    model, optimizer, _ = a_run()
    for change in (
        lambda: resize_table(model, optimizer, 20),
        lambda: evict(model, optimizer, [0]),
        lambda: map_table(model, optimizer, folder),
    ):
        with pytest.raises(ValueError, match="weight is sharded, and its rows cannot be changed: do it before"):
            change()
    assert len(model.weight) == 16


def test_sharded_tables_are_refused(ranks, tmp_path):
    ranks.run(2, refuse, tmp_path)


def save_twice(folder):
    before, pieces.PIECE_BYTES = pieces.PIECE_BYTES, 32  # two rows
    try:
        model, _, checkpoints = a_run(folder)
        first = checkpoints.save(1)
        with torch.no_grad():
            model.weight.to_local()[0] += 1
        second = checkpoints.save(2)
    finally:
        pieces.PIECE_BYTES = before
    saved = model.weight.to_local().clone()
    with torch.no_grad():
        model.weight.to_local().zero_()
        model.whole.zero_()
    assert checkpoints.resume() == 2
    assert torch.equal(model.weight.to_local(), saved)
    assert model.whole.any()
    return first, second


def test_ranks_share_the_pieces_of_their_shards(ranks, tmp_path):
    first, second = ranks.run(2, save_twice, tmp_path)[0]
    old, new = (
        {file.stat().st_ino for file in path.glob("*.distcp") if len(file.name) > 64} for path in (first, second)
    )
    assert len(new) > 8
    assert len(new - old) == 2  # one of each rank
