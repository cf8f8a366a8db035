"""The format of a saved state has a number. It travels with the state, and a newer one is refused."""

import copy

import pytest
import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.optim import SGD

from matrix_adagrad import CombinedOptimizer, RowAdaGrad, RowMomentum
from matrix_adagrad.checkpoints import Checkpoints
from matrix_adagrad.optim.saved import FORMAT, FORMAT_KEY
from tests.optim.table import CLASSES
from tests.optim.test_checkpoints import through_a_file
from tests.optim.training import assert_bitwise, make_params, train

NEWER = rf"saved state has format {FORMAT + 1}, .* reads formats up to {FORMAT}: install the version that saved it"


def with_format(state_dict, number):
    groups = [{**group, FORMAT_KEY: number} for group in state_dict["param_groups"]]
    return {**state_dict, "param_groups": groups}


@pytest.mark.parametrize("entrant", CLASSES, ids=str)
def test_every_saved_group_has_the_format_and_no_live_one(entrant):
    params, optimizer = train(entrant)
    saved = through_a_file(optimizer.state_dict())
    assert [group[FORMAT_KEY] for group in saved["param_groups"]] == [FORMAT]
    clone = entrant(params)
    clone.load_state_dict(saved)
    assert not any(FORMAT_KEY in group for group in (*optimizer.param_groups, *clone.param_groups))
    assert clone.state_dict()["param_groups"] == saved["param_groups"]


@pytest.mark.parametrize("entrant", CLASSES, ids=str)
def test_a_newer_format_is_refused_and_nothing_changes(entrant):
    params, optimizer = train(entrant)
    before = copy.deepcopy(optimizer.state_dict()["state"])
    with pytest.raises(ValueError, match=NEWER):
        optimizer.load_state_dict(with_format(entrant(params).state_dict(), FORMAT + 1))
    for number, state in optimizer.state_dict()["state"].items():
        assert_bitwise([*state.values()], [*before[number].values()])


@pytest.mark.parametrize("number", [0, -1, 1.0, "2", True, None], ids=repr)
def test_a_format_that_is_no_number_of_one_is_refused(number):
    _, optimizer = train(RowAdaGrad)
    with pytest.raises(ValueError, match=f"'{FORMAT_KEY}' must be a whole number, at least 1, but is {number!r}"):
        optimizer.load_state_dict(with_format(optimizer.state_dict(), number))


def model_and(make):
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2))
    optimizer = make([model[0].parameters(), model[1].parameters()])
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


def combined(params):
    return CombinedOptimizer([SGD(params[0], lr=0.1, momentum=0.5), RowMomentum(params[1])])


MAKERS = {
    "alone": lambda params: RowMomentum([{"params": group} for group in params]),
    "combined": combined,
}
every_maker = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


@every_maker
def test_the_format_survives_torchs_distributed_state_dicts(make):
    model, optimizer = model_and(make)
    saved = get_optimizer_state_dict(model, optimizer)
    ours = [group for group in saved["param_groups"] if "geometry" in group]
    assert ours
    assert {group[FORMAT_KEY] for group in ours} == {FORMAT}
    set_optimizer_state_dict(model, optimizer, copy.deepcopy(saved))
    ours[-1][FORMAT_KEY] = FORMAT + 1
    with pytest.raises(ValueError, match=NEWER):
        set_optimizer_state_dict(model, optimizer, saved)


@every_maker
def test_a_checkpoint_of_a_newer_format_is_refused_and_the_model_stays(make, tmp_path, monkeypatch):
    model, optimizer = model_and(make)
    with monkeypatch.context() as patch:
        patch.setattr("matrix_adagrad.optim.state.FORMAT", FORMAT + 1)
        Checkpoints(tmp_path, model, optimizer).save(1)
    other, fresh = model_and(make)
    before = [param.detach().clone() for param in other.parameters()]
    with pytest.raises(ValueError, match=NEWER):
        Checkpoints(tmp_path, other, fresh).resume()
    assert_bitwise([*other.parameters()], before)


@every_maker
def test_a_newer_format_is_named_even_if_its_state_has_other_names(make, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("matrix_adagrad.optim.state.FORMAT", FORMAT + 1)
        patch.setattr(RowMomentum, "STATISTIC", "squares")
        Checkpoints(tmp_path, *model_and(make)).save(1)
    with pytest.raises(ValueError, match=NEWER):
        Checkpoints(tmp_path, *model_and(make)).resume()


def test_a_state_without_a_format_is_the_first_one():
    params, optimizer = train(RowMomentum)
    saved = through_a_file(optimizer.state_dict())
    for group in saved["param_groups"]:
        del group[FORMAT_KEY]
    clone = RowMomentum(params)
    clone.load_state_dict(saved)
    assert_bitwise([*clone.state[params[0]].values()], [*optimizer.state[params[0]].values()])


def test_a_torch_optimizer_loads_a_state_with_a_format():
    params = make_params(shapes=[(4, 1)])
    _, optimizer = train(lambda p: RowAdaGrad(p, lr=0.3), params)
    saved = optimizer.state_dict()
    heir = torch.optim.Adagrad(params)
    heir.load_state_dict({**saved, "state": {0: {key: saved["state"][0][key] for key in ("step", "sum")}}})
    assert heir.param_groups[0]["lr"] == 0.3
