"""Steps in the backward pass are those after it, bit for bit, and gradients do not pile up."""

import copy
import gc
import weakref

import pytest
import torch
from torch import nn

from matrix_adagrad import (
    ColumnAdaGrad,
    CombinedOptimizer,
    MatrixAdaGrad,
    RowAdaGrad,
    RowMomentum,
    geometry_groups,
    matrix_optimizer,
    step_in_backward,
)
from matrix_adagrad.advisor import Probe

OPTIMIZERS = {
    "rows": lambda model: RowAdaGrad(model.parameters(), lr=0.1),
    "named": lambda model: ColumnAdaGrad(model.named_parameters(), lr=0.1, weight_decay=0.1),
    "groups": lambda model: MatrixAdaGrad(geometry_groups(model), lr=0.1, reduction="mean"),
    "momentum": lambda model: RowMomentum(model.parameters(), lr=0.1),
    "together": lambda model: CombinedOptimizer(
        [
            RowAdaGrad([model.dense.weight, model.sparse.weight]),
            RowMomentum([*model.hidden.parameters(), *model.head.parameters(), model.unused]),
        ]
    ),
    "whole model": lambda model: matrix_optimizer(model, lr=0.02, weight_decay=0.1),
    "adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.1, foreach=True),
}


class Network(nn.Module):
    """Tables with dense and with sparse gradients, a weight that is used twice, one that is not used, one frozen."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.dense, self.sparse = nn.Embedding(20, 6), nn.Embedding(20, 6, sparse=True)
        self.hidden, self.head = nn.Linear(6, 6), nn.Linear(6, 20)
        self.unused = nn.Parameter(torch.ones(3, 2))
        self.head.bias.requires_grad_(False)

    def forward(self, x):
        return self.head(torch.tanh(self.hidden(torch.tanh(self.hidden(self.dense(x) + self.sparse(x))))))


def batch(step):
    return torch.randint(20, (8,), generator=torch.Generator().manual_seed(step))


def network(name):
    model = Network()
    if name == "adam":
        model.sparse.sparse = False
    return model


def train(model, optimizer, scheduler, steps, start=0):
    for step in range(start, start + steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch(step)), batch(step + 1000)).backward()
        optimizer.step()
        scheduler.step()


def decay(optimizer):
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


def assert_equal(model, other):
    for (name, mine), theirs in zip(model.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs), name


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_same_loop_takes_the_same_steps(name):
    after, during = network(name), network(name)
    ordinary, stepping = OPTIMIZERS[name](after), OPTIMIZERS[name](during)
    train(after, ordinary, decay(ordinary), 6)
    step_in_backward(stepping)
    train(during, stepping, decay(stepping), 6)
    assert_equal(after, during)
    assert all(param.grad is None for param in during.parameters())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_checkpoint_of_either_loop_goes_on_in_the_other(name):
    unbroken, broken = network(name), network(name)
    ordinary = OPTIMIZERS[name](unbroken)
    train(unbroken, ordinary, decay(ordinary), 6)
    first = OPTIMIZERS[name](broken)
    scheduler = decay(first)
    with step_in_backward(first):
        train(broken, first, scheduler, 2)
    saved = copy.deepcopy(first.state_dict())
    second = OPTIMIZERS[name](broken)
    second.load_state_dict(saved)
    train(broken, second, scheduler_of(second, scheduler), 2, start=2)
    third = OPTIMIZERS[name](broken)
    step_in_backward(third)  # loading comes after it: the hooks must find the new state
    third.load_state_dict(second.state_dict())
    train(broken, third, scheduler_of(third, scheduler), 2, start=4)
    assert_equal(unbroken, broken)


def scheduler_of(optimizer, old):
    for group in optimizer.param_groups:
        group["initial_lr"] = old.base_lrs[0]
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9, last_epoch=0)


def test_gradients_exist_a_few_at_a_time():
    """When the last gradient comes, the first layer's, those of all the others are gone."""
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(10)))
    held = []
    model[0].weight.register_hook(lambda _: held.append(sum(p.grad is not None for p in model.parameters())))
    optimizer = RowAdaGrad(model.parameters(), lr=0.1)
    model(torch.ones(1, 8)).sum().backward()
    optimizer.zero_grad()
    step_in_backward(optimizer)
    model(torch.ones(1, 8)).sum().backward()
    before, with_it = held
    assert before >= 18
    assert with_it <= 1


def test_after_removal_gradients_stay_and_accumulation_ends_with_the_last_pass():
    accumulated, summed = nn.Linear(4, 2), nn.Linear(4, 2)
    summed.load_state_dict(accumulated.state_dict())
    stepping, other = (RowAdaGrad(model.parameters(), lr=0.1) for model in (accumulated, summed))
    first, last = torch.randn(3, 4), torch.randn(3, 4)
    accumulated(first).square().sum().backward()
    with step_in_backward(stepping):
        accumulated(last).square().sum().backward()
    (summed(first).square().sum() + summed(last).square().sum()).backward()
    other.step()
    torch.testing.assert_close(accumulated.weight, summed.weight)
    accumulated(last).sum().backward()
    assert accumulated.weight.grad is not None


def test_parameters_that_are_added_later_are_stepped_by_the_optimizer():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    optimizer = RowAdaGrad(model[0].parameters(), lr=0.1)
    step_in_backward(optimizer)
    optimizer.add_param_group({"params": list(model[1].parameters())})
    model(torch.ones(1, 4)).sum().backward()
    assert model[0].weight.grad is None
    assert model[1].weight.grad is not None
    optimizer.step()
    assert {float(state["step"]) for state in optimizer.state.values()} == {1.0}


def test_a_probe_sees_what_it_sees_in_the_ordinary_loop():
    reports = []
    for in_backward in (False, True):
        model = Network()
        optimizer = RowAdaGrad(model.parameters(), lr=0.1)
        looked_at = step_in_backward(optimizer).optimizers if in_backward else optimizer
        with Probe(model, looked_at, every=1) as probe:
            train(model, optimizer, decay(optimizer), 4)
        reports.append([summary for summary in probe.report() if summary.name != "unused"])
    for summary, other in zip(*reports, strict=True):
        assert (summary.name, summary.observed) == (other.name, other.observed)
        assert summary.gradient_norm == other.gradient_norm
        assert summary.bound == other.bound


def test_an_error_has_the_name_of_the_parameter_that_it_is_about():
    model = nn.Linear(3, 2)
    optimizer = RowAdaGrad(model.named_parameters(), lr=0.1)
    step_in_backward(optimizer)
    optimizer.state[model.bias]["sum"] = torch.zeros(7)
    with pytest.raises(RuntimeError, match="parameter 'bias' has shape"):
        model(torch.ones(1, 3)).sum().backward()


def test_groups_in_another_order_are_not_taken_for_each_other():
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD([{"params": [model.weight], "lr": 1.0}, {"params": [model.bias], "lr": 1e-3}])
    step_in_backward(optimizer)
    optimizer.param_groups.reverse()
    with pytest.raises(RuntimeError, match="call it again"):
        model(torch.ones(1, 3)).sum().backward()


def test_a_step_may_have_any_signature_that_needs_nothing():
    class Own(torch.optim.SGD):
        def step(self):
            super().step()

    model = nn.Linear(3, 2)
    before = model.weight.detach().clone()
    with step_in_backward(Own(model.parameters(), lr=1.0)):
        model(torch.ones(1, 3)).sum().backward()
    torch.testing.assert_close(model.weight.detach(), before - 1)


def test_errors_name_the_parameter_and_what_cannot_be():
    table = nn.Embedding(4, 2, sparse=True)
    optimizer = RowAdaGrad(table.named_parameters(), lr=0.1)
    step_in_backward(optimizer)
    optimizer.state[table.weight]["sum"] = torch.zeros(3, 1)
    with pytest.raises(RuntimeError, match="parameter 'weight' has shape"):
        table(torch.tensor([1])).sum().backward()
    assert table.weight.grad is None
    with pytest.raises(ValueError, match=r"already stepped in the backward pass: call remove\(\) first"):
        step_in_backward(RowAdaGrad(table.parameters()))
    with pytest.raises(TypeError, match="LBFGS needs a closure"):
        step_in_backward(torch.optim.LBFGS(nn.Linear(2, 2).parameters()))
    with pytest.raises(TypeError, match=r"optimizer must be a torch\.optim\.Optimizer, got Linear"):
        step_in_backward(nn.Linear(2, 2))


def test_a_model_that_nobody_needs_any_more_is_freed_without_remove():
    model = Network()
    optimizer = RowMomentum(model.parameters(), lr=0.1)
    step_in_backward(optimizer)
    model(batch(0)).sum().backward()
    watched = [
        weakref.ref(model.hidden.weight),
        weakref.ref(optimizer),
        weakref.ref(optimizer.state[model.hidden.weight]["exp_avg"]),
    ]
    del model, optimizer
    gc.collect()
    assert [ref() for ref in watched] == [None] * 3


def test_whoever_keeps_the_optimizer_or_the_handle_keeps_the_steps():
    for keep_handle in (False, True):
        model = Network()
        before = model.hidden.weight.detach().clone()
        optimizer = RowAdaGrad(model.parameters(), lr=0.1)
        handle = step_in_backward(optimizer)
        if keep_handle:
            del optimizer
        else:
            del handle
        gc.collect()
        model(batch(0)).sum().backward()
        assert not torch.equal(model.hidden.weight, before)


def test_an_optimizer_that_is_gone_is_an_error_once_and_another_one_may_follow():
    model = nn.Linear(4, 2, bias=False)
    step_in_backward(RowAdaGrad(model.parameters(), lr=0.1))
    gc.collect()
    with pytest.raises(RuntimeError, match="the optimizer of step_in_backward is gone: keep it"):
        model(torch.ones(1, 4)).sum().backward()
    model(torch.ones(1, 4)).sum().backward()  # as without it
    model.weight.grad = None
    optimizer = RowAdaGrad(model.parameters(), lr=0.1)
    step_in_backward(optimizer)
    model(torch.ones(1, 4)).sum().backward()
    assert optimizer.state[model.weight]["step"] == 1


def test_a_handle_that_was_removed_has_no_say_in_the_next_one():
    model = nn.Linear(4, 2, bias=False)
    optimizer = RowAdaGrad(model.parameters(), lr=0.1)
    old = step_in_backward(optimizer)
    old.remove()
    step_in_backward(optimizer)
    old.remove()
    gc.collect()
    model(torch.ones(1, 4)).sum().backward()
    assert optimizer.state[model.weight]["step"] == 1
