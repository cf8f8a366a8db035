"""The state of several optimizers as one: made ahead, saved, loaded, copied."""

import copy
import io
import pickle

import pytest
import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.nn import Parameter
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from matrix_adagrad import CombinedOptimizer
from matrix_adagrad.checkpoints import Checkpoints
from tests.optim.parts import Model, assert_same_saved, made, parts_of, trained
from tests.optim.training import assert_bitwise, make_params, train


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
    loaded = CombinedOptimizer(parts_of(copies))
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
    combined = CombinedOptimizer([AdamW([old, new])])
    old.grad = torch.ones_like(old)
    combined.step()
    combined.init_state()
    assert (combined.state[old]["step"], combined.state[new]["step"]) == (1, 0)


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
        optimizer, calls = CombinedOptimizer([part]), []
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
    optimizer = CombinedOptimizer([AdamW([frozen, free]), torch.optim.SparseAdam(table.parameters())])
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


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_a_copy_goes_on_alike(copied):
    params, optimizer = trained(2)
    LambdaLR(optimizer, lambda _: 1.0)  # it wraps the step of this instance
    twins, twin = copied((params, optimizer))
    train(None, params, 2, 2, optimizer)
    train(None, twins, 2, 2, twin)
    assert_bitwise(twins, params)
    assert all(param in twin.state for param in twins)


def test_torchs_checkpoints_hold_all_of_it(tmp_path):
    model, other = Model(), Model()
    optimizer, fresh = CombinedOptimizer(parts_of(list(model.own))), CombinedOptimizer(parts_of(list(other.own)))
    train(None, list(model.own), 3, optimizer=optimizer)
    set_optimizer_state_dict(other, fresh, get_optimizer_state_dict(model, optimizer))
    assert_same_saved(fresh.state_dict(), optimizer.state_dict())

    Checkpoints(tmp_path, model, optimizer).save(3)
    third = Model()
    resumed = CombinedOptimizer(parts_of(list(third.own)))
    assert Checkpoints(tmp_path, third, resumed).resume() == 3
    for each, stepper in ((model, optimizer), (third, resumed)):
        train(None, list(each.own), 2, 3, stepper)
    assert_bitwise(list(third.own), list(model.own))
