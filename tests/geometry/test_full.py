"""A full metric couples rows, or columns; its diagonal is the row-wise, or column-wise, one."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from matrix_adagrad import Column, Full, MatrixAdaGrad, MatrixMomentum, RootWarning, Row

SIDES = ("row", "column", "smaller")
every_side = pytest.mark.parametrize("side", SIDES)
shapes = st.sampled_from([(4, 6), (6, 4), (1, 5), (3, 4, 6)])


def gradient(shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def metric(products):
    values, vectors = torch.linalg.eigh(products)
    return vectors @ torch.diag_embed(values.clamp(min=0).sqrt()) @ vectors.mT


@given(shapes, st.integers(0, 2**16))
def test_the_metric_is_the_root_of_the_summed_products(shape, seed):
    gradients = [gradient(shape, seed + t) for t in range(8)]
    x, identity = gradient(shape, seed + 99), torch.eye(max(shape), dtype=torch.float64)
    for side in ("row", "column"):
        geometry = Full(side)
        products = sum(g @ g.mT if side == "row" else g.mT @ g for g in gradients)
        h = metric(products) + 0.1 * identity[: products.shape[-1], : products.shape[-1]]
        (statistic,) = (sum(parts) for parts in zip(*map(geometry.measure, gradients), strict=True))
        by_hand = h @ x if side == "row" else x @ h
        torch.testing.assert_close(geometry.weigh(x, 0.1, statistic), by_hand, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(geometry.precondition(by_hand, 2.0, 0.1, statistic), 2 * x, rtol=1e-6, atol=1e-8)


@every_side
@given(shape=shapes, seed=st.integers(0, 2**16))
def test_the_transpose_has_the_other_side(side, shape, seed):
    g, geometry = gradient(shape, seed), Full(side)
    straight = geometry.precondition(g, 1.0, 0.1, *geometry.measure(g))
    turned = geometry.transpose.precondition(g.mT, 1.0, 0.1, *geometry.transpose.measure(g.mT))
    torch.testing.assert_close(turned.mT, straight)
    assert geometry.transpose.transpose == geometry


@pytest.mark.parametrize(("side", "partition"), [("row", Row()), ("column", Column())])
def test_its_diagonal_is_the_partitions_statistic(side, partition):
    g = gradient((4, 6))
    ((products,),) = Full(side).measure(g)
    torch.testing.assert_close(products.diagonal(), partition.statistic(g).flatten())


def test_smaller_takes_the_smaller_side():
    assert Full("smaller").statistic_shapes((6, 4)) == ((1, 4, 4),)
    assert Full("smaller").statistic_shapes((4, 6)) == ((1, 4, 4),)


def test_large_sides_are_cut_into_blocks_that_are_not_coupled():
    g = gradient((7, 5))
    geometry = Full("row", block=3)
    assert geometry.statistic_shapes((7, 5)) == ((3, 3, 3),)  # the last block is padded
    step = geometry.precondition(g, 1.0, 0.1, *geometry.measure(g))
    parts = [Full("row").precondition(part, 1.0, 0.1, *Full("row").measure(part)) for part in g.split(3)]
    torch.testing.assert_close(step, torch.cat(parts))


def test_orthogonal_rows_of_a_single_gradient_take_steps_of_length_one():
    g = torch.diag(torch.tensor([3.0, 4.0, 0.5], dtype=torch.float64))
    x = torch.nn.Parameter(torch.zeros(3, 3).double())
    optimizer = MatrixAdaGrad([x], lr=1.0, geometry=Full("row"), eps=0.0)
    x.grad = g
    optimizer.step()
    torch.testing.assert_close(x.detach(), -torch.eye(3).double())


def test_a_metric_without_full_rank_is_stable_in_float32():
    torch.manual_seed(0)
    x = torch.nn.Parameter(torch.zeros(64, 4))
    optimizer = MatrixAdaGrad([x], lr=1.0, geometry=Full("row"), eps=0.0)
    for _ in range(3):
        x.grad = torch.randn(64, 4)
        optimizer.step()
    assert x.isfinite().all()
    assert x.abs().max() < 3  # three steps whose singular values are at most one


def test_a_failed_root_is_said_and_the_diagonal_is_taken(monkeypatch):
    def fails(products):  # noqa: ARG001
        raise torch.linalg.LinAlgError("the algorithm failed to converge")

    g = gradient((4, 6))
    monkeypatch.setattr(torch.linalg, "eigh", fails)
    with pytest.warns(RootWarning, match="no eigendecomposition of 1 of 1 4×4 metrics; .* for this step"):
        step = Full("row").precondition(g, 1.0, 0.1, *Full("row").measure(g))
    by_row = Row().precondition(g, 1.0, 0.1, *Row().measure(g))
    torch.testing.assert_close(step, by_row)


@pytest.mark.parametrize(("every", "words"), [(1, "for this step"), (3, "until the next one, after 3 steps")])
def test_a_square_that_overflows_stops_its_row_and_leaves_the_others_the_diagonal(every, words):
    """An infinite diagonal makes torch's eigenvalues NaN, without an error."""
    g = gradient((4, 6)).float()
    g[0, 0] = 1e25
    x, y = (torch.nn.Parameter(torch.zeros(4, 6)) for _ in range(2))
    optimizer, by_row = MatrixAdaGrad([x], geometry=Full("row", every=every)), MatrixAdaGrad([y], geometry="row")
    x.grad, y.grad = g, g.clone()
    with pytest.warns(RootWarning, match=f"of 1 of 1 4×4 metrics; the diagonal is taken {words}"):
        optimizer.step()
    by_row.step()
    assert (x[0] == 0).all()
    torch.testing.assert_close(x, y)


@pytest.mark.parametrize("broken", [torch.inf, torch.nan, 1e25])  # the first two raise an error, the third does not
def test_a_broken_matrix_of_a_batch_leaves_the_others_their_roots(broken):
    g = gradient((3, 4, 6)).float()
    whole, geometry = Full("row").precondition(g, 1.0, 0.1, *Full("row").measure(g)), Full("row")
    g[1] = torch.eye(4, 6) * broken if broken == 1e25 else broken
    with pytest.warns(RootWarning, match="no eigendecomposition of 1 of 3 4×4 metrics"):
        step = geometry.precondition(g, 1.0, 0.1, *geometry.measure(g))
    torch.testing.assert_close(step[[0, 2]], whole[[0, 2]])


@pytest.mark.parametrize(
    ("family", "options", "keeps", "joins"),
    [(MatrixAdaGrad, {}, 1, 1), (MatrixMomentum, {"betas": (0.0, 0.9), "bias_correction": False}, 0.9, 0.1)],
)
def test_between_decompositions_the_statistic_goes_on_and_the_metric_stays(family, options, keeps, joins):
    x = torch.nn.Parameter(torch.zeros(4, 6, dtype=torch.float64))
    optimizer = family([x], lr=1.0, geometry=Full("row", every=3), eps=0.1, **options)
    products = torch.zeros(4, 4, dtype=torch.float64)
    for t in range(7):
        before, g = x.detach().clone(), gradient((4, 6), t)
        x.grad = g
        optimizer.step()
        products = keeps * products + joins * g @ g.mT
        if t % 3 == 0:
            h = metric(products) + 0.1 * torch.eye(4, dtype=torch.float64)
        torch.testing.assert_close(optimizer.state[x][family.STATISTIC][0], products)
        torch.testing.assert_close(before - x.detach(), torch.linalg.solve(h, g), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"side": "left"}, ValueError, "side must be 'row', 'column' or 'smaller', got 'left'"),
        ({"every": 0}, ValueError, "every must be at least 1, got 0"),
        ({"block": 2.0}, TypeError, "block must be an int, got 2.0"),
    ],
)
def test_wrong_values_are_named(options, error, words):
    with pytest.raises(error, match=words):
        Full(**options)


def test_its_state_is_refused_by_another_geometry_that_names_both():
    x = torch.nn.Parameter(torch.zeros(4, 4))
    x.grad = torch.tensor([[1.0, -1.0, 0.0, 0.0]] * 2 + [[-1.0, 1.0, 0.0, 0.0]] * 2)  # products below zero
    full, row = (MatrixAdaGrad([x], geometry=geometry) for geometry in (Full("row"), Row()))
    full.step()
    with pytest.raises(ValueError, match=r"parameter 0: the saved 'sum' has geometry full\(.* needs geometry row"):
        row.load_state_dict(full.state_dict())


def test_autograd_can_record_steps_that_keep_a_root():
    lr = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    x = torch.ones(3, 4, dtype=torch.float64)
    optimizer = MatrixAdaGrad([x], lr=lr, geometry=Full("row", every=2), differentiable=True)
    for seed in range(4):
        x.grad = gradient((3, 4), seed) * x.clone()
        optimizer.step()
    x.sum().backward()
    assert lr.grad.isfinite()


def test_complex_parameters_are_refused_by_name():
    x = torch.nn.Parameter(torch.zeros(3, 4, dtype=torch.complex64))
    with pytest.raises(ValueError, match=r"parameter 0, .*: Full\('row'\) has complex statistics for torch.complex64"):
        MatrixAdaGrad([x], geometry=Full("row"))
