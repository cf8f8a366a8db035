"""With β₁ = 0, MatrixMomentum keeps no average of gradients, and takes the same steps."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import Parameter

from matrix_adagrad import Blocks, Column, Entry, Factored, Full, MatrixMomentum, Row, Whole

GEOMETRIES = (Row(), Column(), Entry(), Whole(), Blocks(rows=2), Factored(), Full("row"), Full("row", every=3))
every_geometry = pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
BACKENDS = {"default": {}, "reference": {"foreach": False}}


def gradients(shape, steps=5):
    return [torch.randn(shape, generator=torch.Generator().manual_seed(t)) for t in range(steps)]


def trained(geometry, betas=(0.0, 0.9), shape=(6, 4), **options):
    x = Parameter(torch.ones(shape))
    optimizer = MatrixMomentum([x], lr=0.1, geometry=geometry, betas=betas, **options)
    for g in gradients(shape):
        x.grad = g
        optimizer.step()
    return x, optimizer


@every_geometry
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_state_is_that_of_the_geometry_alone(geometry, backend):
    if backend == "reference" or isinstance(geometry, Entry | Row | Column | Whole):
        x, optimizer = trained(geometry, **BACKENDS[backend])
        assert "exp_avg" not in optimizer.state[x]
        kept = sum(value.numel() for key, value in optimizer.state[x].items() if key != "step")
        assert kept == geometry.scales((6, 4)) + (36 + 6 if geometry == Full("row", every=3) else 0)


@every_geometry
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("nesterov", [False, True])
def test_the_steps_are_those_of_a_vanishing_beta(geometry, backend, nesterov):
    x, _ = trained(geometry, nesterov=nesterov, **BACKENDS[backend])
    y, _ = trained(geometry, (1e-30, 0.9), nesterov=nesterov, **BACKENDS[backend])
    torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("geometry", [Row(), Column(), Entry(), Whole()], ids=str)
def test_the_native_kernels_take_the_reference_steps(geometry):
    x, _ = trained(geometry, fused=True)
    y, _ = trained(geometry, foreach=False)
    torch.testing.assert_close(x, y, rtol=1e-6, atol=1e-6)


def test_sparse_gradients_need_no_average_either():
    table = nn.Embedding(10, 4, sparse=True)
    dense = Parameter(table.weight.detach().clone())
    optimizer, other = (MatrixMomentum([p], lr=0.1, betas=(0.0, 0.9)) for p in (table.weight, dense))
    table(torch.tensor([3, 5, 3])).square().sum().backward()
    dense.grad = table.weight.grad.to_dense()
    optimizer.step()
    other.step()
    torch.testing.assert_close(table.weight.detach(), dense.detach())
    assert set(optimizer.state[table.weight]) == {"step", "exp_avg_sq"}


def test_a_saved_run_goes_on_and_brings_its_betas():
    x, optimizer = trained(Row())
    y = Parameter(x.detach().clone())
    other = MatrixMomentum([y], geometry=Row(), betas=(0.9, 0.999))
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert other.param_groups[0]["betas"] == (0.0, 0.9)
    for param, own in ((x, optimizer), (y, other)):
        param.grad = gradients((6, 4), 6)[-1]
        own.step()
    assert torch.equal(x, y)
    assert set(other.state[y]) == {"step", "exp_avg_sq"}


def test_a_run_with_momentum_brings_its_average():
    x, optimizer = trained(Row(), (0.9, 0.99))
    y = Parameter(x.detach().clone())
    other = MatrixMomentum([y], geometry=Row(), betas=(0.0, 0.999))
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for param, own in ((x, optimizer), (y, other)):
        param.grad = gradients((6, 4), 6)[-1]
        own.step()
    assert torch.equal(x, y)


def test_an_average_that_an_older_version_kept_for_nothing_is_left_out():
    x, optimizer = trained(Row())
    saved = copy.deepcopy(optimizer.state_dict())
    saved["state"][0]["exp_avg"] = torch.zeros(6, 4)
    y = Parameter(x.detach().clone())
    other = MatrixMomentum([y], geometry=Row(), betas=(0.0, 0.9))
    other.load_state_dict(saved)
    assert set(other.state[y]) == {"step", "exp_avg_sq"}


def test_momentum_that_is_switched_on_or_off_in_a_group_starts_at_zero_or_is_dropped():
    x, optimizer = trained(Row())
    for betas, keys in (((0.9, 0.99), {"step", "exp_avg", "exp_avg_sq"}), ((0.0, 0.9), {"step", "exp_avg_sq"})):
        optimizer.param_groups[0]["betas"] = betas
        x.grad = torch.ones(6, 4)
        optimizer.step()
        assert set(optimizer.state[x]) == keys
        assert x.isfinite().all()


def test_a_narrow_state_cannot_be_loaded_for_another_width():
    _, optimizer = trained(Row())
    other = MatrixMomentum([Parameter(torch.ones(6, 8))], geometry=Row(), betas=(0.0, 0.9))
    with pytest.raises(ValueError, match=r"\(6, 4\).*\(6, 8\)"):
        other.load_state_dict(optimizer.state_dict())
