"""A batch that cannot be stepped says which table is at fault, and moves nothing."""

import numpy as np
import pytest
import torch
from torch import nn

from matrix_adagrad import RowAdaGrad, native, step_in_backward
from tests.bags.tables import bags_of, copies
from tests.optim.training import assert_bitwise

pytestmark = pytest.mark.skipif(bool(native.missing()), reason=f"no native kernels: {native.missing()}")


def by_groups(bags, cut=1):
    tables = list(bags.parameters())
    return [{"params": tables[:cut]}, {"params": tables[cut:], "lr": 0.1}]


@pytest.mark.parametrize("cut", [1, 2])
def test_an_error_in_the_backward_pass_has_the_number_that_the_table_has_in_the_optimizer(cut):
    bags = bags_of({"user": (10, 4), "item": (10, 4), "type": (10, 4)})
    optimizer = RowAdaGrad(by_groups(bags, cut))
    step_in_backward(optimizer)
    optimizer.init_state()
    optimizer.state[bags.tables["type"]]["sum"] = torch.zeros(3, 1)
    with pytest.raises(RuntimeError, match="parameter 2 has shape"):
        bags([1, 2, 3], [0, 1, 2, 3]).sum().backward()


def of_two_groups(bags):
    return step_in_backward(RowAdaGrad(by_groups(bags)))


def of_two_optimizers(bags):
    return [step_in_backward(RowAdaGrad([table])) for table in bags.parameters()]


def of_a_subclass(bags):
    """One table by a step of its own, which the others do not wait for."""

    class Own(RowAdaGrad):
        def step(self, closure=None):
            return super().step(closure)

    tables = list(bags.parameters())
    return step_in_backward(Own(tables[1:])), step_in_backward(RowAdaGrad(tables[:1]))


@pytest.mark.parametrize("handle_of", [of_two_groups, of_two_optimizers, of_a_subclass])
@pytest.mark.parametrize(
    ("what", "wrong"),
    [("indices", [1, 2, 10]), ("indices", [1, 2, -1]), ("offsets", [0, 2, 4]), ("offsets", [0, 2, 1])],
    ids=str,
)
def test_lists_that_numpy_changes_before_the_backward_pass_move_no_group(what, wrong, handle_of):
    bags = bags_of({"user": (10, 4), "type": (10, 4)})
    handle = handle_of(bags)
    for is_first in (True, False):  # as long as the tables are not known, and later
        own = {"indices": np.array([1, 2, 3]), "offsets": np.array([0, 2, 3])}
        out, before = bags(*own.values()).sum(), copies(bags)
        own[what][:] = wrong
        with pytest.raises((IndexError, ValueError), match="the table 'type'"):
            out.backward()
        assert_bitwise(list(bags.tables.values()), list(before.values()))
        if is_first:
            bags([1, 2, 3], [0, 2, 3]).sum().backward()
    assert handle


@pytest.mark.parametrize("named", [False, True])
def test_an_error_of_a_single_step_in_the_backward_pass_has_the_parameters_number_or_name(named):
    layers = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    optimizer = RowAdaGrad(layers.named_parameters() if named else layers.parameters())
    handle = step_in_backward(optimizer)
    optimizer.init_state()
    optimizer.state[layers[1].bias]["sum"] = torch.zeros(2)
    with pytest.raises(RuntimeError, match="parameter '1.bias' has shape" if named else "parameter 3 has shape"):
        layers(torch.ones(1, 3)).sum().backward()
    assert handle
