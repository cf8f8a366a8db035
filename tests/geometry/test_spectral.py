"""The spectral norm, its dual, and the polar factor."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim._muon import _zeropower_via_newtonschulz

from matrix_adagrad import MatrixAdaGrad, MatrixMomentum, Spectral
from matrix_adagrad.geometry.spectral import newton_schulz

shapes = st.sampled_from([(4, 6), (6, 4), (1, 5), (5, 5), (3, 4, 6)])
DEFAULT = (3.4445, -4.7750, 2.0315)


def matrix(shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@given(st.sampled_from([(4, 6), (6, 4), (1, 5)]), st.integers(0, 2**16))
def test_norm_and_dual_norm_satisfy_hoelder_with_equality_at_the_polar_factor(shape, seed):
    x, g, geometry = matrix(shape, seed), matrix(shape, seed + 1), Spectral(steps=None)
    assert (x * g).sum().abs() <= geometry.norm(x) * geometry.dual_norm(g) * (1 + 1e-12)
    steepest = geometry.steepest(g)
    torch.testing.assert_close(geometry.norm(steepest), torch.ones(()).double())
    torch.testing.assert_close((steepest * g).sum(), geometry.dual_norm(g))


@given(shapes, st.integers(0, 2**16))
def test_newton_schulz_brings_all_singular_values_near_one(shape, seed):
    x = matrix(shape, seed)
    assume_well_conditioned = torch.linalg.svdvals(x)[..., -1] > 0.05 * torch.linalg.svdvals(x)[..., 0]
    values = torch.linalg.svdvals(Spectral().steepest(x))
    assert (values[assume_well_conditioned] > 0.6).all()
    assert (values < 1.3).all()


@given(shapes, st.integers(0, 2**16))
def test_a_cubic_iteration_converges_to_the_exact_polar_factor(shape, seed):
    x = matrix(shape, seed)
    x = x + 2 * Spectral(steps=None).steepest(x)  # away from rank deficiency
    exact, iterated = Spectral(steps=None), Spectral(steps=40, coefficients=(1.5, -0.5, 0.0))
    torch.testing.assert_close(iterated.steepest(x), exact.steepest(x))


@pytest.mark.parametrize("shape", [(16, 24), (24, 16), (8, 8)])
def test_on_the_same_arithmetic_it_is_torch_muons(shape):
    g = matrix(shape).float()
    theirs = _zeropower_via_newtonschulz(g, DEFAULT, 5, 1e-7)
    assert torch.equal(newton_schulz(g.bfloat16(), 5, DEFAULT), theirs)


def test_a_batch_is_orthogonalized_matrix_by_matrix():
    x = matrix((2, 3, 4, 6))
    each = torch.stack([Spectral().steepest(part) for part in x.flatten(0, 1)]).view_as(x)
    torch.testing.assert_close(Spectral().steepest(x), each)


def test_zero_has_no_direction_and_a_matrix_of_low_rank_only_its_own():
    assert torch.equal(Spectral().steepest(torch.zeros(3, 4)), torch.zeros(3, 4))
    assert torch.equal(Spectral(steps=None).steepest(torch.zeros(3, 4)), torch.zeros(3, 4))
    rank_one = torch.outer(torch.tensor([3.0, 4.0]), torch.tensor([0.0, 2.0]))
    torch.testing.assert_close(Spectral(steps=None).steepest(rank_one), rank_one / 10)


def test_transposing_the_matrix_transposes_the_direction():
    x = matrix((4, 6))
    torch.testing.assert_close(Spectral().transpose.steepest(x.T).T, Spectral().steepest(x))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"steps": 0}, ValueError, "steps must be from 1 to 99, got 0"),
        ({"steps": 2.0}, TypeError, "steps must be an int or None, got 2.0"),
        ({"coefficients": (1.0,)}, ValueError, "coefficients must be three finite numbers"),
        ({"coefficients": 3.4445}, ValueError, "coefficients must be three finite numbers, got 3.4445"),
        ({"coefficients": ("a", 1, 1)}, ValueError, "coefficients must be three finite numbers"),
        ({"dtype": "bfloat16"}, ValueError, "dtype must be a floating-point torch.dtype or None, got 'bfloat16'"),
        ({"dtype": torch.int64}, ValueError, "dtype must be a floating-point torch.dtype or None, got torch.int64"),
    ],
)
def test_wrong_values_are_named(options, error, words):
    with pytest.raises(error, match=words):
        Spectral(**options)


def test_coefficients_in_a_list_are_those_in_a_tuple():
    assert Spectral(coefficients=[*DEFAULT]) == Spectral()
    assert hash(Spectral(coefficients=[*DEFAULT])) == hash(Spectral())


@pytest.mark.parametrize("cls", [MatrixAdaGrad, MatrixMomentum])
def test_a_family_that_divides_by_scales_refuses_it(cls):
    with pytest.raises(ValueError, match="parameter 0.*Spectral.*has no scale"):
        cls([torch.nn.Parameter(torch.zeros(3, 4))], geometry=Spectral())
