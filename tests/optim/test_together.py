"""Several optimizers as one: a step of it is a step of each, and what holds an optimizer holds it."""

import copy
import io
import pickle

import pytest
import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.nn import Parameter
from torch.optim import SGD, AdamW, Muon, Rprop
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR, ReduceLROnPlateau

from matrix_adagrad import ColumnAdaGrad, RowMomentum, Together
from matrix_adagrad.advisor import Probe
from matrix_adagrad.checkpoints import Checkpoints
from tests.optim.training import assert_bitwise, make_grads, make_params, train

SHAPES = ((6, 4), (4, 6), (5, 3), (7,), (3, 3))


def parts_of(params):
    """Of each kind: torch's and ours, with one group and with two, some of them with weight decay."""
    return [
        Muon(params[:1], lr=0.02, weight_decay=0.1),
        RowMomentum([{"params": [("w", params[1])]}, {"params": [("bias", params[3])], "lr": 0.03}], lr=0.1),
        AdamW(params[2:3], lr=0.01),
        SGD(params[4:], lr=0.1, momentum=0.9, weight_decay=0.1),
    ]


def made(dtype=torch.float64):
    params = make_params(dtype, SHAPES)
    return params, Together(parts_of(params))


def trained(steps=3):
    return train(lambda params: Together(parts_of(params)), make_params(shapes=SHAPES), steps)


def assert_same_saved(one, two):
    torch.testing.assert_close(one["state"], two["state"], rtol=0, atol=0)
    assert one["param_groups"] == two["param_groups"]


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.own = torch.nn.ParameterList(make_params(torch.float32, SHAPES))


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


def test_numbers_of_parameters_go_on_from_part_to_part():
    _, optimizer = trained()
    saved = optimizer.state_dict()
    assert [group["params"] for group in saved["param_groups"]] == [[0], [1], [2], [3], [4]]
    assert [tuple(saved["state"][number]) for number in range(5)] == [
        ("momentum_buffer",),
        ("step", "exp_avg", "exp_avg_sq"),
        ("step", "exp_avg", "exp_avg_sq"),
        ("step", "exp_avg", "exp_avg_sq"),
        ("momentum_buffer",),
    ]
    assert saved["state"][1]["exp_avg_sq"].shape == (4, 1)
    assert saved["param_groups"][1]["geometry"] == "row"  # as the part itself saves it


def test_a_run_goes_on_from_a_file_of_plain_types():
    params, optimizer = trained(3)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    copies = [Parameter(param.detach().clone()) for param in params]
    loaded = Together(parts_of(copies))
    loaded.load_state_dict(state_dict=torch.load(file, weights_only=True))
    train(None, params, 3, 3, optimizer)
    train(None, copies, 3, 3, loaded)
    assert_bitwise(copies, params)


def test_statistics_stay_float32_where_the_part_keeps_them_so():
    params, optimizer = made(torch.bfloat16)
    train(None, params, 2, optimizer=optimizer)
    saved = optimizer.state_dict()
    _, other = made(torch.bfloat16)
    other.load_state_dict(saved)
    states = {name: value.dtype for name, value in other.state[other.param_groups[1]["params"][0]].items()}
    assert states == {"step": torch.float32, "exp_avg": torch.float32, "exp_avg_sq": torch.float32}


def refused(saved):
    saved["param_groups"][1]["geometry"] = "column"  # the second part refuses it, after the first has loaded
    return saved


def fewer(saved):
    del saved["param_groups"][2]
    return saved


def unknown(saved):
    saved["state"][77] = {}
    return saved


@pytest.mark.parametrize(
    ("spoil", "message"), [(refused, "geometry column"), (fewer, "nothing was loaded"), (unknown, r"\[77\]")]
)
def test_a_state_that_a_part_refuses_changes_nothing_in_any(spoil, message):
    _, optimizer = trained(4)
    params, other = trained(2)
    before = copy.deepcopy(other.state_dict())
    groups, states = other.param_groups, [dict(part.state) for part in other.optimizers]
    with pytest.raises(ValueError, match=message):
        other.load_state_dict(spoil(optimizer.state_dict()))
    assert all(mine is theirs for mine, theirs in zip(other.param_groups, groups, strict=True))
    for part, state in zip(other.optimizers, states, strict=True):
        assert all(part.state[param] is value for param, value in state.items())
    assert_same_saved(other.state_dict(), before)
    twin, expected = trained(2)
    train(None, params, 2, 2, other)
    train(None, twin, 2, 2, expected)
    assert_bitwise(params, twin)


def test_state_that_is_made_ahead_is_complete_moves_nothing_and_changes_no_later_step():
    params, optimizer = made()
    before = [param.detach().clone() for param in params]
    rates = [dict(group) for group in optimizer.param_groups]
    params[0].grad = torch.ones(6, 4, dtype=torch.float64)
    optimizer.init_state()
    assert_bitwise(params, before)
    assert [dict(group) for group in optimizer.param_groups] == rates
    assert all(optimizer.state[param] for param in params)
    assert params[0].grad.sum() == 24
    assert all(param.grad is None for param in params[1:])
    for state in optimizer.state.values():
        assert not any(value.any() for value in state.values())
    train(None, params, 4, optimizer=optimizer)
    assert_bitwise(params, trained(4)[0])


def test_state_that_is_made_between_steps_leaves_that_of_others_alone():
    params, optimizer = made()
    params[1].grad = torch.ones(4, 6, dtype=torch.float64)
    optimizer.step()
    optimizer.init_state()
    assert all(optimizer.state_dict()["state"][number] for number in range(5))
    assert optimizer.state[params[1]]["step"] == 1
    assert optimizer.state[params[2]]["step"] == 0

    old, new = make_params(shapes=((2, 3), (3, 2)))
    one = Together([AdamW([old, new])])
    old.grad = torch.ones_like(old)
    one.step()
    one.init_state()
    assert (one.state[old]["step"], one.state[new]["step"]) == (1, 0)


OTHERS = {
    "Adadelta": {},
    "Adafactor": {},
    "Adagrad": {"initial_accumulator_value": 0.3},
    "Adam": {"amsgrad": True},
    "Adamax": {},
    "AdamW": {},
    "ASGD": {},
    "NAdam": {},
    "RAdam": {},
    "RMSprop": {"momentum": 0.9, "centered": True},
    "Rprop": {},
    "SGD": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    "SGD with dampening": {"momentum": 0.9, "dampening": 0.5},
}


@pytest.mark.parametrize("name", OTHERS)
def test_making_state_changes_no_later_step_of_any_torch_optimizer(name):
    def run(makes_state):
        params = make_params(shapes=((4, 3), (3,)))
        part = getattr(torch.optim, name.split()[0])(params, lr=0.1, **OTHERS[name])
        part.register_step_pre_hook(lambda *_: calls.append(1))
        optimizer, calls = Together([part]), []
        if makes_state:
            optimizer.init_state()
        assert not calls
        train(None, params, 4, optimizer=optimizer)
        return params

    assert_bitwise(run(True), run(False))


def test_frozen_parameters_get_no_state_and_sparse_tables_are_left_alone():
    frozen, free = make_params(shapes=((2, 3), (3, 2)))
    frozen.requires_grad_(False)
    table = torch.nn.Embedding(4, 2, sparse=True)
    optimizer = Together([AdamW([frozen, free]), torch.optim.SparseAdam(table.parameters())])
    optimizer.init_state()
    assert list(optimizer.state) == [free]


def test_zero_grad_is_handed_on_and_loading_leaves_the_given_dict_alone():
    params, optimizer = trained()
    optimizer.zero_grad(set_to_none=False)
    assert all(param.grad is not None and not param.grad.any() for param in params)
    saved = optimizer.state_dict()
    kept = {**saved}
    optimizer.register_load_state_dict_pre_hook(lambda _, given: given.update(noted=True))
    optimizer.load_state_dict(saved)
    assert saved == kept


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


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_a_copy_goes_on_alike(copied):
    params, optimizer = trained(2)
    LambdaLR(optimizer, lambda _: 1.0)  # it wraps the step of this instance
    twins, twin = copied((params, optimizer))
    train(None, params, 2, 2, optimizer)
    train(None, twins, 2, 2, twin)
    assert_bitwise(twins, params)
    assert all(param in twin.state for param in twins)


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


def test_torchs_checkpoints_hold_all_of_it(tmp_path):
    model, other = Model(), Model()
    optimizer, fresh = Together(parts_of(list(model.own))), Together(parts_of(list(other.own)))
    train(None, list(model.own), 3, optimizer=optimizer)
    set_optimizer_state_dict(other, fresh, get_optimizer_state_dict(model, optimizer))
    assert_same_saved(fresh.state_dict(), optimizer.state_dict())

    Checkpoints(tmp_path, model, optimizer).save(3)
    third = Model()
    resumed = Together(parts_of(list(third.own)))
    assert Checkpoints(tmp_path, third, resumed).resume() == 3
    for one, two in ((model, optimizer), (third, resumed)):
        train(None, list(one.own), 2, 3, two)
    assert_bitwise(list(third.own), list(model.own))


def test_the_probe_sees_all_parts():
    model = Model()
    optimizer = Together(parts_of(list(model.own)))
    with Probe(model, optimizer, every=1) as probe:
        train(None, list(model.own), 2, optimizer=optimizer)
    assert [portrait.observed for portrait in probe.report().portraits] == [2] * 5


def test_a_group_is_added_to_a_part_and_the_whole_has_it():
    _, optimizer = made()
    new = Parameter(torch.ones(2, 2))
    with pytest.raises(TypeError, match=r"to which part.*optimizers\[0\] \(Muon\).*optimizers\[3\] \(SGD\)"):
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
        Together([SGD([shared]), RowMomentum([("b", other), ("w", shared)])])
    with pytest.raises(ValueError, match=r"parameter 1 of optimizers\[1\]"):
        Together([SGD([shared]), SGD([other, shared])])
    later = Together([SGD([shared]), SGD([other])])
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
        (["adam"], TypeError, r"optimizers\[0\] \(str\) is no torch optimizer"),
        (lambda p: [Together([SGD(p)])], TypeError, "give its parts"),
        (lambda p: [torch.optim.LBFGS(p)], TypeError, "cannot step without closure"),
    ],
)
def test_what_cannot_be_together(parts, error, message):
    params = [Parameter(torch.ones(2, 2))]
    with pytest.raises(error, match=message):
        Together(parts(params) if callable(parts) else parts)


def test_parts_may_have_schedulers_of_their_own():
    part = SGD([Parameter(torch.ones(2, 2))], lr=1.0)
    schedule = torch.optim.lr_scheduler.ExponentialLR(part, 0.5)
    Together([part]).step()
    schedule.step()
    assert part.param_groups[0]["lr"] == 0.5


def test_a_part_without_parameters_and_state_beside_the_parameters():
    params = [Parameter(torch.ones(2, 2))]
    optimizer = Together([ColumnAdaGrad([{"params": []}]), Rprop(params)])
    params[0].grad = torch.ones(2, 2)
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    assert "ColumnAdaGrad" in repr(optimizer)
    assert "Rprop" in repr(optimizer)
    optimizer.optimizers[1].state["note"] = {"seen": 3}
    with pytest.raises(ValueError, match=r"Rprop saves \['note'\] beside"):
        optimizer.state_dict()
