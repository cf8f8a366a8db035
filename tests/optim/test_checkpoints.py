"""A run that is saved and resumed is the run that was never broken; a state that does not fit changes nothing."""

import copy
import io
import pickle
from dataclasses import dataclass

import pytest
import torch
from torch.nn import Parameter
from torch.optim import Adagrad, Adam, NAdam

from matrix_adagrad import Blocks, ColumnAdaGrad, MatrixAdaGrad, MatrixMomentum, Row, RowAdaGrad, RowMomentum
from matrix_adagrad.domains import RowBalls
from tests.optim.table import CLASSES, TABLE
from tests.optim.training import assert_bitwise, make_params, train

every_class = pytest.mark.parametrize("entrant", CLASSES, ids=str)
every_entrant = pytest.mark.parametrize("entrant", TABLE, ids=str)
DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.complex64)


def through_a_file(state_dict):
    file = io.BytesIO()
    torch.save(state_dict, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def by_state_dict(params, optimizer, entrant):
    clone = entrant(params)
    clone.load_state_dict(through_a_file(optimizer.state_dict()))
    return params, clone


def by_deepcopy(params, optimizer, entrant):  # noqa: ARG001
    clone = copy.deepcopy(optimizer)
    return clone.param_groups[0]["params"], clone


def by_pickle(params, optimizer, entrant):  # noqa: ARG001
    clone = pickle.loads(pickle.dumps(optimizer))
    return clone.param_groups[0]["params"], clone


@every_entrant
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("resume", [by_state_dict, by_deepcopy, by_pickle])
def test_a_resumed_run_equals_the_unbroken_one(entrant, dtype, resume):
    unbroken, kept = train(entrant, make_params(dtype), steps=6)
    params, optimizer = train(entrant, make_params(dtype), steps=3)
    params, optimizer = resume(params, optimizer, entrant)
    for param in params:
        for key in (entrant.statistic, "exp_avg"):
            if key in optimizer.state[param]:
                assert optimizer.state[param][key].dtype in (torch.float32, torch.float64, torch.complex64)
    train(None, params, steps=3, start=3, optimizer=optimizer)
    assert_bitwise(params, unbroken)
    for param, twin in zip(params, unbroken, strict=True):
        assert_bitwise(list(optimizer.state[param].values()), list(kept.state[twin].values()))


@every_class
def test_options_come_back_with_the_state(entrant):
    _, optimizer = train(lambda p: entrant(p, lr=0.5, weight_decay=0.25, reduction="mean"))
    fresh = entrant(make_params())
    fresh.load_state_dict(through_a_file(optimizer.state_dict()))
    group = fresh.param_groups[0]
    assert (group["lr"], group["weight_decay"], group["reduction"]) == (0.5, 0.25, "mean")
    assert group["geometry"] == entrant.geometry


def test_state_dict_holds_plain_types_and_geometries_by_name():
    optimizer = MatrixAdaGrad(make_params(shapes=[(6, 4)]), geometry=Blocks(rows=3))
    group = optimizer.state_dict()["param_groups"][0]
    assert group["geometry"] == "blocks(rows=3, columns=1)"
    assert {type(value) for value in group.values()} <= {str, float, int, bool, type(None), list}
    assert optimizer.param_groups[0]["geometry"] == Blocks(rows=3)


@every_class
def test_a_state_dict_from_before_an_option_existed_takes_its_default(entrant):
    _, optimizer = train(entrant)
    old = optimizer.state_dict()
    for group in old["param_groups"]:
        for key in ("reduction", "stochastic_rounding", "capturable", "domain", "geometry"):
            del group[key]
    fresh = entrant(make_params(), reduction="mean")
    fresh.load_state_dict(old)
    train(None, fresh.param_groups[0]["params"], optimizer=fresh)
    assert fresh.param_groups[0]["reduction"] == "mean"


@every_class
def test_loading_does_not_change_the_dict_that_was_loaded(entrant):
    _, optimizer = train(entrant)
    saved = optimizer.state_dict()
    before = copy.deepcopy(saved)
    entrant(make_params()).load_state_dict(state_dict=saved)  # by torch's keyword
    assert saved["param_groups"] == before["param_groups"]
    assert saved["state"].keys() == before["state"].keys()
    for index, values in saved["state"].items():
        assert_bitwise(list(values.values()), list(before["state"][index].values()))


def snapshot(optimizer):
    return copy.deepcopy((optimizer.state_dict(), [group["geometry"] for group in optimizer.param_groups]))


def assert_unchanged(optimizer, before):
    after = snapshot(optimizer)
    assert after[0]["param_groups"] == before[0]["param_groups"]
    assert after[1] == before[1]
    for index, values in after[0]["state"].items():
        assert_bitwise(list(values.values()), list(before[0]["state"][index].values()))


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize(
    ("saved_by", "loaded_by", "words"),
    [
        (
            lambda p: MatrixAdaGrad(p, geometry="row"),
            lambda p: MatrixAdaGrad(p, geometry="column"),
            r"'sum' has geometry row and shape \(6, 1\), .* needs geometry column and shape \(1, 4\); nothing was",
        ),
        (
            lambda p: MatrixMomentum(p, geometry="entry"),
            lambda p: MatrixMomentum(p, geometry=Blocks(rows=2)),
            r"geometry entry and shape \(6, 4\), .* needs geometry blocks\(rows=2, columns=1\) and shape \(2, 1, 1\)",
        ),
        (Adagrad, RowAdaGrad, r"has no geometry .* and shape \(6, 4\), .* needs geometry row and shape \(6, 1\)"),
        (Adam, RowMomentum, r"'exp_avg_sq' has .* shape \(6, 4\), .* needs geometry row and shape \(6, 1\)"),
        (Adam, RowAdaGrad, "the saved state has step, exp_avg, exp_avg_sq, and RowAdaGrad has step, sum; nothing"),
        (NAdam, MatrixMomentum, "the saved state has step, mu_product, exp_avg, exp_avg_sq, and MatrixMomentum has"),
        (RowAdaGrad, RowMomentum, "the saved state has step, sum, and RowMomentum has step, exp_avg_sq, exp_avg"),
    ],
)
def test_a_state_of_another_geometry_or_optimizer_names_the_parameter_and_changes_nothing(
    saved_by, loaded_by, words, named
):
    def given(params):
        return list(zip("ab", params, strict=True)) if named else params

    shapes = [(6, 4), (6, 4)]
    _, saved = train(lambda p: saved_by(given(p)), make_params(shapes=shapes))
    params, optimizer = train(lambda p: loaded_by(given(p)), make_params(shapes=shapes))
    before = snapshot(optimizer)
    name = "parameter 'a'" if named else "parameter 0"
    with pytest.raises(ValueError, match=f"{name}: .*({words})"):
        optimizer.load_state_dict(saved.state_dict())
    assert_unchanged(optimizer, before)
    train(None, params, optimizer=optimizer)


@every_class
def test_a_state_of_another_shape_names_the_parameter_and_changes_nothing(entrant):
    _, saved = train(entrant, make_params(shapes=[(6, 4), (8, 4)]))
    _, optimizer = train(entrant, make_params(shapes=[(6, 4), (10, 6)]))
    before = snapshot(optimizer)
    with pytest.raises(ValueError, match="parameter 1: .* nothing was loaded"):
        optimizer.load_state_dict(saved.state_dict())
    assert_unchanged(optimizer, before)


@every_class
def test_a_state_for_other_groups_is_refused_in_torchs_words(entrant):
    _, saved = train(entrant, make_params(shapes=[(6, 4)]))
    _, optimizer = train(entrant, make_params(shapes=[(6, 4), (6, 4)]))
    before = snapshot(optimizer)
    with pytest.raises(ValueError, match="doesn't match the size"):
        optimizer.load_state_dict(saved.state_dict())
    assert_unchanged(optimizer, before)


@every_class
def test_named_parameters_in_another_order_are_refused(entrant):
    params = make_params(shapes=[(4, 4), (4, 4)])
    _, saved = train(lambda p: entrant(list(zip("ab", p, strict=True))), params)
    swapped = entrant([("b", params[1]), ("a", params[0])])
    with pytest.raises(ValueError, match=r"saved parameters are \['a', 'b'\], here they are \['b', 'a'\]"):
        swapped.load_state_dict(saved.state_dict())
    assert not swapped.state
    renamed = entrant([("module.a", params[0]), ("module.b", params[1])])
    renamed.load_state_dict(saved.state_dict())  # as in torch: the order decides


def test_state_moves_to_parameters_of_another_dtype_and_stays_wide():
    _, saved = train(RowMomentum, make_params(torch.float64, [(6, 4)]))
    params = make_params(torch.bfloat16, [(6, 4)])
    optimizer = RowMomentum(params)
    optimizer.load_state_dict(saved.state_dict())
    assert {value.dtype for value in optimizer.state[params[0]].values()} == {torch.float32}
    train(None, params, optimizer=optimizer)


def test_how_a_step_is_run_is_not_loaded():
    _, saved = train(lambda p: RowAdaGrad(p, foreach=True, capturable=True))
    params = make_params()
    optimizer = RowAdaGrad(params, differentiable=True)
    optimizer.load_state_dict(saved.state_dict())
    group = optimizer.param_groups[0]
    assert (group["foreach"], group["capturable"], group["differentiable"]) == (None, False, True)


def test_a_count_of_steps_goes_to_the_device_of_a_capturable_step():
    _, saved = train(RowMomentum, make_params(shapes=[(6, 4)]))
    (param,) = params = [torch.nn.Parameter(torch.empty(6, 4, device="meta", dtype=torch.float64))]
    optimizer = RowMomentum(params, capturable=True)
    optimizer.load_state_dict(saved.state_dict())
    assert optimizer.state[param]["step"].device.type == "meta"


def test_options_of_a_group_that_a_foreign_state_does_not_have_stay_as_they_are():
    params = make_params(shapes=[(6, 1)])
    _, peer = train(lambda p: Adagrad(p, lr=0.3), params)
    optimizer = MatrixAdaGrad([{"params": params, "reduction": "mean"}])
    optimizer.load_state_dict(peer.state_dict())
    assert (optimizer.param_groups[0]["reduction"], optimizer.param_groups[0]["lr"]) == ("mean", 0.3)


@pytest.mark.parametrize(
    ("peer", "ours", "words"),
    [
        (lambda p: Adagrad(p, lr_decay=0.5), MatrixAdaGrad, "lr_decay=0.5, which is not supported: use a scheduler"),
        (lambda p: Adam(p, amsgrad=True), MatrixMomentum, "amsgrad=True, which is not supported"),
    ],
)
def test_a_foreign_run_that_could_not_go_on_is_refused(peer, ours, words):
    params, saved = train(peer)
    optimizer = ours(params, geometry="entry")
    with pytest.raises(ValueError, match=words):
        optimizer.load_state_dict(saved.state_dict())
    assert not optimizer.state


def test_an_option_that_cannot_be_is_refused_from_a_file_too():
    _, optimizer = train(RowAdaGrad)
    saved = optimizer.state_dict()
    saved["param_groups"][0]["eps"] = -1.0
    before = snapshot(optimizer)
    with pytest.raises(ValueError, match="eps must be"):
        optimizer.load_state_dict(saved)
    assert_unchanged(optimizer, before)


@pytest.mark.parametrize("peer", [Adam, RowMomentum])
def test_a_state_that_never_stepped_brings_no_options_of_another_kind(peer):
    params = make_params()
    optimizer = MatrixAdaGrad(params, initial_accumulator_value=0.5)
    optimizer.load_state_dict(peer(params).state_dict() | {"state": {}})
    assert "betas" not in optimizer.param_groups[0]
    train(None, params, optimizer=optimizer)


def test_groups_that_a_wrapper_saved_as_they_are_load_too():
    """ZeroRedundancyOptimizer, for one, does not ask the optimizer inside for its state dict."""
    params, optimizer = train(RowAdaGrad)
    saved = optimizer.state_dict()
    saved["param_groups"][0]["geometry"] = optimizer.param_groups[0]["geometry"]
    fresh = RowAdaGrad(params)
    fresh.load_state_dict(through_a_file(saved))
    assert_bitwise([fresh.state[params[0]]["sum"]], [optimizer.state[params[0]]["sum"]])


def test_a_geometry_of_the_users_own_is_told_from_its_siblings():
    @dataclass(frozen=True)
    class Along(Row):
        axis: int = 0

    _, saved = train(lambda p: MatrixAdaGrad(p, geometry=Along(0)))
    with pytest.raises(ValueError, match=r"geometry along\(axis=0\) .* needs geometry along\(axis=1\)"):
        MatrixAdaGrad(make_params(), geometry=Along(1)).load_state_dict(saved.state_dict())


def test_entry_continues_a_run_of_torch_adagrad_and_of_adam():
    for theirs, ours in ((Adagrad, MatrixAdaGrad), (Adam, MatrixMomentum)):
        unbroken, _ = train(lambda p, cls=theirs: cls(p, lr=0.1), steps=6)
        params, optimizer = train(lambda p, cls=theirs: cls(p, lr=0.1), steps=3)
        heir = ours(params, geometry="entry")
        heir.load_state_dict(optimizer.state_dict())
        train(None, params, steps=3, start=3, optimizer=heir)
        torch.testing.assert_close(params, unbroken, rtol=1e-11, atol=1e-13)


@every_class
def test_hooks_see_and_replace_what_is_saved_and_loaded(entrant):
    params, optimizer = train(entrant)
    halved = optimizer.state_dict()

    def halve(_, state_dict):
        state = {
            index: {**values, entrant.statistic: values[entrant.statistic] / 2}
            for index, values in state_dict["state"].items()
        }
        return {**state_dict, "state": state}

    seen = []
    fresh = entrant(params)
    fresh.register_load_state_dict_pre_hook(halve)
    fresh.register_load_state_dict_post_hook(lambda o: seen.append(o.state[params[0]][entrant.statistic].clone()))
    fresh.load_state_dict(halved)
    expected = optimizer.state[params[0]][entrant.statistic] / 2
    assert_bitwise([fresh.state[params[0]][entrant.statistic], *seen], [expected, expected])
    assert len(fresh._optimizer_load_state_dict_pre_hooks) == 1  # the library's own is gone


@every_class
def test_torch_distributed_checkpoint_code_sees_the_state_of_every_trainable_parameter(entrant):
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

    model = torch.nn.ModuleDict({"used": torch.nn.Linear(4, 6), "unused": torch.nn.Linear(4, 6)})
    before = {name: p.detach().clone() for name, p in model.named_parameters()}

    def groups():
        weights = [(name, p) for name, p in model.named_parameters() if "weight" in name]
        biases = [(name, p) for name, p in model.named_parameters() if "bias" in name]
        return [{"params": weights}, {"params": biases, "lr": 0.5}]

    optimizer = entrant(groups(), eps=0.0)
    state = get_optimizer_state_dict(model, optimizer)  # creates it by a step with zero gradients and lr 0
    assert set(state["state"]) == set(before)
    assert_bitwise(list(model.parameters()), list(before.values()))
    model["used"](torch.ones(1, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    saved = copy.deepcopy(get_optimizer_state_dict(model, optimizer))
    fresh = entrant(groups())
    set_optimizer_state_dict(model, fresh, saved)
    for p in model.parameters():
        assert_bitwise(list(fresh.state[p].values()), list(optimizer.state[p].values()))
    assert fresh.param_groups[0]["geometry"] == entrant.geometry


@every_class
def test_after_a_step_the_state_of_parameters_without_gradients_is_saved_too(entrant):
    used, unused, frozen = (Parameter(torch.ones(3, 2), requires_grad=trained) for trained in (True, True, False))
    optimizer = entrant([used, unused, frozen])
    assert optimizer.state_dict()["state"] == {}  # as torch's optimizers
    used.grad = torch.ones_like(used)
    optimizer.step()
    saved = optimizer.state_dict()["state"]
    assert saved.keys() == {0, 1}
    assert (saved[0]["step"], saved[1]["step"]) == (1, 0)
    assert saved[0].keys() == saved[1].keys()


def test_a_loaded_state_is_no_part_of_the_one_that_it_came_from():
    params, optimizer = train(RowMomentum)
    other = RowMomentum(params)
    other.load_state_dict(optimizer.state_dict())
    before = [{key: value.clone() for key, value in other.state[param].items()} for param in params]
    optimizer.step()
    for param, values in zip(params, before, strict=True):
        for key, value in values.items():
            assert torch.equal(other.state[param][key], value)


def test_a_lazy_parameter_is_checked_when_its_state_is_made():
    layer = torch.nn.LazyLinear(2)
    optimizer = RowAdaGrad(layer.parameters(), domain=RowBalls(1e-9))
    layer(torch.ones(1, 3))
    with pytest.raises(ValueError, match="starts outside"):
        optimizer.init_state()


def test_a_geometry_is_refused_before_the_first_step_too_and_no_shape_is_made_up():
    (x,) = make_params(torch.float32, [(6, 4)])
    saved = RowAdaGrad([x]).state_dict()
    with pytest.raises(ValueError, match=r"the saved run has geometry row, and this optimizer has geometry column"):
        ColumnAdaGrad([x]).load_state_dict(saved)
