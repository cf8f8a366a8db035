"""One backward pass of many tables, or two, or a part of one."""

import pytest
import torch

from matrix_adagrad import (
    RowAdaGrad,
    native,
    step_in_backward,
)
from matrix_adagrad.bags import BagGradient
from tests.bags.tables import assert_same_tables, bags_of, batch, copies, one_table, train
from tests.optim.training import assert_bitwise

pytestmark = pytest.mark.skipif(bool(native.missing()), reason=f"no native kernels: {native.missing()}")


def test_two_passes_before_one_backward_are_one_step():
    ends = []
    for in_backward in (False, True):
        bags = bags_of()
        optimizer = RowAdaGrad(bags.parameters(), lr=0.1)
        if in_backward:
            step_in_backward(optimizer)
        (bags(*batch(0)).square().sum() + bags(*batch(1)).square().sum()).backward()
        optimizer.step()
        assert {float(state["step"]) for state in optimizer.state.values()} == {1}
        ends.append(bags)
    assert_same_tables(*ends)


def test_two_passes_with_a_backward_each_are_two_steps():
    bags = bags_of()
    optimizer = RowAdaGrad(bags.parameters(), lr=0.1)
    step_in_backward(optimizer)
    losses = [bags(*batch(seed)).square().sum() for seed in (0, 1)]
    for loss in losses:
        loss.backward()
    assert {float(state["step"]) for state in optimizer.state.values()} == {2}


def test_a_retained_pass_is_as_many_steps_as_it_runs():
    ends = []
    for in_backward in (False, True):
        bags = bags_of()
        optimizer = RowAdaGrad(bags.parameters(), lr=0.1)
        if in_backward:
            step_in_backward(optimizer)
        loss = bags(*batch()).sum()
        for _ in range(2):
            optimizer.zero_grad()
            loss.backward(retain_graph=True)
            optimizer.step()
        ends.append(bags)
    assert_same_tables(*ends)


def used_elsewhere(bags, offsets=(0, 1, 2)):
    return bags([1, 2], offsets).sum() + bags.tables["user"][2].sum()


def by_two_modules(bags):
    other = bags_of({"user": (10, 4)})
    other.tables["user"] = bags.tables["user"]
    return bags([1, 2], [0, 1, 2]).sum() + other([2], [0, 1]).sum()


def retained_and_new(bags):
    retained = bags([1, 2], [0, 1, 2]).sum()
    optimizerless = [table.detach().clone() for table in bags.tables.values()]
    retained.backward(retain_graph=True)
    with torch.no_grad():
        for table, before in zip(bags.tables.values(), optimizerless, strict=True):
            table.copy_(before)
            table.grad = None
    return retained + bags([1, 2], [0, 1, 2]).sum()


@pytest.mark.parametrize("loss_of", [used_elsewhere, by_two_modules, retained_and_new])
def test_a_table_whose_gradient_has_parts_is_refused_in_the_backward_pass_and_right_after_it(loss_of):
    bags = bags_of({"user": (10, 4), "type": (10, 4)})
    expected, weight = torch.autograd.grad(loss_of(bags), bags.tables["user"])[0], bags.tables["user"]
    loss_of(bags).backward()
    assert_bitwise([weight.grad.to_dense()], [expected.to_dense()])
    bags.zero_grad()
    optimizer = RowAdaGrad(bags.parameters(), lr=0.1)
    step_in_backward(optimizer)
    loss = loss_of(bags)
    steps = optimizer.state[weight].get("step", torch.zeros(())).clone()
    with pytest.raises(
        RuntimeError, match=r"a table of shape .* its gradient has two parts, and step_in_backward needs"
    ):
        loss.backward()
    assert optimizer.state[weight]["step"] <= steps + 1


def test_a_table_under_two_names_takes_one_step_along_the_sum():
    ends = []
    for in_backward in (False, True):
        bags = bags_of({"user": (10, 4), "type": (10, 4)})
        bags.tables["type"] = bags.tables["user"]
        optimizer = RowAdaGrad(bags.parameters(), lr=0.1)
        if in_backward:
            step_in_backward(optimizer)
        bags([1, 1, 2], [0, 1, 3]).sum().backward()
        optimizer.step()
        assert optimizer.state[bags.tables["user"]]["step"] == 1
        ends.append(bags)
    assert_same_tables(*ends)


def test_gradients_accumulate_and_the_last_pass_steps():
    ends = []
    for in_backward in (False, True):
        bags = bags_of()
        optimizer = RowAdaGrad(bags.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            for seed in (0, 1):
                bags(*batch(10 * step + seed)).square().sum().backward()
            assert all(isinstance(table.grad, BagGradient) for table in bags.tables.values())
            last = bags(*batch(10 * step + 2)).square().sum()
            if in_backward:
                with step_in_backward(optimizer):
                    last.backward()
            else:
                last.backward()
                optimizer.step()
        ends.append(bags)
    assert_same_tables(*ends)
    assert all(table.grad is None for table in ends[1].tables.values())


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_frozen_table_stays_and_the_others_move(when):
    bags = bags_of()
    if when == "before":
        bags.tables["user"].requires_grad_(False)
    optimizer = RowAdaGrad(bags.parameters(), lr=0.1)
    step_in_backward(optimizer)
    bags.tables["user"].requires_grad_(False)
    before = copies(bags)
    train(bags, optimizer)
    assert torch.equal(bags.tables["user"], before["user"])
    assert not torch.equal(bags.tables["type"], before["type"])


def test_without_grad_nothing_is_recorded_and_the_next_pass_steps():
    bags, other = bags_of(), bags_of()
    for own, interrupted in ((bags, False), (other, True)):
        optimizer = RowAdaGrad(own.parameters(), lr=0.1)
        step_in_backward(optimizer)
        out = own(*batch()).square().sum()
        if interrupted:
            for context in (torch.no_grad(), torch.inference_mode()):
                with context:
                    assert not own(*batch(1)).requires_grad
        out.backward()
        train(own, optimizer, 2)
    assert_same_tables(bags, other)


def test_a_gradient_that_is_asked_for_is_returned_and_nothing_moves():
    bags, weights = one_table(), torch.ones(2, requires_grad=True)
    optimizer = RowAdaGrad(bags.parameters(), lr=0.1)
    step_in_backward(optimizer)
    before = copies(bags)
    loss = bags([1, 2], [0, 2], weights).sum()
    (by_weight,) = torch.autograd.grad(loss, weights, retain_graph=True)
    assert_bitwise([by_weight], [bags.tables["user"][1:3].sum(1)])
    (by_table,) = torch.autograd.grad(loss, bags.tables["user"])
    assert by_table.to_dense()[1:3].eq(1).all()
    assert_bitwise(list(bags.tables.values()), list(before.values()))


def test_a_backward_pass_to_one_table_moves_that_one():
    bags = bags_of()
    optimizer = RowAdaGrad(bags.parameters(), lr=0.1)
    step_in_backward(optimizer)
    before = copies(bags)
    bags(*batch()).sum().backward(inputs=[bags.tables["type"]])
    assert torch.equal(bags.tables["user"], before["user"])
    assert torch.equal(bags.tables["items"], before["items"])
    assert not torch.equal(bags.tables["type"], before["type"])


def test_a_hook_on_a_table_changes_its_gradient_before_the_step():
    ends = []
    for in_backward in (False, True):
        bags = one_table()
        optimizer = RowAdaGrad(bags.parameters(), lr=0.1, eps=1.0)
        if in_backward:
            step_in_backward(optimizer)
        bags.tables["user"].register_hook(lambda grad: grad * 3)
        bags([1, 2], [0, 2]).sum().backward()
        optimizer.step()
        assert optimizer.state[bags.tables["user"]]["sum"].max() == 9 * 4
        ends.append(bags)
    assert_same_tables(*ends)


def test_checkpointed_activations_are_the_same_step():
    ends = []
    for recompute in (False, True):
        bags = bags_of()
        optimizer = RowAdaGrad(bags.parameters(), lr=0.1)
        step_in_backward(optimizer)
        for seed in range(3):
            index, offsets = batch(seed)
            if recompute:
                out = torch.utils.checkpoint.checkpoint(bags, index, offsets, use_reentrant=False)
            else:
                out = bags(index, offsets)
            out.square().sum().backward()
        ends.append(bags)
    assert_same_tables(*ends)


def test_a_gradient_of_the_gradient_is_refused():
    bags, weights = one_table(), torch.ones(1, requires_grad=True)
    (grad,) = torch.autograd.grad(bags([1], [0, 1], weights).square().sum(), weights, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()
