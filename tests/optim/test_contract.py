"""The torch.optim contract: groups, missing gradients, closures, schedulers, scalers, hooks."""

import copy
import weakref

import pytest
import torch
from torch import nn
from torch.nn import Parameter
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, OneCycleLR, SequentialLR

from matrix_adagrad import MatrixAdaGrad, MatrixMomentum, RowAdaGrad
from matrix_adagrad.geometry import Column, Row
from matrix_adagrad.optim.step import dispatch
from tests.optim.table import CLASSES, TABLE, settings
from tests.optim.training import assert_bitwise, assert_same, make_grads, make_params, train

every_class = pytest.mark.parametrize("entrant", CLASSES, ids=str)
every_entrant = pytest.mark.parametrize("entrant", TABLE, ids=str)


def small_model():
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def twins():
    return make_params(shapes=[(6, 4), (6, 4)], seed=3)


def loss_of(model, x=None):
    x = torch.ones(3, 4) if x is None else x
    return model(x).square().mean()


@every_entrant
def test_training_lowers_the_loss_and_maximize_raises_it(entrant):
    for maximize in (False, True):
        torch.manual_seed(0)
        model = small_model()
        optimizer = entrant(model.parameters(), lr=0.01, maximize=maximize)
        losses = []
        for _ in range(20):
            optimizer.zero_grad()
            loss = loss_of(model)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert (losses[-1] > losses[0]) is maximize


@every_class
def test_options_of_a_group_override_the_defaults_and_reach_only_their_group(entrant):
    own = {"lr": 0.3, "reduction": "mean", "weight_decay": 0.1, "eps": 1e-3, "maximize": True}
    (first, second), _ = train(lambda p: entrant([{"params": [p[0]], **own}, {"params": p[1:]}], lr=0.01), twins())
    alone, _ = train(lambda p: entrant(p, **own), twins())
    plain, _ = train(lambda p: entrant(p, lr=0.01), twins())
    assert_bitwise([first, second], [alone[0], plain[1]])


@pytest.mark.parametrize("cls", [MatrixAdaGrad, MatrixMomentum])
def test_a_geometry_per_group_by_value_or_by_name(cls):
    params = make_params(shapes=[(6, 4), (6, 4)])
    optimizer = cls([{"params": params[0], "geometry": "column"}, {"params": params[1]}], geometry=Row())
    train(None, params, optimizer=optimizer)
    assert [group["geometry"] for group in optimizer.param_groups] == [Column(), Row()]
    assert [optimizer.state[p][cls.STATISTIC].shape for p in params] == [(1, 4), (6, 1)]


def test_initial_accumulator_value_of_a_group_is_used():
    params = make_params(shapes=[(2, 2), (2, 2)])
    optimizer = RowAdaGrad(
        [{"params": params[0], "initial_accumulator_value": 7.0}, {"params": params[1]}], initial_accumulator_value=1.0
    )
    optimizer.init_state()
    assert [optimizer.state[p]["sum"].unique().item() for p in params] == [7.0, 1.0]


@every_class
def test_named_parameters_keep_their_names(entrant):
    model = small_model()
    optimizer = entrant(model.named_parameters())
    loss_of(model).backward()
    optimizer.step()
    assert optimizer.param_groups[0]["param_names"] == ["0.weight", "0.bias", "2.weight", "2.bias"]


@every_class
def test_a_group_added_late_trains_like_one_that_was_there(entrant):
    params, optimizer = train(lambda p: entrant(p[:1]), make_params(shapes=[(6, 4), (4, 6)]), steps=2)
    optimizer.add_param_group({"params": params[1:], "lr": 0.5})
    late = copy.deepcopy(params[1])
    train(None, params, steps=3, start=2, optimizer=optimizer)
    alone = entrant([late], lr=0.5)
    for t in range(2, 5):
        late.grad = make_grads(params, t)[1]
        alone.step()
    assert_bitwise([params[1]], [late])


@every_class
def test_parameters_without_a_gradient_are_left_alone_and_the_rest_goes_on(entrant):
    params = make_params(shapes=[(6, 4), (4, 6), (5,)])
    before = [p.detach().clone() for p in params]
    optimizer = entrant([{"params": params[:1]}, {"params": params[1:]}])
    params[1].grad = make_grads(params, 0)[1]
    optimizer.step()
    assert_bitwise([params[0], params[2]], [before[0], before[2]])
    assert not torch.equal(params[1], before[1])
    assert set(optimizer.state) == {params[1]}  # state is lazy


@every_class
def test_a_parameter_that_rests_a_step_continues_as_if_the_step_had_not_been(entrant):
    params, optimizer = train(entrant, make_params(shapes=[(6, 4)]), steps=2)
    params[0].grad = None
    optimizer.step()
    train(None, params, steps=2, start=2, optimizer=optimizer)
    unbroken, _ = train(entrant, make_params(shapes=[(6, 4)]), steps=4)
    assert_bitwise(params, unbroken)


@every_class
def test_frozen_parameters_stay_and_can_be_unfrozen(entrant):
    model = small_model()
    model[0].requires_grad_(False)
    before = model[0].weight.clone()
    optimizer = entrant(model.parameters())
    loss_of(model).backward()
    optimizer.step()
    assert torch.equal(model[0].weight, before)
    model[0].requires_grad_(True)
    loss_of(model).backward()
    optimizer.step()
    assert not torch.equal(model[0].weight, before)


@every_class
def test_tied_parameters_are_stepped_once(entrant):
    torch.manual_seed(0)
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    optimizer = entrant(tied.parameters())
    assert sum(len(group["params"]) for group in optimizer.param_groups) == 3
    loss_of(tied).backward()
    expected = entrant([twin := Parameter(tied[0].weight.detach().clone())])
    twin.grad = tied[0].weight.grad.clone()
    optimizer.step()
    expected.step()
    assert_bitwise([tied[0].weight], [twin])


@every_class
def test_closure_runs_with_gradients_and_its_loss_is_returned(entrant):
    model = small_model()
    optimizer = entrant(model.parameters())
    before = model[0].weight.detach().clone()

    def closure():
        optimizer.zero_grad()
        assert torch.is_grad_enabled()
        loss = loss_of(model)
        loss.backward()
        return loss

    assert optimizer.step() is None
    assert torch.equal(model[0].weight, before)
    assert optimizer.step(closure).item() > 0
    assert optimizer.step(closure=closure).item() > 0
    assert not torch.equal(model[0].weight, before)


@every_class
@pytest.mark.parametrize("tensor_lr", [False, True])
def test_schedulers_set_the_rate_of_every_step(entrant, tensor_lr):
    def schedule(optimizer):
        return SequentialLR(optimizer, [LinearLR(optimizer, 0.1, 1.0, 3), CosineAnnealingLR(optimizer, 5)], [3])

    lr = torch.tensor(0.1, dtype=torch.float64) if tensor_lr else 0.1
    params, optimizer = train(lambda p: entrant(p, lr=lr), steps=0)
    scheduler = schedule(optimizer)
    by_hand, plain = train(lambda p: entrant(p, lr=0.1), steps=0)
    rates = schedule(torch.optim.SGD(make_params(), lr=0.1))
    for t in range(8):
        train(None, params, steps=1, start=t, optimizer=optimizer)
        scheduler.step()
        plain.param_groups[0]["lr"] = rates.get_last_lr()[0]
        train(None, by_hand, steps=1, start=t, optimizer=plain)
        rates.optimizer.step()
        rates.step()
    assert_same(params, by_hand, rtol=1e-12, atol=1e-14)


def test_one_cycle_also_cycles_the_first_beta():
    params = make_params()
    optimizer = MatrixMomentum(params)
    scheduler = OneCycleLR(optimizer, max_lr=0.1, total_steps=10)
    by_hand = torch.zeros_like(params[0])
    for t in range(9):
        beta = optimizer.param_groups[0]["betas"][0]
        by_hand = beta * by_hand + (1 - beta) * make_grads(params, t)[0]
        train(None, params, steps=1, start=t, optimizer=optimizer)
        scheduler.step()
        assert optimizer.param_groups[0]["betas"][0] != beta
    assert_same([optimizer.state[params[0]]["exp_avg"]], [by_hand], rtol=1e-12, atol=1e-14)


@every_class
def test_grad_scaler_unscales_steps_and_skips_what_overflowed(entrant):
    model, twin = small_model(), small_model()
    twin.load_state_dict(model.state_dict())
    optimizer, plain = entrant(model.parameters()), entrant(twin.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(loss_of(model)).backward()
    scaler.step(optimizer)
    scaler.update()
    loss_of(twin).backward()
    plain.step()
    assert_same(list(model.parameters()), list(twin.parameters()), rtol=1e-5, atol=1e-6)

    before = [p.detach().clone() for p in model.parameters()]
    optimizer.zero_grad()
    scaler.scale(loss_of(model) * float("inf")).backward()
    scaler.step(optimizer)
    scaler.update()
    assert_bitwise(list(model.parameters()), before)
    assert scaler.get_scale() == 512.0


@every_class
def test_stepping_inside_backward_equals_stepping_after_it(entrant):
    inside, after = small_model(), small_model()
    inside.load_state_dict(after.state_dict())
    optimizers = {p: entrant([p]) for p in inside.parameters()}

    def step_and_free(param):
        optimizers[param].step()
        optimizers[param].zero_grad()

    for param in inside.parameters():
        param.register_post_accumulate_grad_hook(step_and_free)
    optimizer = entrant(after.parameters())
    for _ in range(3):
        loss_of(inside).backward()
        assert all(p.grad is None for p in inside.parameters())
        optimizer.zero_grad()
        loss_of(after).backward()
        optimizer.step()
    assert_bitwise(list(inside.parameters()), list(after.parameters()))


@every_entrant
@pytest.mark.parametrize("foreach", [False, True])
def test_gradients_are_never_written_to(entrant, foreach):
    for options in settings(entrant):
        params = make_params()
        optimizer = entrant(params, foreach=foreach, **options)
        for t in range(2):
            grads = make_grads(params, t)
            for param, grad in zip(params, grads, strict=True):
                param.grad = grad.clone()
            versions = [p.grad._version for p in params]
            optimizer.step()
            assert_bitwise([p.grad for p in params], grads)
            assert [p.grad._version for p in params] == versions


@every_class
def test_zero_gradients_move_nothing_even_without_a_stabilizer(entrant):
    for foreach in (False, True):
        params = make_params()
        before = [p.detach().clone() for p in params]
        optimizer = entrant(params, eps=0.0, lr=0.0, foreach=foreach)  # as torch's checkpoint code makes state
        for lr in (0.0, 1.0, torch.tensor(0.0), torch.tensor(1.0)):
            optimizer.param_groups[0]["lr"] = lr
            for param in params:
                param.grad = torch.zeros_like(param)
            optimizer.step(closure=None)
            assert_bitwise(params, before)


@every_class
def test_init_state_makes_the_state_of_all_trainable_parameters_and_changes_no_result(entrant):
    params = make_params()
    frozen = Parameter(torch.ones(2, 2), requires_grad=False)
    optimizer = entrant([*params, frozen])
    optimizer.init_state()
    assert set(optimizer.state) == set(params)
    eager, _ = train(None, params, optimizer=optimizer)
    lazy, _ = train(entrant)
    assert_bitwise(eager, lazy)


class Tagged(torch.Tensor):
    """A subclass, as libraries make them: TorchRec's slices of tables are parameters of one."""


class Watched(torch.Tensor):
    """A subclass that has a say in what torch does to it."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return super().__torch_function__(function, types, args, kwargs)


@pytest.mark.parametrize(
    ("options", "tensor", "expected"),
    [
        ({}, torch.ones(2, 2), "Native"),
        ({"fused": True}, torch.ones(2, 2), "Native"),
        ({"fused": False}, torch.ones(2, 2), "Foreach"),
        ({"foreach": False}, torch.ones(2, 2), "Reference"),
        ({"foreach": True}, torch.ones(2, 2), "Foreach"),
        ({"differentiable": True}, torch.ones(2, 2), "Reference"),
        ({}, torch.ones(2, 2, dtype=torch.complex64), "Foreach"),
        ({}, torch.ones(2, 2).as_subclass(Tagged), "Native"),
        ({}, torch.ones(2, 2).as_subclass(Watched), "Reference"),
    ],
)
def test_the_users_choice_of_a_backend_is_obeyed_and_the_default_is_the_fastest(options, tensor, expected, monkeypatch):
    ran = []
    for name in ("Native", "Foreach", "Reference"):
        monkeypatch.setattr(getattr(dispatch, name.upper()), "step", lambda *_, name=name: ran.append(name))
    tensor.grad = torch.ones_like(tensor)
    RowAdaGrad([tensor], **options).step()
    assert ran == [expected]


@every_class
def test_an_optimizer_does_not_outlive_its_last_reference(entrant):
    _, optimizer = train(entrant)
    gone = weakref.ref(optimizer)
    del optimizer
    assert gone() is None


@every_class
def test_step_hooks_and_printing(entrant):
    _, optimizer = train(entrant, steps=1)
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    optimizer.step()
    assert calls == ["before", "after"]
    assert f"geometry: {entrant.geometry}" in repr(optimizer)
