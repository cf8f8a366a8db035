"""Projections are exact in the metric: by the variational inequality and by their own laws.

A convex solver finds the same points: tests/integration/test_solvers.py.
"""

import math

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from matrix_adagrad import Blocks
from matrix_adagrad.domains import (
    Balls,
    Box,
    ColumnBalls,
    ColumnSimplex,
    FrobeniusBall,
    L1Ball,
    L1Balls,
    NonNegative,
    RowBalls,
    RowProduct,
    RowSimplex,
    Simplices,
)
from matrix_adagrad.domains.base import Domain

from .table import BOUNDED, DOMAINS, SCALES, SHAPE, draw, draw_scale, violation

named = {"ids": repr}


def both(test):
    return pytest.mark.parametrize("kind", SCALES)(pytest.mark.parametrize("domain", DOMAINS, **named)(test))


# ------------------------------------------------------------------------------------------------- the right point


@pytest.mark.parametrize("kind", SCALES)
@pytest.mark.parametrize("domain", BOUNDED, **named)
@pytest.mark.parametrize("size", [0.01, 1.0, 100.0])
def test_the_variational_inequality_holds(domain, kind, size):
    for seed in range(5):
        x, scale = size * draw(seed), draw_scale(kind, seed)
        y = domain.project(x, scale)
        assert domain.contains(y, 1e-10)
        assert violation(domain, x, scale, y) <= 1e-10


def test_the_variational_inequality_fails_for_the_euclidean_projection():
    for domain in (FrobeniusBall(1.5), ColumnBalls(0.9), L1Ball(2.0), ColumnSimplex()):
        x, scale = 3 * draw(0), draw_scale("row", 0)
        assert violation(domain, x, scale, domain.project(x)) > 1e-3


@pytest.mark.parametrize("kind", SCALES)
def test_onto_half_spaces_the_force_is_zero_inside_and_outward_at_the_bound(kind):
    for domain in (NonNegative(), Box(-1.0, math.inf)):
        x = 3 * draw(1)
        y = domain.project(x, draw_scale(kind, 1))
        assert torch.equal(y > domain.low, x > domain.low)
        assert torch.equal(y[y > domain.low], x[x > domain.low])
        assert (y >= domain.low).all()


@given(
    st.sampled_from(BOUNDED),
    st.sampled_from(sorted(SCALES)),
    st.integers(0, 10**6),
    st.floats(-6, 6),
    st.floats(0, 12),
)
@settings(max_examples=300, deadline=None)
def test_tiny_and_huge_scales(domain, kind, seed, size, orders):
    x, scale = 10**size * draw(seed), draw_scale(kind, seed, orders)
    y = domain.project(x, scale)
    assert domain.contains(y, 1e-10)
    assert violation(domain, x, scale, y) <= 1e-10


@pytest.mark.parametrize("orders", [50, 150])
def test_scales_at_the_ends_of_the_range_of_float64(orders):
    for domain in BOUNDED:
        for kind in SCALES:
            for seed in range(20):
                y = domain.project(3 * draw(seed), draw_scale(kind, seed, orders))
                assert domain.contains(y, 1e-10)


@both
@pytest.mark.parametrize("factor", [1e-100, 1e-3, 1e100])
def test_only_the_ratios_of_scales_matter(domain, kind, factor):
    x, scale = 2 * draw(3), draw_scale(kind, 3)
    torch.testing.assert_close(domain.project(x, factor * scale), domain.project(x, scale), rtol=1e-12, atol=1e-12)


# ------------------------------------------------------------------------------------------------------ laws


@both
def test_points_of_the_set_stay_where_they_are(domain, kind):
    x = domain.project(draw(5), draw_scale(kind, 5))
    inside = x if isinstance(domain, Simplices) else 0.5 * x if domain.contains(0.5 * x) else x
    torch.testing.assert_close(domain.project(inside, draw_scale(kind, 6)), inside, rtol=1e-14, atol=1e-15)
    assert domain.contains(inside)
    assert domain.distance(inside) <= 1e-14


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_second_projection_changes_no_bits(dtype):
    for domain in DOMAINS:
        for kind in SCALES:
            for seed in range(10):
                once = domain.project(2 * draw(seed, dtype=dtype), draw_scale(kind, seed).float())
                assert torch.equal(domain.project(once, draw_scale(kind, seed + 1).float()), once)


def test_a_point_inside_keeps_its_bits():
    x = 0.1 * draw(5).abs()
    for domain in (FrobeniusBall(10.0), RowBalls(10.0), Box(0.0, 1.0), NonNegative(), L1Ball(100.0)):
        for kind in SCALES:
            assert torch.equal(domain.project(x, draw_scale(kind, 1)), x)


@both
def test_projections_do_not_increase_the_distance_in_the_metric(domain, kind):
    scale = draw_scale(kind, 2)
    for seed in range(10):
        a, b = 2 * draw(seed), 2 * draw(seed + 100)
        moved = domain.project(a, scale) - domain.project(b, scale)
        assert (scale * moved.square()).sum() <= (scale * (a - b).square()).sum() * (1 + 1e-12)


PAIRS = [
    (RowBalls(0.7), ColumnBalls(0.7)),
    (RowSimplex(), ColumnSimplex()),
    (FrobeniusBall(1.0), FrobeniusBall(1.0)),
    (L1Balls(1.0, "row"), L1Balls(1.0, "column")),
    (Balls(1.0, Blocks(rows=2)), Balls(1.0, Blocks(rows=1, columns=2))),
]


@pytest.mark.parametrize(("domain", "transposed"), PAIRS, **named)
@pytest.mark.parametrize("kind", SCALES)
def test_rows_of_x_are_columns_of_its_transpose(domain, transposed, kind):
    x, scale = 2 * draw(4), draw_scale(kind, 4)
    torch.testing.assert_close(
        domain.project(x, scale), transposed.project(x.T, scale.T if scale.dim() else scale).T, rtol=1e-12, atol=1e-14
    )


def test_where_each_block_has_one_scale_the_metric_does_not_matter():
    x = 2 * draw(9)
    for domain, kind in (
        (RowBalls(0.7), "row"),
        (ColumnBalls(0.7), "column"),
        (RowSimplex(), "row"),
        (Box(0, 1), "entry"),
    ):
        torch.testing.assert_close(domain.project(x, draw_scale(kind, 9)), domain.project(x), rtol=1e-12, atol=1e-14)


def test_a_row_with_a_larger_scale_moves_less():
    x = torch.ones(2, 3, dtype=torch.float64)
    y = FrobeniusBall(1.0).project(x, torch.tensor([[1.0], [10.0]]))
    assert (x - y)[1].norm() < 0.5 * (x - y)[0].norm()


def test_a_product_projects_its_parts():
    x, scale = 2 * draw(8), draw_scale("row", 8)
    domain = RowProduct(((2, FrobeniusBall(1.0)), (0, RowBalls(1.0)), (4, RowSimplex())))
    y = domain.project(x, scale)
    assert torch.equal(y[:2], FrobeniusBall(1.0).project(x[:2], scale[:2]))
    assert torch.equal(y[2:], RowSimplex().project(x[2:], scale[2:]))


@pytest.mark.parametrize("domain", [d for d in DOMAINS if d.is_separable_by_rows(SHAPE)], **named)
@pytest.mark.parametrize("kind", SCALES)
def test_separable_sets_project_rows_separately(domain, kind):
    x, scale = 2 * draw(6), draw_scale(kind, 6)
    rows = torch.tensor([0, 2, 3, 5])
    some = scale[rows] if scale.dim() and len(scale) > 1 else scale
    alone = domain.of_rows(rows, SHAPE).project(x[rows], some)
    torch.testing.assert_close(alone, domain.project(x, scale)[rows], rtol=1e-13, atol=1e-14)


def test_which_sets_are_separable_by_rows():
    separable = {repr(domain) for domain in DOMAINS if domain.is_separable_by_rows(SHAPE)}
    assert separable == {
        "RowBalls(radius=0.7)",
        "Balls(radius=0.8, geometry=Blocks(columns=2))",
        "Box(low=-0.3, high=0.5)",
        "RowSimplex(total=1.0)",
        "L1Balls(radius=0.6, geometry=Row())",
        "NonNegative()",
        "WholeSpace()",
        "Box(low=-1.0, high=inf)",
    }
    parts = RowProduct(((1, FrobeniusBall(1.0)), (5, RowBalls(1.0))))
    assert not parts.is_separable_by_rows(SHAPE)  # one row in a ball of its own: not known to be


# ------------------------------------------------------------------------------------------------------ tensors


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_narrow_dtypes_are_projected_in_a_wider_dtype_and_rounded_once(dtype):
    for domain in DOMAINS:
        for kind in SCALES:
            x, scale = 2 * draw(3, dtype=dtype), draw_scale(kind, 3).to(torch.float32)
            y = domain.project(x, scale)
            assert y.dtype == dtype
            exact = domain.project(x.double(), scale.double())
            torch.testing.assert_close(
                y.double(), exact, rtol=4 * torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps
            )
            assert domain.contains(y)


@both
def test_strides_do_not_matter(domain, kind):
    x, scale = 2 * draw(2), draw_scale(kind, 2)
    strided = x.T.contiguous().T
    torch.testing.assert_close(domain.project(strided, scale), domain.project(x, scale), rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("shape", [(5,), (), (4, 2, 3, 3), (1, 7), (7, 1), (0, 3), (3, 0)])
def test_vectors_scalars_convolutions_and_empty_tensors(shape):
    x = 3 * draw(1, shape)
    for domain in (FrobeniusBall(1.0), RowBalls(1.0), ColumnBalls(1.0), Box(-1, 1), L1Ball(1.0), NonNegative()):
        y = domain.project(x, draw_scale("all", 1, shapes={"all": shape}))
        assert y.shape == x.shape
        assert domain.contains(y)


def test_complex_balls():
    x = torch.complex(draw(1), draw(2))
    y = FrobeniusBall(1.0).project(x, draw_scale("row", 1))
    as_reals = FrobeniusBall(1.0).project(torch.view_as_real(x), draw_scale("row", 1)[..., None])
    torch.testing.assert_close(torch.view_as_real(y), as_reals)


def test_a_small_violation_is_detected_next_to_large_numbers():
    assert not NonNegative().contains(torch.tensor([-0.1, 1.0], dtype=torch.bfloat16))
    assert not NonNegative().contains(torch.tensor([-1.0, 1e6]))
    assert not FrobeniusBall(1.0).contains(torch.full((100, 100), 0.011, dtype=torch.bfloat16))
    assert not L1Ball(1.0).contains(torch.cat([torch.ones(1, 1), torch.full((1, 10**6), 1e-6)], 1))
    assert not RowSimplex().contains(torch.full((1, 1000), 2.5e-3))


def test_gradients_flow_through_projections():
    for domain in (RowBalls(1.0), ColumnBalls(1.0), FrobeniusBall(1.0), RowSimplex(), L1Ball(1.0)):
        x = draw(1).requires_grad_()
        torch.autograd.gradcheck(domain.project, (x, draw_scale("row", 1)))


def test_nan_is_in_no_bounded_set():
    x = draw(1)
    x[2, 1] = math.nan
    assert not any(domain.contains(x) for domain in BOUNDED)
    assert RowBalls(1.0).project(x)[[0, 1, 3, 4, 5]].isfinite().all()


def test_a_compiled_projection_is_one_graph():
    compiled = torch.compile(FrobeniusBall(1.5).project, fullgraph=True, backend="aot_eager")
    x, scale = 2 * draw(1), draw_scale("row", 1, orders=5)
    torch.testing.assert_close(compiled(x, scale), FrobeniusBall(1.5).project(x, scale), rtol=1e-12, atol=1e-14)


# ------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: FrobeniusBall(0.0), ValueError, "FrobeniusBall: radius must be positive and finite, got 0.0"),
        (lambda: RowBalls(math.inf), ValueError, "RowBalls: radius must be positive and finite, got inf"),
        (lambda: RowBalls("1"), TypeError, "RowBalls: radius must be a number, got '1'"),
        (lambda: Box(1.0, 0.0), ValueError, "low must be at most high, got 1.0 and 0.0"),
        (lambda: Box(math.nan, 0.0), ValueError, "low must be at most high"),
        (lambda: RowSimplex(-1.0), ValueError, "RowSimplex: total must be positive"),
        (lambda: Balls(1.0, "rows"), ValueError, "geometry must be one of"),
        (lambda: RowProduct(((1.5, RowBalls(1.0)),)), ValueError, "a number of rows must be an int"),
        (lambda: RowProduct(((1, "ball"),)), TypeError, "a pair of a number of rows and a Domain, got 'ball'"),
        (lambda: RowProduct(((2, RowBalls(1.0)),)).project(draw(0)), ValueError, "have 2 rows"),
        (lambda: RowProduct((RowBalls(1.0),)), TypeError, "a pair of a number of rows and a Domain, got RowBalls"),
        (lambda: RowBalls(1.0).project(torch.ones(2, 2, dtype=torch.int64)), TypeError, "dtype, got torch.int64"),
        (lambda: RowSimplex().project(draw(0, (4,))), ValueError, r"has shape \(4,\), without rows or columns"),
        (lambda: RowSimplex().check_fits("bias", draw(0, (5,))), ValueError, "bias has shape .* without rows"),
        (lambda: Box(0, 1).check_fits("w", torch.ones(2, dtype=torch.complex64)), TypeError, "w is complex"),
        (lambda: L1Ball(1.0).check_fits("w", torch.ones(2, dtype=torch.complex64)), TypeError, "w is complex"),
    ],
)
def test_bad_arguments_say_what_is_wrong(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_domains_are_values():
    assert FrobeniusBall(1.0) == FrobeniusBall(1.0) != FrobeniusBall(2.0)
    assert len({RowBalls(1.0), RowBalls(1.0), ColumnBalls(1.0)}) == 2
    assert repr(FrobeniusBall(1)) == repr(FrobeniusBall(numpy.float32(1))) == "FrobeniusBall(radius=1.0)"
    assert FrobeniusBall(1.0).diameter("row", SHAPE) == 2.0
    assert all(isinstance(domain, Domain) for domain in DOMAINS)
