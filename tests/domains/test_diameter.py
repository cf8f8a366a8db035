"""Linear functions have their least value where they are said to, and sets are as wide as they are said to be."""

import math

import pytest
import torch

from matrix_adagrad import Blocks, Spectral
from matrix_adagrad.domains import FrobeniusBall, NonNegative, RowProduct, WholeSpace
from matrix_adagrad.domains.base import _labels
from matrix_adagrad.geometry import as_geometry

from .table import BOUNDED, SHAPE, draw

named = {"ids": repr}
SIDES = [
    [
        torch.ones(size),
        torch.eye(size)[0],
        torch.eye(size)[0] - torch.eye(size)[1],
        torch.tensor([1.0, -1.0] * (size // 2)),
    ]
    for size in SHAPE
]
RANK_ONE = [torch.outer(u, v).double() for u in SIDES[0] for v in SIDES[1]]


@pytest.mark.parametrize("domain", BOUNDED, **named)
def test_no_point_of_the_set_has_a_lower_value_than_the_argmin(domain):
    for seed in range(20):
        g = draw(seed)
        lowest = domain.argmin(g)
        assert domain.contains(lowest)
        for other in range(20):
            assert (g * lowest).sum() <= (g * domain.project(3 * draw(1000 + other))).sum() + 1e-12
        far = domain.project(-1e9 * g)  # the projection of a far point tends to the argmin
        torch.testing.assert_close((g * far).sum(), (g * lowest).sum(), rtol=1e-6, atol=1e-6)


def test_the_argmin_of_a_tiny_gradient_is_in_the_set():
    for domain in BOUNDED:
        for size in (1e-170, 1e-300, 0.0, 1e150):
            assert domain.contains(domain.argmin(size * draw(1)))
    torch.testing.assert_close(FrobeniusBall(2.0).argmin(1e-170 * draw(1)), FrobeniusBall(2.0).argmin(draw(1)))


def test_unbounded_linear_functions_are_refused():
    assert torch.equal(NonNegative().argmin(draw(1).abs()), torch.zeros(SHAPE, dtype=torch.float64))
    for domain, g in ((NonNegative(), draw(1)), (WholeSpace(), draw(1).abs())):
        with pytest.raises(ValueError, match="is unbounded where the linear function falls"):
            domain.argmin(g)


GEOMETRIES = ("row", "column", "entry", "whole", Blocks(rows=3), Blocks(columns=2), Blocks(rows=2, columns=4))


def widest(domain, geometry, starts=12):
    """The largest distance that an ascent from random directions finds: alternately the ends and the direction."""
    best = 0.0
    labels = _labels(geometry, SHAPE).reshape(SHAPE)
    for block in range(geometry.scales(SHAPE)):
        mask = labels == block
        for seed in range(starts):
            g = draw(seed) * mask
            if seed % 2:  # a direction with few entries
                g *= torch.rand(SHAPE, generator=torch.Generator().manual_seed(seed)) < 0.2
            for _ in range(5):
                ends = (domain.argmin(-g) - domain.argmin(g)) * mask
                g = ends
            best = max(best, float(ends.norm()))
    return best


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@pytest.mark.parametrize("domain", BOUNDED, **named)
def test_the_diameter_is_reached_and_not_exceeded(domain, geometry):
    geometry = as_geometry(geometry)
    if isinstance(domain, RowProduct) and geometry.cut(SHAPE)[0] != SHAPE[0]:
        with pytest.raises(ValueError, match="groups rows"):
            domain.diameter(geometry, SHAPE)
        return
    assert domain.diameter(geometry, SHAPE) == pytest.approx(widest(domain, geometry), rel=1e-9)


def test_the_diameters_of_the_ball_in_the_paper():
    for geometry in GEOMETRIES:
        assert FrobeniusBall(0.5).diameter(as_geometry(geometry), SHAPE) == pytest.approx(1.0, rel=1e-15)
    assert NonNegative().diameter(Blocks(rows=2), SHAPE) == math.inf


@pytest.mark.parametrize("domain", BOUNDED, **named)
def test_in_the_spectral_norm_it_is_the_frobenius_diameter_which_matrices_of_rank_one_reach(domain):
    diameter = domain.diameter(Spectral(), SHAPE)
    assert diameter == domain.diameter("whole", SHAPE)
    ends = [domain.argmin(-g) - domain.argmin(g) for g in (*RANK_ONE, *map(draw, range(50)))]
    widest = max(float(torch.linalg.matrix_norm(end, 2)) for end in ends)
    if isinstance(domain, RowProduct):  # its parts may have no direction in common
        assert widest <= diameter
    else:
        assert widest == pytest.approx(diameter, rel=1e-12)
