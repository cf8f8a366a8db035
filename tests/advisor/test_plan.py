import json
import os
from dataclasses import replace

import pytest
import torch
from torch import nn

from matrix_adagrad import (
    Blocks,
    CombinedOptimizer,
    Entry,
    MatrixAdaGrad,
    MatrixMomentum,
    Row,
    SteepestDescent,
)
from matrix_adagrad.advisor import ParameterChoice, Plan


def model():
    return nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 6))


PLAN = Plan(
    "adagrad",
    0.1,
    (
        ParameterChoice("0.weight", (10, 4), "row", "each row is an item"),
        ParameterChoice("1.weight", (6, 4), "Blocks(rows=3)", "three parts"),
        ParameterChoice("1.bias", (6,), "entry", "a vector: “no rows”"),
    ),
    "Use it.",
)


def test_the_optimizers_accept_its_groups():
    made = model()
    optimizer = MatrixAdaGrad(PLAN.groups(made), lr=PLAN.lr)
    found = {name: g["geometry"] for g in optimizer.param_groups for name in g["param_names"]}
    assert found == {"0.weight": Row(), "1.weight": Blocks(rows=3), "1.bias": Entry()}
    assert all(group["reduction"] == "mean" for group in optimizer.param_groups)
    made(torch.tensor([1, 2])).sum().backward()
    optimizer.step()
    assert optimizer.state[made[0].weight]["sum"].shape == (10, 1)
    assert sum(optimizer.state[p]["sum"].numel() for p in made.parameters()) == PLAN.scales


def test_a_plan_with_momentum_is_refused_by_adagrad():
    plan = Plan("momentum", 0.01, PLAN.choices)
    assert isinstance(plan.optimizer(model()), MatrixMomentum)
    with pytest.raises(
        TypeError, match="a parameter group got an unknown option 'betas': it is an option of MatrixMomentum"
    ):
        MatrixAdaGrad(plan.groups(model()), lr=plan.lr)


NEW = (
    ("no-momentum", ("factored", "row", "entry"), MatrixMomentum),
    ("steepest", ("row", "spectral", "entry"), SteepestDescent),
    ("matrix_optimizer", ("factored", "factored", "entry"), CombinedOptimizer),
    ("adagrad", ("factored(combine=minimum)", "full(side=row, every=2, block=64)", "entry"), MatrixAdaGrad),
)


@pytest.mark.parametrize(("family", "geometries", "cls"), NEW, ids=[family for family, *_ in NEW])
def test_a_plan_of_any_family_and_geometry_loads_and_trains(tmp_path, family, geometries, cls):
    choices = [replace(choice, geometry=own) for choice, own in zip(PLAN.choices, geometries, strict=True)]
    plan = Plan.load(Plan(family, 0.01, tuple(choices)).save(tmp_path / "plan.json"))
    made = model()
    optimizer = plan.optimizer(made)
    assert isinstance(optimizer, cls)
    found = {param: group["geometry"] for group in optimizer.param_groups for param in group["params"]}
    assert [found[param] for param in made.parameters()] == [choice.value for choice in plan.choices]
    made(torch.tensor([1, 2])).sum().backward()
    optimizer.step()
    averages = sum("exp_avg" in optimizer.state[param] for param in made.parameters())
    assert averages == {"no-momentum": 0, "matrix_optimizer": 1}.get(family, averages)  # the bias


def test_a_plan_of_several_optimizers_has_no_groups():
    plan = Plan("matrix_optimizer", 0.01, PLAN.choices)
    with pytest.raises(ValueError, match="matrix_optimizer makes several optimizers, .* use plan.optimizer"):
        plan.groups(model())


def test_optimizer_options_can_be_overridden_including_lr():
    optimizer = PLAN.optimizer(model(), lr=0.5, weight_decay=0.1)
    assert isinstance(optimizer, MatrixAdaGrad)
    assert {(group["lr"], group["weight_decay"]) for group in optimizer.param_groups} == {(0.5, 0.1)}


@pytest.mark.parametrize("name", ["plan.json", "plan.yaml", "plan.yml"])
def test_a_saved_plan_loads_unchanged(tmp_path, name):
    if not name.endswith("json"):
        pytest.importorskip("yaml")
    path = PLAN.save(tmp_path / "new" / name)
    assert Plan.load(path) == PLAN
    assert "each row is an item" in path.read_text(encoding="utf-8")
    assert os.listdir(path.parent) == [name]


def test_it_fits_compiled_and_wrapped_models_and_tied_weights():
    plan = Plan("adagrad", 0.1, (ParameterChoice("0.weight", (5, 4), "row", ""),))
    tied = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5, bias=False))
    tied[1].weight = tied[0].weight
    (group,) = plan.groups(nn.DataParallel(tied))
    assert group["params"] == [("0.weight", tied[0].weight)]


def test_frozen_parameters_are_ignored():
    made = model()
    made[1].requires_grad_(False)
    plan = Plan("adagrad", 0.1, PLAN.choices[:1])
    assert len(plan.groups(made)) == 1
    with pytest.raises(ValueError, match="1.weight is frozen in the model"):
        PLAN.groups(made)
    with pytest.raises(TypeError, match="give the model, not its parameters"):
        PLAN.groups(made.parameters())


def test_a_model_that_does_not_fit_raises_an_error_that_lists_the_differences():
    with pytest.raises(ValueError, match=r"1.weight is not in the model; 1.bias is not in the model"):
        PLAN.groups(nn.Sequential(nn.Embedding(10, 4)))
    with pytest.raises(ValueError, match=r"does not fit this model: 2.weight is not in the plan; 2.bias is not in"):
        PLAN.groups(nn.Sequential(*model(), nn.Linear(6, 1)))
    with pytest.raises(ValueError, match=r"0.weight has shape \(11, 4\) in the model, and \(10, 4\) in the plan"):
        PLAN.groups(nn.Sequential(nn.Embedding(11, 4), nn.Linear(4, 6)))
    many = nn.Sequential(*model(), *(nn.Linear(2, 2) for _ in range(10)))
    with pytest.raises(ValueError, match=r"; and 12 more$"):
        PLAN.groups(many)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"family": "adam"}, "family must be one of 'adagrad', 'momentum', 'no-momentum', 'steepest', "),
        ({"lr": -1}, "lr must be a positive number, got -1"),
        ({"lr": "fast"}, "lr must be a positive number, got 'fast'"),
        ({"learning_rate": 1}, "learning_rate is not known"),
        ({"parameters": []}, "it must have family, lr and parameters"),
        ({"parameters": {"w": {"geometry": "rows", "shape": [2, 2]}}}, "w: geometry must be one of"),
        ({"parameters": {"w": {"geometry": "row"}}}, "w needs a geometry and a shape"),
        ({"parameters": {"w": "row"}}, "w needs a geometry and a shape"),
        ({"parameters": {"w": {"geometry": "Blocks(rows=3)", "shape": [4, 2]}}}, "cannot cut 4 rows into 3"),
        ({"parameters": {"w": {"geometry": "Blocks(rows=3", "shape": [6, 2]}}}, "is not a geometry"),
        ({"parameters": {"w": {"geometry": "Blocks(open('x'))", "shape": [6, 2]}}}, "is not a geometry"),
        ({"parameters": {"w": {"geometry": "Blocks(rows=print())", "shape": [6, 2]}}}, "is not a geometry"),
        ({"parameters": {"w": {"geometry": "factored(combine=sum)", "shape": [6, 2]}}}, "w: Factored: combine must be"),
    ],
)
def test_errors_in_a_file_are_named(tmp_path, change, message):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({**PLAN.to_dict(), **change}), encoding="utf-8")
    with pytest.raises(ValueError, match=r"plan.json is not a plan: .*") as caught:
        Plan.load(path)
    assert message in str(caught.value)


def test_a_truncated_file_is_not_a_plan(tmp_path):
    path = PLAN.save(tmp_path / "plan.json")
    path.write_text(path.read_text(encoding="utf-8")[:50], encoding="utf-8")
    with pytest.raises(ValueError, match="is not a plan"):
        Plan.load(path)


def test_the_table_has_one_line_per_parameter():
    assert PLAN.table().splitlines()[1] == "0.weight   10×4   row             each row is an item"
