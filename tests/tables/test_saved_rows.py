"""A checkpoint of a smaller vocabulary says what to do, and that works."""

import pytest
import torch
from torch import nn

from matrix_adagrad import MatrixAdaGrad, RowAdaGrad, RowMomentum, resize_table
from matrix_adagrad.checkpoints import Checkpoints, saved_shapes

ADVICE = "if the table gained or lost rows, load into one of 10 rows and call resize_table then"


def a_run(rows, cls=RowAdaGrad):
    items = nn.Embedding(rows, 4)
    return items, cls(items.parameters(), lr=0.1)


def stepped(items, optimizer):
    optimizer.zero_grad()
    items(torch.arange(10)).square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize("cls", [RowAdaGrad, RowMomentum, lambda p, lr: MatrixAdaGrad(p, lr=lr, geometry="entry")])
def test_the_message_of_a_state_dict_says_what_to_do(cls):
    small, optimizer = a_run(10, cls)
    stepped(small, optimizer)
    _, other = a_run(20, cls)
    with pytest.raises(ValueError, match=f"{ADVICE}; nothing was loaded"):
        other.load_state_dict(optimizer.state_dict())


def test_the_message_of_another_width_does_not():
    wide = nn.Embedding(10, 5)
    other = RowAdaGrad(wide.parameters())
    small, optimizer = a_run(10)
    stepped(small, optimizer)
    with pytest.raises(ValueError, match=r"here it has shape \(10, 5\); nothing was loaded"):
        other.load_state_dict(optimizer.state_dict())


def test_a_checkpoint_says_so_too_and_the_advice_works(tmp_path):
    items, optimizer = a_run(10)
    checkpoints = Checkpoints(tmp_path, items, optimizer)
    stepped(items, optimizer)
    newest = checkpoints.save(1)
    with pytest.raises(ValueError, match=ADVICE):
        Checkpoints(tmp_path, *a_run(20)).resume()

    rows, _ = saved_shapes(newest)["model.weight"]
    resumed, other = a_run(rows)
    assert Checkpoints(tmp_path, resumed, other).resume() == 1
    for table, own in ((items, optimizer), (resumed, other)):
        resize_table(table, own, 20, init=nn.init.zeros_)
        stepped(table, own)
    assert torch.equal(items.weight, resumed.weight)
    assert torch.equal(optimizer.state[items.weight]["sum"], other.state[resumed.weight]["sum"])


def test_the_checkpoints_of_a_run_follow_its_table(tmp_path):
    items, optimizer = a_run(10)
    checkpoints = Checkpoints(tmp_path, items, optimizer)
    stepped(items, optimizer)
    checkpoints.save(1)
    resize_table(items, optimizer, 20)
    stepped(items, optimizer)
    assert saved_shapes(checkpoints.save(2))["optimizer.state.weight.sum"] == (20, 1)
    before = items.weight.detach().clone()
    stepped(items, optimizer)
    assert checkpoints.resume() == 2
    assert torch.equal(items.weight, before)
