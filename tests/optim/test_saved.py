"""What a saved state may hold: every value is checked, and one that does not fit changes nothing."""

import copy

import numpy as np
import pytest
import torch

from matrix_adagrad import Blocks, MatrixAdaGrad, RowAdaGrad, RowMomentum
from tests.optim.table import CLASSES
from tests.optim.test_checkpoints import through_a_file
from tests.optim.training import assert_bitwise, make_params, train


@pytest.mark.parametrize("geometry", ["row", "whole", Blocks(rows=2)], ids=str)
def test_a_state_of_another_width_is_refused_with_both_shapes(geometry):
    _, saved = train(lambda p: MatrixAdaGrad(p, geometry=geometry), make_params(shapes=[(10, 16)]))
    optimizer = MatrixAdaGrad(make_params(shapes=[(10, 64)]), geometry=geometry)
    with pytest.raises(ValueError, match=r"parameter 0: .*of shape \(10, 16\), but here it has shape \(10, 64\)"):
        optimizer.load_state_dict(through_a_file(saved.state_dict()))
    assert not optimizer.state


def test_a_state_of_one_column_is_not_that_of_many():
    _, saved = train(RowAdaGrad, make_params(shapes=[(10, 1)]))
    with pytest.raises(ValueError, match=r"of shape \(10, 1\), but here it has shape \(10, 64\)"):
        RowAdaGrad(make_params(shapes=[(10, 64)])).load_state_dict(saved.state_dict())


def test_the_shape_is_saved_only_where_the_state_does_not_tell_it():
    def keys(make):
        return set(train(make)[1].state_dict()["state"][0])

    assert keys(RowAdaGrad) == {"step", "sum", "shape"}
    assert keys(lambda p: MatrixAdaGrad(p, geometry="entry")) == {"step", "sum"}
    assert keys(RowMomentum) == {"step", "exp_avg", "exp_avg_sq"}
    _, optimizer = train(RowAdaGrad)
    optimizer.state_dict()
    assert all(set(state) == {"step", "sum"} for state in optimizer.state.values())


def test_a_state_without_shapes_is_loaded_with_a_warning():
    params, optimizer = train(RowAdaGrad)
    saved = optimizer.state_dict()
    for state in saved["state"].values():
        state.pop("shape", None)
    clone = RowAdaGrad(params)
    with pytest.warns(UserWarning, match="does not record the shape of parameter 0 and others"):
        clone.load_state_dict(saved)
    assert_bitwise([s["sum"] for s in clone.state.values()], [s["sum"] for s in optimizer.state.values()])


BAD = {
    "no number": ("step", torch.empty(0), "must be one whole number, at least 0"),
    "three numbers": ("step", torch.zeros(3), "must be one whole number, at least 0"),
    "below zero": ("step", torch.tensor(-1.0), "must be one whole number, at least 0"),
    "nothing": ("step", torch.tensor(torch.nan), "must be one whole number, at least 0"),
    "half a step": ("step", 1.5, "must be one whole number, at least 0"),
    "too many": ("step", 10**400, "must be one whole number, at least 0"),
    "squares below zero": ("exp_avg_sq", torch.full((6, 1), -5.0), "contains negative values"),
    "words": ("step", "seven", "must be one whole number, at least 0"),
    "integers": ("exp_avg_sq", torch.zeros(6, 1, dtype=torch.int64), "must be a dense floating-point tensor"),
    "sparse": ("exp_avg_sq", torch.zeros(6, 1).to_sparse(), "must be a dense floating-point tensor"),
    "complex": ("exp_avg", torch.zeros(6, 4, dtype=torch.complex64), "must be a dense floating-point tensor"),
    "a list": ("exp_avg", [[0.0] * 4] * 6, "must be a dense floating-point tensor"),
}


@pytest.mark.parametrize(("key", "value", "words"), BAD.values(), ids=BAD)
def test_every_value_of_a_saved_state_is_checked_before_anything_changes(key, value, words):
    _, optimizer = train(RowMomentum, make_params(shapes=[(6, 4)]))
    saved = optimizer.state_dict()
    before = copy.deepcopy(saved)
    tampered = {**saved, "state": {0: {**saved["state"][0], key: value}}}
    with pytest.raises(ValueError, match=f"parameter 0: the saved '{key}' {words}.*nothing was loaded"):
        optimizer.load_state_dict(tampered)
    after = optimizer.state_dict()["state"][0]
    assert_bitwise([after[k] for k in before["state"][0]], list(before["state"][0].values()))
    optimizer.step()


def test_a_count_of_one_element_is_a_number():
    _, optimizer = train(RowMomentum)
    saved = optimizer.state_dict()
    state = {i: {**own, "step": own["step"].reshape(1, 1)} for i, own in saved["state"].items()}
    optimizer.load_state_dict({**saved, "state": state})
    assert all(own["step"].shape == () for own in optimizer.state.values())


@pytest.mark.parametrize("entrant", CLASSES, ids=str)
def test_numbers_of_other_libraries_are_saved_as_pythons(entrant):
    params, optimizer = train(lambda p: entrant(p, lr=np.float64(0.1), eps=np.float32(1e-8)))
    optimizer.param_groups[0]["lr"] = np.float64(0.05)  # as of a scheduler with a function of NumPy
    saved = through_a_file(optimizer.state_dict())
    assert type(saved["param_groups"][0]["lr"]) is float
    clone = entrant(params)
    clone.load_state_dict(saved)
    assert clone.param_groups[0]["lr"] == 0.05
