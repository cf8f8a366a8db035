"""Options, schedules, states and probes of many tables are those of their parameter groups."""

import copy

import pytest
import torch
from torch import nn

from matrix_adagrad import (
    MatrixAdaGrad,
    RowAdaGrad,
    RowMomentum,
    SteepestDescent,
    native,
    step_in_backward,
)
from matrix_adagrad.advisor import Probe
from matrix_adagrad.domains import RowBalls
from matrix_adagrad.geometry import Column, Row
from tests.bags.tables import (
    assert_both_ways,
    bags_of,
    both_ways,
    copies,
    train,
)
from tests.optim.training import assert_bitwise

pytestmark = pytest.mark.skipif(bool(native.missing()), reason=f"no native kernels: {native.missing()}")


def groups(bags, own):
    return [{"params": [table], **own[name]} for name, table in bags.tables.items()]


@pytest.mark.parametrize(
    "own",
    [
        {"user": {"lr": 0.1}, "items": {"lr": 0.01}, "type": {"lr": torch.tensor(0.3)}},
        {"user": {"geometry": Row()}, "items": {"geometry": Column()}, "type": {"geometry": Row()}},
        {"user": {"domain": RowBalls(0.5), "project_start": True}, "items": {}, "type": {"weight_decay": 0.1}},
        {"user": {"fused": False}, "items": {"foreach": True}, "type": {}},
    ],
    ids=["rates", "geometries", "domains", "backends"],
)
def test_groups_give_each_table_its_own_options(own):
    def make(bags):
        return MatrixAdaGrad(groups(bags, own), geometry=Row(), lr=0.1)

    assert_both_ways(make)
    _, (together, _) = both_ways(make)
    for name, options in own.items():
        bags = bags_of()
        train(bags, MatrixAdaGrad([{"params": [bags.tables[name]], **options}], geometry=Row(), lr=0.1), 5)
        assert torch.equal(bags.tables[name], together.tables[name])


def test_schedules_are_followed():
    def make(bags):
        optimizer = RowAdaGrad(bags.parameters(), lr=0.1)
        schedulers[optimizer] = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
        return optimizer

    schedulers = {}
    assert_both_ways(make, lambda optimizer, _: schedulers[optimizer].step())


@pytest.mark.parametrize(
    "edits",
    [
        {"lr": 0.5},
        {"weight_decay": 0.2},
        {"weight_decay": 0.2, "decoupled_weight_decay": True},
        {"maximize": True},
        {"betas": (0.5, 0.6)},
        {"betas": (0.0, 0.6)},
        {"nesterov": True},
        {"reduction": "mean"},
        {"fused": False},
        {"foreach": True},
        {"domain": RowBalls(0.5)},
        {"eps": 0.1},
    ],
    ids=str,
)
def test_edits_of_a_group_count_from_the_next_step_on(edits):
    def edit(optimizer, t):
        if t == 1:
            optimizer.param_groups[0].update(edits)

    def make(bags):
        return RowMomentum(bags.parameters(), lr=0.1)

    assert_both_ways(make, edit)
    (edited, _), _ = both_ways(make, edit)
    (same, _), _ = both_ways(make)
    assert edits == {"fused": False} or not torch.equal(edited.tables["user"], same.tables["user"])


def test_edits_in_place_count_too():
    def edit(optimizer, t):
        optimizer.param_groups[0]["betas"][0] = 0.8 - 0.1 * t
        optimizer.param_groups[0]["lr"].mul_(0.9)

    assert_both_ways(lambda bags: RowMomentum(bags.parameters(), lr=torch.tensor(0.1), betas=[0.9, 0.99]), edit)


def test_another_geometry_is_refused_as_by_a_step():
    bags = bags_of()
    optimizer = MatrixAdaGrad(bags.parameters(), geometry=Row())
    step_in_backward(optimizer)
    train(bags, optimizer, 1)
    optimizer.param_groups[0]["geometry"] = Column()
    before = copies(bags)
    with pytest.raises(RuntimeError, match="made for another: make a new optimizer"):
        train(bags, optimizer, 1)
    assert_bitwise(list(copies(bags).values()), list(before.values()))


def test_groups_in_another_order_are_not_taken_for_each_other():
    bags = bags_of({"user": (10, 4), "type": (10, 4)})
    optimizer = RowAdaGrad([{"params": [table]} for table in bags.tables.values()])
    step_in_backward(optimizer)
    bags([1, 2], [0, 1, 2]).sum().backward()
    optimizer.param_groups.reverse()
    before = copies(bags)
    with pytest.raises(RuntimeError, match="the optimizer's groups have changed since step_in_backward: call it again"):
        bags([1, 2], [0, 1, 2]).sum().backward()
    assert_bitwise(list(copies(bags).values()), list(before.values()))


def test_a_loaded_state_counts_from_the_next_step_on():
    def edit(optimizer, t):
        if t == 1:
            saved = copy.deepcopy(optimizer.state_dict())
            for state in saved["state"].values():
                state["sum"].mul_(9)
            optimizer.load_state_dict(saved)

    def make(bags):
        return RowAdaGrad(bags.parameters(), lr=0.1)

    assert_both_ways(make, edit)
    (edited, _), _ = both_ways(make, edit)
    (same, _), _ = both_ways(make)
    assert not torch.equal(edited.tables["user"], same.tables["user"])


def test_steepest_descent_steps_in_the_backward_pass():
    assert_both_ways(lambda bags: SteepestDescent(bags.parameters(), lr=0.1))


def test_a_probe_sees_what_it_sees_in_the_ordinary_loop():
    reports = []
    for in_backward in (False, True):
        bags = bags_of()
        optimizer = RowAdaGrad(bags.parameters(), lr=0.1)
        looked_at = step_in_backward(optimizer).optimizers if in_backward else optimizer
        with Probe(bags, looked_at, every=1) as probe:
            train(bags, optimizer)
        reports.append([(own.name, own.observed, own.gradient_norm, own.bound) for own in probe.report()])
    assert reports[0] == reports[1]
    assert [name for name, *_ in reports[0]] == ["tables.user", "tables.items", "tables.type"]


def test_stochastic_rounding_draws_for_each_table_and_is_right_on_average():
    """A gradient of ones moves a row by lr. That is an eighth of a unit in the last place: an eighth of them move."""
    bags = bags_of({"user": (4000, 8), "type": (4000, 8)}, dtype=torch.bfloat16)
    for table in bags.tables.values():
        nn.init.ones_(table)
    optimizer = MatrixAdaGrad(bags.parameters(), geometry=Row(), lr=2**-11 * 8**0.5, stochastic_rounding=True)
    step_in_backward(optimizer)
    index = torch.arange(4000).repeat(2)
    bags(index, torch.arange(8001)).sum().backward()
    moved = [table.detach().ne(1) for table in bags.tables.values()]
    for own in moved:  # a step of 2^-11 downwards, where neighbours are 2^-8 apart: p = 1/8, 32,000 draws, 6 sigma
        assert abs(own.double().mean() - 1 / 8) < 6 * (1 / 8 * 7 / 8 / 32_000) ** 0.5
    assert not torch.equal(*moved)
