"""Every setting and control that is open is run, with enough seeds, and nothing is run twice."""

import itertools
import math

import pytest

from reproduction.networks.mlp import OPTIMIZERS, SETTINGS, Run
from reproduction.networks.sweep import FULL, LRS, QUICK, needed

CELLS = needed(FULL, {})
ASKED = [(cell.setting, cell.depth, run) for cell in CELLS for run in cell.runs]


def test_every_setting_and_control_that_is_open_is_run():
    for setting, lr, optimizer in itertools.product(SETTINGS, LRS, OPTIMIZERS):
        if setting == "A":
            assert {("A", depth, Run(optimizer, lr)) for depth in (15, 25)} <= set(ASKED)
        elif lr == 0.01 and optimizer != "Column-wise Momentum" and setting != "B":
            assert (setting, 25, Run(optimizer, lr)) in ASKED
    for setting, depth, lr, optimizer in itertools.product(SETTINGS, (15, 25), LRS, ("Adam", "Row-wise Momentum")):
        assert (setting, depth, Run(optimizer, lr)) in ASKED
    assert {depth for setting, depth, _ in ASKED if setting == "A"} == {5, 10, 15, 22, 25}


def test_nothing_is_run_twice():
    assert len(set(ASKED)) == len(ASKED)


def test_there_are_enough_seeds_to_decide():
    assert all(len(cell.seeds) >= 5 for cell in CELLS)
    assert all(len(cell.seeds) == 10 for cell in CELLS if cell.setting == "A" and cell.runs[0].lr in LRS)


@pytest.mark.parametrize("lr", LRS)
def test_for_the_comparison_with_unequal_eps_everything_is_run(lr):
    for depth in (22, 25):
        assert ("B", depth, Run("Adam", lr)) in ASKED
        assert ("B with eps 1e-16", depth, Run("Row-wise Momentum", lr)) in ASKED


@pytest.mark.parametrize(("size", "depth"), [(FULL, 5), (FULL, 15), (FULL, 25), (QUICK, 25)])
def test_two_rungs_are_the_root_of_the_width_and_one_is_the_papers_rate(size, depth):
    rates = size.rates(depth)
    assert 0.01 in rates
    for low, high in zip(rates, rates[2:], strict=False):
        assert high / low == pytest.approx(math.sqrt(20), rel=1e-5)
