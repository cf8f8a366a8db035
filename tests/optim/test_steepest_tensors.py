"""Steepest descent on tensors of all kinds, with states of other optimizers, and in company."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import Parameter

from matrix_adagrad import (
    Blocks,
    Column,
    CombinedOptimizer,
    Entry,
    MatrixMomentum,
    Row,
    Spectral,
    SteepestDescent,
    Whole,
    step_in_backward,
)
from tests.optim.test_steepest import GEOMETRIES, gradients

in_every_norm = pytest.mark.parametrize("geometry", [*GEOMETRIES, Spectral()], ids=str)


def after(x, geometry, steps=3, **options):
    optimizer = SteepestDescent([x], lr=0.1, geometry=geometry, **options)
    for t in range(steps):
        x.grad = torch.randn(x.shape, generator=torch.Generator().manual_seed(t)).to(x)
        optimizer.step()
    return optimizer


@in_every_norm
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.complex64], ids=str)
def test_state_is_wide_whatever_the_parameter_is(geometry, dtype):
    x, wide = Parameter(torch.ones(4, 6, dtype=dtype)), torch.complex64 if dtype.is_complex else torch.float32
    optimizer = after(x, geometry, rescale=Row())
    assert x.isfinite().all()
    assert optimizer.state[x]["momentum_buffer"].dtype is wide
    assert optimizer.state[x]["exp_avg_sq"].dtype is torch.float32
    other = SteepestDescent([x], geometry=geometry, rescale=Row())
    other.load_state_dict(optimizer.state_dict())
    assert all(torch.equal(other.state[x][key], value) for key, value in optimizer.state[x].items())


@pytest.mark.parametrize("shape", [(0, 6), (4, 0), (2, 0, 4), (0, 2, 4), (0,), (1, 6), (6, 1), (1, 1), (), (2, 4, 6)])
@pytest.mark.parametrize("geometry", [Row(), Column(), Entry(), Whole(), Spectral(), Spectral(steps=None)], ids=str)
@pytest.mark.parametrize("rescale", [None, Row()], ids=str)
def test_tensors_of_any_shape_take_steps(shape, geometry, rescale):
    x = Parameter(torch.ones(shape))
    after(x, geometry, rescale=rescale)
    assert x.isfinite().all()
    assert x.numel() == 0 or (x != 1).any()


@in_every_norm
def test_the_order_in_memory_does_not_matter(geometry):
    plain, transposed = Parameter(torch.ones(4, 6)), Parameter(torch.ones(6, 4).T)
    after(plain, geometry)
    after(transposed, geometry)
    torch.testing.assert_close(plain, transposed)


@in_every_norm
@pytest.mark.parametrize("rescale", [None, Row()], ids=str)
def test_autograd_can_record_it(geometry, rescale):
    """The derivative of the last point with respect to the learning rate, next to a difference quotient."""

    def end(lr):
        x = torch.ones(4, 6, dtype=torch.float64).clone()
        options = {"rescale": rescale, "weight_decay": 0.1, "decoupled_weight_decay": True}
        optimizer = SteepestDescent([x], lr=lr, geometry=geometry, differentiable=True, **options)
        for g in gradients((4, 6)):
            x.grad = g * x.clone()
            optimizer.step()
        return x.sum()

    lr = torch.tensor(0.01, dtype=torch.float64, requires_grad=True)
    end(lr).backward()
    quotient = (end(lr.detach() + 1e-6) - end(lr.detach() - 1e-6)) / 2e-6
    torch.testing.assert_close(lr.grad, quotient, rtol=1e-5, atol=1e-5)


@in_every_norm
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))], ids=["copy", "pickle"])
def test_a_copy_goes_on_by_itself(geometry, copied):
    x = Parameter(torch.ones(4, 6))
    optimizer = after(x, geometry, rescale=Column())
    other = copied(optimizer)
    (y,) = other.param_groups[0]["params"]
    x.grad = y.grad = torch.randn(4, 6)
    optimizer.step()
    other.step()
    assert torch.equal(x, y)


@pytest.mark.parametrize("floor", [0.0, 0.1])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_a_row_that_is_not_finite_does_not_reach_other_rows(floor, value):
    good, bad = torch.ones(4, 6), torch.ones(4, 6)
    bad[1] = value
    moved = []
    for g in (good, bad):
        x = Parameter(torch.zeros(4, 6))
        x.grad = g
        SteepestDescent([x], lr=1.0, floor=floor).step()
        moved.append(x.detach()[[0, 2, 3]])
    torch.testing.assert_close(*moved)


@in_every_norm
def test_stochastic_rounding(geometry):
    x = Parameter(torch.ones(48, 48, dtype=torch.bfloat16))
    optimizer = SteepestDescent([x], lr=1e-4, geometry=geometry, stochastic_rounding=True)
    for _ in range(20):
        x.grad = torch.ones(48, 48, dtype=torch.bfloat16) + torch.eye(48, dtype=torch.bfloat16)
        optimizer.step()
    assert x.float().mean() < 1  # to the nearest, no step is large enough to count


# ------------------------------------------------------------------------------------------- states that are not theirs


def one_step(optimizer):
    for group in optimizer.param_groups:
        for param in group["params"]:
            param.grad = torch.ones_like(param)
    optimizer.step()
    return optimizer


def steepest(**options):
    return one_step(SteepestDescent([Parameter(torch.ones(4, 6))], **options))


def momentum(**options):
    return one_step(MatrixMomentum([Parameter(torch.ones(4, 6))], **options))


@pytest.mark.parametrize(
    ("saved", "other", "words"),
    [
        (steepest(), momentum(), "saved state has step, momentum_buffer, and MatrixMomentum has step, exp_avg_sq"),
        (momentum(), steepest(), "and SteepestDescent has step, momentum_buffer"),
        (steepest(momentum=0.0, rescale=Row()), momentum(betas=(0.0, 0.9)), "rescale='row', which Matrix.* lacks"),
        (momentum(betas=(0.0, 0.9)), steepest(momentum=0.0, rescale=Row()), "betas=.*, which SteepestDescent lacks"),
        (steepest(momentum=0.0), steepest(momentum=0.0, geometry="column"), "geometry row, and .* geometry column"),
        (steepest(rescale=Row()), steepest(rescale=Blocks()), "had rescale=row, and here it is blocks"),
    ],
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_a_state_of_another_kind_is_refused_and_nothing_changes(saved, other, words):
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(ValueError, match=f"parameter 0: .*{words}.*nothing was loaded"):
        other.load_state_dict(saved.state_dict())
    after = other.state_dict()
    assert after["param_groups"] == before["param_groups"]
    assert all(torch.equal(after["state"][0][key], value) for key, value in before["state"][0].items())


def test_the_partition_to_rescale_by_is_saved_by_name():
    assert steepest(rescale=Row()).state_dict()["param_groups"][0]["rescale"] == "row"


def test_another_partition_to_rescale_by_needs_a_new_optimizer():
    optimizer = steepest()
    optimizer.param_groups[0]["rescale"] = Row()
    with pytest.raises(RuntimeError, match="parameter 0 has shape .* make a new optimizer"):
        one_step(optimizer)


# --------------------------------------------------------------------------------------------------------- in company


def test_groups_have_geometries_of_their_own():
    shapes = {Spectral(): (4, 6), Row(): (6, 4), Blocks(rows=3): (3, 5), Entry(): (5,)}
    together = [Parameter(torch.ones(shape)) for shape in shapes.values()]
    groups = [{"params": [x], "geometry": own} for x, own in zip(together, shapes, strict=True)]
    optimizer = SteepestDescent(groups[:-1], lr=0.1)
    optimizer.add_param_group(groups[-1])
    one_step(optimizer)
    for (own, shape), x in zip(shapes.items(), together, strict=True):
        alone = Parameter(torch.ones(shape))
        one_step(SteepestDescent([alone], lr=0.1, geometry=own))
        assert torch.equal(alone, x)


@pytest.mark.parametrize("geometry", [Row(), Spectral()], ids=str)
def test_in_the_backward_pass_and_behind_a_grad_scaler(geometry):
    torch.manual_seed(0)
    models = [nn.Linear(4, 3) for _ in range(3)]
    for model in models[1:]:
        model.load_state_dict(models[0].state_dict())
    first, second, third = (SteepestDescent(model.parameters(), lr=0.1, geometry=geometry) for model in models)
    step_in_backward(second)
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(3):
        losses = [model(torch.ones(2, 4)).square().sum() for model in models]
        first.zero_grad()
        third.zero_grad()
        losses[0].backward()
        first.step()
        losses[1].backward()
        scaler.scale(losses[2]).backward()
        scaler.step(third)
        scaler.update()
    for model in models[1:]:
        torch.testing.assert_close(model.weight, models[0].weight)


def test_in_a_combined_optimizer_its_state_can_be_made_first():
    model = nn.Linear(4, 3)
    matrix = SteepestDescent([model.weight], geometry=Spectral(), rescale=Row())
    combined = CombinedOptimizer([matrix, MatrixMomentum([model.bias])])
    combined.init_state()
    assert {*matrix.state[model.weight]} == {"step", "momentum_buffer", "exp_avg_sq"}
    combined.load_state_dict(combined.state_dict())


@pytest.mark.parametrize("geometry", [Row(), Spectral()], ids=str)
def test_a_compiled_step_is_the_same_step(geometry):
    torch._dynamo.reset()
    x, y = Parameter(torch.ones(4, 6)), Parameter(torch.ones(4, 6))
    optimizer, other = (SteepestDescent([p], lr=torch.tensor(0.1), geometry=geometry) for p in (x, y))
    compiled = torch.compile(other.step, fullgraph=True)
    for g in gradients((4, 6)):
        x.grad, y.grad = g.float(), g.float()
        optimizer.step()
        compiled()
    torch.testing.assert_close(x, y)
