"""Candidates: their geometries, their learning rates, and which of them are the same."""

import pytest
import torch
from torch import nn

from matrix_adagrad.advisor import Candidate, Task, lrs_around
from matrix_adagrad.advisor.candidates import distinct, geometries_by_layer, make_candidate, uniform_geometries
from matrix_adagrad.advisor.race import Race
from matrix_adagrad.geometry import Entry, Whole
from tests.advisor.tasks import EVEN

ADAM = Candidate("Adam", lambda model, lr: torch.optim.Adam(model.parameters(), lr), lrs_around(0.01))


def test_equivalent_candidates_take_part_once():
    model = nn.ParameterDict({"a": nn.Parameter(torch.zeros(3))})
    names = [
        candidate.name
        for candidate in distinct(
            make_candidate(name, "adagrad", uniform_geometries(model, name)) for name in ("entry", "row", "whole")
        )
    ]
    assert names == ["entry adagrad", "whole adagrad"]


@pytest.mark.parametrize("lrs", [(), (0.1,), (0.1, 0.01), (0.0, 0.1), (0.1, 0.1)])
def test_learning_rates_must_ascend(lrs):
    with pytest.raises(ValueError, match="lrs must be at least two learning rates"):
        Candidate("x", ADAM.make, lrs)


def test_an_unknown_family_is_named():
    with pytest.raises(ValueError, match="family must be one of 'adagrad', 'momentum', .*, got 'adam'"):
        make_candidate("row", "adam", {})


def test_refined_rates_lie_on_a_grid_twice_as_fine():
    even = Candidate("x", ADAM.make, (0.01, 0.1, 1.0))
    assert even.lr_near(0.12) == pytest.approx(0.1)
    assert even.lr_near(0.25) == pytest.approx(0.1 * 10**0.5)
    assert [even.lr_near(0.1, side) for side in (-1, 1)] == pytest.approx([0.1 / 10**0.5, 0.1 * 10**0.5])
    assert even.lr_near(1.0, 2) == pytest.approx(10.0)


def test_lazy_parameters_are_named():
    task = Task(lambda: nn.LazyLinear(3), EVEN.loss, EVEN.batches)
    with pytest.raises(ValueError, match="weight is lazy and has no shape yet: let make_model run the model once"):
        Race(task, steps=16).uniform_candidates()


def test_a_single_row_is_the_whole_and_takes_part_once():
    assert uniform_geometries(nn.Linear(8, 1), "row") == {"weight": Whole(), "bias": Entry()}
    assert uniform_geometries(nn.Linear(8, 1), "column") == {"weight": Entry(), "bias": Entry()}


def test_frozen_parameters_have_no_geometry():
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5))
    model[0].requires_grad_(False)
    assert set(geometries_by_layer(model)) == set(uniform_geometries(model, "row")) == {"1.weight", "1.bias"}
