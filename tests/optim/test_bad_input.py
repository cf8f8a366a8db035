"""A wrong argument is named with its value and with what is allowed, and leaves nothing behind."""

import inspect

import pytest
import torch
from torch import nn
from torch.nn import Parameter

from matrix_adagrad import Blocks, ColumnMomentum, MatrixAdaGrad, MatrixMomentum, RowAdaGrad
from matrix_adagrad.domains import RowBalls
from tests.optim.table import CLASSES
from tests.optim.training import assert_bitwise, make_params, train

every_class = pytest.mark.parametrize("entrant", CLASSES, ids=str)
NAN, INF = float("nan"), float("inf")
NUMBER = "must be a finite number, at least 0"


@every_class
@pytest.mark.parametrize("by_group", [False, True])
@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"lr": -1.0}, ValueError, f"lr {NUMBER}.* got -1.0"),
        ({"lr": INF}, ValueError, f"lr {NUMBER}.* got inf"),
        ({"lr": NAN}, ValueError, f"lr {NUMBER}.* got nan"),
        ({"lr": "fast"}, TypeError, f"lr {NUMBER}.* got 'fast'"),
        ({"lr": torch.tensor(-1.0)}, ValueError, f"lr {NUMBER}, or a tensor"),
        ({"lr": torch.tensor([1.0, 2.0])}, ValueError, r"Tensor lr must be 1-element, got the shape \(2,\)"),
        ({"eps": -1e-8}, ValueError, f"eps {NUMBER}, got -1e-08"),
        ({"eps": INF}, ValueError, f"eps {NUMBER}, got inf"),
        ({"eps": True}, TypeError, f"eps {NUMBER}, got True"),
        ({"weight_decay": -0.1}, ValueError, f"weight_decay {NUMBER}, got -0.1"),
        ({"weight_decay": None}, TypeError, f"weight_decay {NUMBER}, got None"),
        ({"reduction": "average"}, ValueError, "reduction must be 'sum' or 'mean', got 'average'"),
        ({"reduction": 1}, TypeError, "reduction must be 'sum' or 'mean', got 1"),
        ({"maximize": "yes"}, TypeError, "maximize must be True or False, got 'yes'"),
        ({"foreach": "auto"}, TypeError, "foreach must be True, False or None"),
        ({"fused": "yes"}, TypeError, "fused must be True, False or None"),
        ({"fused": True, "foreach": True}, ValueError, "fused=True and foreach=True .* choose one"),
        ({"domain": "ball"}, TypeError, "domain must be a Domain, such as .*, or None, got 'ball'"),
        ({"domain": RowBalls(1.0), "differentiable": True}, ValueError, "domain=.* cannot be differentiated through"),
        ({"project_start": 1}, TypeError, "project_start must be True or False, got 1"),
        ({"differentiable": True, "foreach": True}, ValueError, "foreach=True cannot be differentiated"),
        ({"differentiable": True, "fused": True}, ValueError, "fused=True cannot be differentiated"),
        ({"differentiable": True, "stochastic_rounding": True}, ValueError, "stochastic_rounding=True cannot be diff"),
    ],
    ids=str,
)
def test_wrong_values(entrant, options, error, words, by_group):
    params = make_params()
    with pytest.raises(error, match=words):
        entrant([{"params": params, **options}]) if by_group else entrant(params, **options)


@pytest.mark.parametrize(
    ("cls", "options", "error", "words"),
    [
        (MatrixMomentum, {"betas": (0.9, 1.0)}, ValueError, r"betas must be two numbers, .* got \(0.9, 1.0\)"),
        (MatrixMomentum, {"betas": 0.9}, TypeError, "betas must be two numbers, .* got 0.9"),
        (MatrixMomentum, {"bias_correction": 1}, TypeError, "bias_correction must be True or False, got 1"),
        (MatrixAdaGrad, {"initial_accumulator_value": -1}, ValueError, f"initial_accumulator_value {NUMBER}, got -1"),
        (MatrixAdaGrad, {"geometry": "diagonal"}, ValueError, "geometry must be one of 'row', .* got 'diagonal'"),
        (MatrixAdaGrad, {"betas": (0.9, 0.9)}, TypeError, "unknown option 'betas': it is an option of MatrixMomentum"),
        (
            RowAdaGrad,
            {"wieght_decay": 0.1},
            TypeError,
            "RowAdaGrad got an unknown option .* did you mean 'weight_decay'",
        ),
        (RowAdaGrad, {"geometry": "column"}, TypeError, "RowAdaGrad got an unknown option .* its geometry is fixed"),
        (ColumnMomentum, {"lr_decay": 0.1}, TypeError, "ColumnMomentum got an unknown option .* use a scheduler"),
        (ColumnMomentum, {"speed": 1}, TypeError, r"unknown option 'speed': it has \['betas', .*'weight_decay'\]"),
    ],
)
def test_wrong_and_unknown_keywords(cls, options, error, words):
    with pytest.raises(error, match=words):
        cls(make_params(), **options)


@every_class
def test_a_misspelled_option_of_a_group_is_refused_and_notes_of_others_are_not(entrant):
    with pytest.raises(
        TypeError, match="a parameter group got an unknown option 'wieght_decay': did you mean 'weight_decay'"
    ):
        entrant([{"params": make_params(), "wieght_decay": 0.1}])
    noted = {"name": "tables", "initial_lr": 0.1, "lr_scale": 0.5, "weight_decay_mult": 1.0}
    optimizer = entrant([{"params": make_params(), **noted}])
    assert noted.items() <= optimizer.param_groups[0].items()


@pytest.mark.parametrize(
    ("cls", "key", "words"),
    [
        (MatrixAdaGrad, "betas", "it is an option of MatrixMomentum"),
        (MatrixMomentum, "initial_accumulator_value", "it is an option of MatrixAdaGrad"),
        (MatrixAdaGrad, "lr_decay", "use a scheduler"),
        (MatrixAdaGrad, "epsilon", "did you mean 'eps'"),
        (MatrixMomentum, "amsgrad", "it is an option of Adam"),
    ],
)
def test_another_optimizers_option_in_a_group_is_refused(cls, key, words):
    with pytest.raises(TypeError, match=f"a parameter group got an unknown option '{key}': {words}"):
        cls([{"params": make_params(), key: 0.5}])


def test_a_model_instead_of_its_parameters():
    with pytest.raises(TypeError, match="got the module Linear: give its .parameters"):
        RowAdaGrad(nn.Linear(2, 2))


@every_class
def test_an_option_that_is_edited_later_is_checked_too(entrant):
    params, optimizer = train(entrant)
    optimizer.param_groups[0]["geometry"] = str(entrant.geometry)
    train(None, params, optimizer=optimizer)
    optimizer.param_groups[0]["reduction"] = "men"
    with pytest.raises(ValueError, match="reduction must be 'sum' or 'mean', got 'men'"):
        optimizer.step()


@pytest.mark.parametrize("cls", [RowAdaGrad, ColumnMomentum])
def test_the_signature_shows_every_option_but_the_geometry(cls):
    shown, general = inspect.signature(cls).parameters, inspect.signature(cls.__mro__[1]).parameters
    assert [*shown] == [name for name in general if name != "geometry"]
    assert shown["eps"].default == general["eps"].default


def test_differentiable_is_for_the_whole_optimizer():
    with pytest.raises(ValueError, match="differentiable is an option of the whole optimizer"):
        RowAdaGrad([{"params": make_params(), "differentiable": True}])


@pytest.mark.parametrize("cls", [RowAdaGrad, ColumnMomentum])
def test_a_class_with_one_geometry_refuses_another_in_a_group(cls):
    with pytest.raises(ValueError, match=f"{cls.__name__} scales by .* entry: use Matrix.* for a geometry per group"):
        cls([{"params": make_params(), "geometry": "entry"}])


def test_a_geometry_that_does_not_fit_names_the_parameter_at_once():
    linear = nn.Linear(8, 100)
    with pytest.raises(ValueError, match=r"parameter 'weight', of shape \(100, 8\), .* cannot cut 100 rows into 3"):
        MatrixAdaGrad(linear.named_parameters(), geometry=Blocks(rows=3))
    with pytest.raises(ValueError, match=r"parameter 0, of shape \(100, 8\)"):
        MatrixAdaGrad(linear.parameters(), geometry=Blocks(rows=3))


@every_class
def test_a_group_that_is_refused_leaves_the_optimizer_as_it_was(entrant):
    params, optimizer = train(entrant, steps=2)
    (late,) = make_params(shapes=[(3, 3)])
    for wrong in ({"lr": -1.0}, {"reduction": "max"}, {"wieght_decay": 1.0}):
        with pytest.raises((TypeError, ValueError)):
            optimizer.add_param_group({"params": [late], **wrong})
    assert len(optimizer.param_groups) == 1
    optimizer.add_param_group({"params": [late]})
    train(None, params, steps=1, start=2, optimizer=optimizer)
    assert_bitwise(params, train(entrant, steps=3)[0])


@every_class
def test_parameters_that_cannot_be_trained(entrant):
    with pytest.raises(TypeError, match="parameter 0 has dtype torch.int64"):
        entrant([torch.zeros(2, 2, dtype=torch.int64)])
    half = Parameter(torch.zeros(2, 2, dtype=torch.float16))
    with pytest.raises(ValueError, match="empty parameter list"):
        entrant([])
    with pytest.raises(TypeError, match="iterable of Tensors or dicts"):
        entrant(half)


def test_lazy_parameters_can_be_given_before_they_have_a_shape():
    layer = nn.LazyLinear(3)
    optimizer = RowAdaGrad(layer.parameters())
    layer(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    assert optimizer.state[layer.weight]["sum"].shape == (3, 1)

    layer = nn.LazyLinear(4)
    optimizer = MatrixAdaGrad(layer.named_parameters(), geometry=Blocks(columns=3))
    layer(torch.ones(2, 4)).sum().backward()
    with pytest.raises(ValueError, match="parameter 'weight', .* cannot cut 4 columns into 3"):
        optimizer.step()
