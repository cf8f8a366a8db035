"""A factored scale comes from the squares of a row and of a column."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from matrix_adagrad import Factored, MatrixAdaGrad, MatrixMomentum

COMBINE = ("product", "geometric", "minimum")
every_combination = pytest.mark.parametrize("combine", COMBINE)
shapes = st.sampled_from([(4, 6), (1, 5), (5, 1), (3, 4, 6), (2, 3, 4, 2)])


def gradient(shape, seed):
    """Rows and columns whose sizes differ by orders of magnitude."""
    generator = torch.Generator().manual_seed(seed)
    rows, columns = torch.randn(shape[-2], 1, generator=generator), torch.randn(1, shape[-1], generator=generator)
    g = torch.randn(shape, generator=generator) * (2 * rows).exp() * (2 * columns).exp()
    return g.double()


def scale_of(geometry, *gradients):
    measured = [geometry.measure(g) for g in gradients]
    return geometry.scale(*(sum(parts) for parts in zip(*measured, strict=True)))


@given(shapes, st.integers(0, 2**16))
def test_the_scales_are_those_written_out_by_hand(shape, seed):
    g = gradient(shape, seed)
    r, c = g.square().mean(-1, keepdim=True), g.square().mean(-2, keepdim=True)
    torch.testing.assert_close(scale_of(Factored(), g), (r * c / r.mean(-2, keepdim=True)).sqrt())
    r, c = g.square().sum(-1, keepdim=True), g.square().sum(-2, keepdim=True)
    torch.testing.assert_close(scale_of(Factored("geometric"), g), (r * c) ** 0.25)
    torch.testing.assert_close(scale_of(Factored("minimum"), g), torch.minimum(r, c).sqrt())


@every_combination
@given(shape=shapes, seed=st.integers(0, 2**16))
def test_a_batch_is_scaled_matrix_by_matrix(combine, shape, seed):
    g = gradient((2, *shape), seed)
    each = torch.stack([scale_of(Factored(combine), matrix) for matrix in g])
    torch.testing.assert_close(scale_of(Factored(combine), g), each, rtol=0, atol=0)


@every_combination
@given(seed=st.integers(0, 2**16))
def test_it_treats_the_transpose_as_the_matrix(combine, seed):
    g = gradient((4, 6), seed)
    torch.testing.assert_close(scale_of(Factored(combine).transpose, g.T), scale_of(Factored(combine), g).T)


@given(st.integers(0, 2**16))
def test_the_product_has_the_right_sums_over_rows_and_columns(seed):
    g = gradient((4, 6), seed)
    squares = scale_of(Factored(), g).square()
    for dim in (0, 1):
        torch.testing.assert_close(squares.sum(dim), g.square().sum(dim))


@pytest.mark.parametrize("combine", ["geometric", "minimum"])
@given(seed=st.integers(0, 2**16))
def test_geometric_and_minimum_never_fall_and_cover_the_entrys_own_squares(combine, seed):
    gradients = [gradient((4, 6), seed + t) for t in range(4)]
    before = torch.zeros(4, 6).double()
    for t in range(4):
        s = scale_of(Factored(combine), *gradients[: t + 1])
        own = sum(g.square() for g in gradients[: t + 1]).sqrt()
        assert (s >= before * (1 - 1e-12)).all()
        assert (s >= own * (1 - 1e-12)).all()
        before = s


def test_the_product_can_fall():
    first, second = torch.tensor([[1.0, 1.0], [1.0, 1.0]]), torch.tensor([[0.0, 0.0], [0.0, 10.0]])
    before, after = scale_of(Factored(), first), scale_of(Factored(), first, second)
    assert after[0, 0] < before[0, 0] / 2


@every_combination
@pytest.mark.parametrize("cls", [MatrixAdaGrad, MatrixMomentum])
def test_reduction_changes_the_product_by_rounding_alone_and_the_others_by_a_factor(cls, combine):
    moved = {}
    for reduction in ("sum", "mean"):
        x = torch.nn.Parameter(torch.zeros(4, 6).double())
        optimizer = cls([x], lr=1.0, geometry=Factored(combine), reduction=reduction, eps=0.0)
        x.grad = gradient((4, 6), 0)
        optimizer.step()
        moved[reduction] = x.detach()
    factor = {"product": 1.0, "geometric": 24**0.25}.get(combine)
    if factor is None:  # a mean over a row and one over a column are not compared as their sums are
        assert not torch.allclose(moved["mean"], moved["sum"])
    else:
        torch.testing.assert_close(moved["mean"], factor * moved["sum"])


@every_combination
@pytest.mark.parametrize("size", [1e-18, 1e18])
def test_tiny_and_huge_gradients_neither_overflow_nor_vanish(combine, size):
    g = gradient((4, 6), 1).float()
    g = g / g.abs().max()
    s = scale_of(Factored(combine), size * g)
    torch.testing.assert_close(s / size, scale_of(Factored(combine), g), rtol=1e-3, atol=0)


@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize("sparse", [False, True])
def test_a_total_that_overflows_stops_the_steps(fused, sparse):
    """Of a table whose rows and columns have finite sums, and of one with a single infinite gradient."""
    for g in (
        torch.full((100, 4), 1e18),
        torch.ones(100, 4).index_put((torch.tensor(2), torch.tensor(1)), torch.tensor(torch.inf)),
    ):
        x = torch.nn.Parameter(torch.zeros(100, 4))
        x.grad = g.to_sparse(1) if sparse else g
        MatrixAdaGrad([x], lr=1.0, geometry=Factored(), fused=fused).step()
        finite = g.isfinite()
        assert x[finite].isfinite().all()
        assert x[finite].abs().max() <= 1
        assert not x[~finite].isfinite().any()


@every_combination
def test_without_a_gradient_nothing_moves(combine):
    for cls in (MatrixAdaGrad, MatrixMomentum):
        x = torch.nn.Parameter(torch.ones(4, 6))
        optimizer = cls([x], lr=1.0, geometry=Factored(combine), eps=0.0)
        x.grad = torch.zeros(4, 6)
        x.grad[1, 2] = 1.0  # a row and a column, and nothing elsewhere
        optimizer.step()
        moved = x.detach() != 1
        assert moved.nonzero().tolist() == [[1, 2]]


def test_the_state_has_a_number_for_each_row_and_column():
    x = torch.nn.Parameter(torch.randn(50, 8))
    optimizer = MatrixAdaGrad([x], geometry=Factored())
    x.grad = torch.randn(50, 8)
    optimizer.step()
    shapes = {key: tuple(value.shape) for key, value in optimizer.state[x].items() if key != "step"}
    assert shapes == {"sum_row": (50, 1), "sum_column": (1, 8), "sum_whole": (1, 1)}


def test_an_unknown_combination_is_refused():
    with pytest.raises(ValueError, match="combine must be 'product', 'geometric' or 'minimum', got 'mean'"):
        Factored("mean")


def test_saved_squares_below_zero_are_refused():
    x = torch.nn.Parameter(torch.ones(3, 4))
    optimizer = MatrixAdaGrad([x], geometry=Factored())
    optimizer.init_state()
    saved = optimizer.state_dict()
    saved["state"][0]["sum_column"] = saved["state"][0]["sum_column"] - 1
    with pytest.raises(ValueError, match="'sum_column' contains negative values"):
        optimizer.load_state_dict(saved)
