"""Several optimizers as one: a step of it is a step of each, and what holds an optimizer holds it."""

import pytest
import torch
from torch.nn import Parameter
from torch.optim import SGD, Rprop
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR, ReduceLROnPlateau

from matrix_adagrad import ColumnAdaGrad, CombinedOptimizer, RowMomentum
from matrix_adagrad.advisor import Probe
from tests.optim.parts import SHAPES, Model, made, parts_of, trained
from tests.optim.training import assert_bitwise, make_grads, make_params, train


def test_a_step_is_a_step_of_each_part():
    params, _ = trained(5)
    alone = make_params(shapes=SHAPES)
    parts = parts_of(alone)
    for t in range(5):
        for param, grad in zip(alone, make_grads(alone, t), strict=True):
            param.grad = grad
        for part in parts:
            part.step()
    assert_bitwise(params, alone)


def test_groups_are_the_parts_own_and_state_is_a_view_of_theirs():
    params, optimizer = trained(1)
    own = [group for part in optimizer.optimizers for group in part.param_groups]
    assert all(mine is theirs for mine, theirs in zip(optimizer.param_groups, own, strict=True))
    assert set(optimizer.state) == set(params)
    assert len(optimizer.state) == len(params)
    muon, *_ = optimizer.optimizers
    assert optimizer.state[params[0]] is muon.state[params[0]]
    optimizer.state[params[0]] = {"momentum_buffer": torch.ones(6, 4)}
    assert muon.state[params[0]]["momentum_buffer"].sum() == 24
    assert optimizer.state.pop(params[0])
    assert params[0] not in muon.state
    assert optimizer.state.get(params[0]) is None
    assert params[0] not in optimizer.state
    assert optimizer.state.pop(params[0], "none") == "none"
    assert optimizer.state[params[0]] == {}
    assert params[0] in muon.state
    with pytest.raises(KeyError, match="none of the optimizers"):
        optimizer.state[Parameter(torch.ones(2))]
    optimizer.state.clear()
    assert not any(part.state for part in optimizer.optimizers)


def test_a_closure_runs_once_with_gradients():
    params, optimizer = made()
    calls = []

    def closure():
        calls.append(torch.is_grad_enabled())
        optimizer.zero_grad()
        loss = sum(param.square().sum() for param in params)
        loss.backward()
        return loss

    with torch.no_grad():
        assert optimizer.step(closure) > 0
    assert calls == [True]
    assert all(param in optimizer.state for param in params)
    optimizer.zero_grad()
    assert all(param.grad is None for param in params)


SCHEDULES = {
    "LambdaLR": lambda optimizer, first: LambdaLR(
        optimizer, [lambda t, k=k: 1 / (k + t + 1) for k in range(first, first + len(optimizer.param_groups))]
    ),
    "OneCycleLR": lambda optimizer, _: OneCycleLR(
        optimizer, [group["lr"] for group in optimizer.param_groups], total_steps=10, cycle_momentum=False
    ),
    "ReduceLROnPlateau": lambda optimizer, _: ReduceLROnPlateau(optimizer, patience=1),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_of_the_whole_is_a_schedule_of_each_part(name):
    params, optimizer = made()
    parts = parts_of(make_params(shapes=SHAPES))
    counts = [sum(len(part.param_groups) for part in parts[:k]) for k in range(len(parts))]
    whole = SCHEDULES[name](optimizer, 0)
    each = [SCHEDULES[name](part, first) for part, first in zip(parts, counts, strict=True)]
    metrics = [1.0] if name == "ReduceLROnPlateau" else []
    for _ in range(5):
        optimizer.step()
        whole.step(*metrics)
        for part, schedule in zip(parts, each, strict=True):
            part.step()
            schedule.step(*metrics)
        expected = [group["lr"] for part in parts for group in part.param_groups]
        assert [group["lr"] for group in optimizer.param_groups] == expected
    assert expected != [group["lr"] for part in parts_of(params) for group in part.param_groups]


def test_hooks_run_once_for_the_whole_and_may_change_what_is_loaded():
    params, optimizer = made()
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    optimizer.register_state_dict_pre_hook(lambda _: seen.append("save"))
    optimizer.register_state_dict_post_hook(lambda _, saved: {**saved, "note": len(saved["state"])})
    train(None, params, 1, optimizer=optimizer)
    saved = optimizer.state_dict()
    assert (seen, saved["note"]) == (["before", "after", "save"], 5)

    def slower(_, given):
        groups = [{**group, "lr": group["lr"] / 2} for group in given["param_groups"]]
        return {**given, "param_groups": groups}

    optimizer.register_load_state_dict_pre_hook(slower)
    optimizer.register_load_state_dict_post_hook(lambda it: seen.append(it.param_groups[0]["lr"]))
    optimizer.load_state_dict(saved)
    assert seen[-1] == 0.01
    assert optimizer.param_groups[1]["lr"] == 0.05


def test_a_scaler_unscales_all_parts_and_skips_the_step_of_all():
    params, optimizer = made(torch.float32)
    expected, plain = made(torch.float32)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(torch.zeros(()))  # of a loss: it makes its scale with the first one
    for t, spoiled in enumerate((False, True, False)):
        grads = make_grads(params, t)
        scale = scaler.get_scale()
        for param, other, grad in zip(params, expected, grads, strict=True):
            param.grad = grad * scale
            other.grad = grad
        if spoiled:
            params[3].grad[0] = float("inf")
        else:
            plain.step()
        scaler.step(optimizer)
        scaler.update()
    assert_bitwise(params, expected)
    assert optimizer.state[params[1]]["step"] == 2


def test_the_probe_sees_all_parts():
    model = Model()
    optimizer = CombinedOptimizer(parts_of(list(model.own)))
    with Probe(model, optimizer, every=1) as probe:
        train(None, list(model.own), 2, optimizer=optimizer)
    assert [parameter.observed for parameter in probe.report()] == [2] * 5


def test_a_group_is_added_to_a_part_and_the_whole_has_it():
    _, optimizer = made()
    new = Parameter(torch.ones(2, 2))
    with pytest.raises(TypeError, match=r"which part should get it.*optimizers\[0\] \(Muon\).*optimizers\[3\] \(SGD\)"):
        optimizer.add_param_group({"params": [new]})
    optimizer.optimizers[1].add_param_group({"params": [("new", new)]})
    assert optimizer.param_groups[3]["params"][0] is new
    new.grad = torch.ones(2, 2)
    optimizer.step()
    assert optimizer.state[new]["exp_avg_sq"].shape == (2, 1)
    assert optimizer.state_dict()["param_groups"][3]["params"] == [3]


def test_a_parameter_of_two_parts_is_named():
    shared, other = Parameter(torch.ones(2, 2)), Parameter(torch.ones(2))
    with pytest.raises(
        ValueError, match=r"parameter 'w' of optimizers\[1\] \(RowMomentum\) is in optimizers\[0\] \(SGD\)"
    ):
        CombinedOptimizer([SGD([shared]), RowMomentum([("b", other), ("w", shared)])])
    with pytest.raises(ValueError, match=r"parameter 1 of optimizers\[1\]"):
        CombinedOptimizer([SGD([shared]), SGD([other, shared])])
    later = CombinedOptimizer([SGD([shared]), SGD([other])])
    later.optimizers[1].add_param_group({"params": [shared]})
    for use in (later.step, later.state_dict):
        with pytest.raises(ValueError, match=r"parameter 1 of optimizers\[1\]"):
            use()


@pytest.mark.parametrize(
    ("parts", "error", "message"),
    [
        ([], ValueError, "empty"),
        (lambda p: SGD(p), TypeError, "a list of torch optimizers, got SGD"),
        (7, TypeError, "got int"),
        (["adam"], TypeError, r"optimizers\[0\] \(str\) is not a torch optimizer"),
        (lambda p: [CombinedOptimizer([SGD(p)])], TypeError, "pass its parts"),
        (lambda p: [torch.optim.LBFGS(p)], TypeError, "cannot step without closure"),
    ],
)
def test_what_cannot_be_together(parts, error, message):
    params = [Parameter(torch.ones(2, 2))]
    with pytest.raises(error, match=message):
        CombinedOptimizer(parts(params) if callable(parts) else parts)


def test_parts_may_have_schedulers_of_their_own():
    part = SGD([Parameter(torch.ones(2, 2))], lr=1.0)
    schedule = torch.optim.lr_scheduler.ExponentialLR(part, 0.5)
    CombinedOptimizer([part]).step()
    schedule.step()
    assert part.param_groups[0]["lr"] == 0.5


def test_a_part_without_parameters_and_state_beside_the_parameters():
    params = [Parameter(torch.ones(2, 2))]
    optimizer = CombinedOptimizer([ColumnAdaGrad([{"params": []}]), Rprop(params)])
    params[0].grad = torch.ones(2, 2)
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    assert "ColumnAdaGrad" in repr(optimizer)
    assert "Rprop" in repr(optimizer)
    optimizer.optimizers[1].state["note"] = {"seen": 3}
    with pytest.raises(ValueError, match=r"Rprop saves \['note'\] beside"):
        optimizer.state_dict()
