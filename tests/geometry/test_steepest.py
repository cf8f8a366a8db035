"""The direction of steepest descent in a geometry's norm."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from matrix_adagrad import Batched, Blocks, Column, Entry, Row, Spectral, Whole

GEOMETRIES = (Row(), Column(), Entry(), Whole(), Blocks(rows=2), Blocks(2, 3), Batched(Row()), Spectral(steps=None))
every_geometry = pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)


def matrix(shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@every_geometry
@given(seed=st.integers(0, 2**16))
def test_it_has_norm_one_and_reaches_the_dual_norm(geometry, seed):
    x = matrix((4, 6), seed)
    direction = geometry.steepest(x)
    torch.testing.assert_close(geometry.norm(direction), torch.ones(()).double())
    torch.testing.assert_close((direction * x).sum(), geometry.dual_norm(x))


@every_geometry
@pytest.mark.parametrize("shape", [(4, 6), (6, 12), (12, 6)])
def test_the_size_of_its_entries_is_known_from_the_shape(geometry, shape):
    direction = geometry.steepest(matrix(shape))
    torch.testing.assert_close(direction.square().mean().sqrt().item(), geometry.steepest_rms(shape))


def test_a_floor_shortens_blocks_that_have_died_away_and_no_others():
    x = matrix((50, 6))
    x[7] *= 1e-6
    without, floored = Row().steepest(x), Row().steepest(x, floor=0.1)
    assert torch.linalg.vector_norm(without[7]).item() == pytest.approx(1)
    assert torch.linalg.vector_norm(floored[7]) < 1e-4
    others = torch.arange(50) != 7
    torch.testing.assert_close(floored[others], without[others])


def test_a_vectors_direction_by_entry_is_its_sign():
    x = matrix((5,))
    torch.testing.assert_close(Row().steepest(x), x.sign())
    torch.testing.assert_close(Whole().steepest(x), x / x.norm())


def test_the_spectral_norm_has_no_floor():
    with pytest.raises(ValueError, match="leave floor=0, got 0.1"):
        Spectral().steepest(matrix((3, 4)), floor=0.1)
