"""What the mathematics says of a geometry's steps, on random matrices."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import Parameter

from matrix_adagrad import MatrixAdaGrad, MatrixMomentum
from matrix_adagrad.geometry import Blocks, Column, Entry, Row, Whole
from tests.optim.table import GEOMETRIES, TABLE, settings
from tests.optim.training import assert_same, make_grads, make_params, train

CLASSES = (MatrixAdaGrad, MatrixMomentum)
sizes = st.integers(1, 7)
seeds = st.integers(0, 2**16)
kinds = st.sampled_from(CLASSES)
backends = st.sampled_from([None, False, True])  # foreach; None: the native kernels
options = st.fixed_dictionaries(
    {
        "lr": st.sampled_from([0.01, 1.0]),
        "reduction": st.sampled_from(["sum", "mean"]),
        "weight_decay": st.sampled_from([0.0, 0.1]),
        "decoupled_weight_decay": st.booleans(),
        "maximize": st.booleans(),
        "foreach": backends,
    }
)


def play(cls, geometry, x, grads, **options):
    """Where the optimizer takes x along these gradients."""
    x = Parameter(x.clone())
    optimizer = cls([x], geometry=geometry, **options)
    for grad in grads:
        x.grad = grad
        optimizer.step()
    return x.detach()


def problem(m, n, seed, steps=4):
    x = make_params(shapes=[(m, n)], seed=seed)[0].detach()
    return x, [make_grads([x], t, seed=seed)[0] for t in range(steps)]


def orthogonal(n, seed):
    return torch.linalg.qr(torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)))[0]


def close(a, b, tolerance=1e-10):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@given(kinds, st.sampled_from(GEOMETRIES), options, st.sampled_from([(4, 6), (2, 2), (6, 2)]), seeds)
def test_a_geometry_on_x_equals_its_transpose_on_x_transposed(cls, geometry, options, shape, seed):
    x, grads = problem(*shape, seed)
    straight = play(cls, geometry, x, grads, **options)
    transposed = play(cls, geometry.transpose, x.T, [g.T for g in grads], **options)
    close(straight, transposed.T)


@given(kinds, options, sizes, sizes, seeds)
def test_row_on_x_equals_column_on_x_transposed(cls, options, m, n, seed):
    x, grads = problem(m, n, seed)
    row = play(cls, Row(), x, grads, **options)
    close(row, play(cls, Column(), x.T, [g.T for g in grads], **options).T)
    close(row, play(cls, Column(), x.T.contiguous(), [g.T.contiguous() for g in grads], **options).T)


@given(kinds, options, sizes, sizes, seeds)
def test_row_commutes_with_orthogonal_matrices_from_the_right(cls, options, m, n, seed):
    x, grads = problem(m, n, seed)
    q = orthogonal(n, seed)
    close(play(cls, Row(), x @ q, [g @ q for g in grads], **options), play(cls, Row(), x, grads, **options) @ q)


@given(kinds, options, sizes, sizes, seeds)
def test_column_commutes_with_orthogonal_matrices_from_the_left(cls, options, m, n, seed):
    x, grads = problem(m, n, seed)
    q = orthogonal(m, seed)
    close(play(cls, Column(), q @ x, [q @ g for g in grads], **options), q @ play(cls, Column(), x, grads, **options))


@given(kinds, options, sizes, sizes, seeds)
def test_whole_commutes_with_orthogonal_matrices_on_both_sides(cls, options, m, n, seed):
    x, grads = problem(m, n, seed)
    p, q = orthogonal(m, seed), orthogonal(n, seed + 1)
    rotated = play(cls, Whole(), p @ x @ q, [p @ g @ q for g in grads], **options)
    close(rotated, p @ play(cls, Whole(), x, grads, **options) @ q)


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("geometry", [Entry(), Row(), Column()], ids=str)
def test_the_sides_that_a_geometry_does_not_commute_with(cls, geometry):
    x, grads = problem(5, 4, seed=3)
    plain = play(cls, geometry, x, grads, lr=0.1)
    p, q = orthogonal(5, 1), orthogonal(4, 2)
    if geometry != Column():
        assert (play(cls, geometry, p @ x, [p @ g for g in grads], lr=0.1) - p @ plain).abs().max() > 1e-3
    if geometry != Row():
        assert (play(cls, geometry, x @ q, [g @ q for g in grads], lr=0.1) - plain @ q).abs().max() > 1e-3


@given(kinds, st.sampled_from([Row(), Column(), Entry(), Whole()]), options, sizes, sizes, seeds)
def test_permutations_of_rows_and_columns_commute(cls, geometry, options, m, n, seed):
    x, grads = problem(m, n, seed)
    random = torch.Generator().manual_seed(seed)
    rows, columns = torch.randperm(m, generator=random), torch.randperm(n, generator=random)
    permuted = play(cls, geometry, x[rows][:, columns], [g[rows][:, columns] for g in grads], **options)
    close(permuted, play(cls, geometry, x, grads, **options)[rows][:, columns])


@given(backends, st.sampled_from(["sum", "mean"]), sizes, sizes, seeds, st.floats(-20, 20))
def test_scaling_the_gradients_of_a_row_leaves_its_adagrad_step_unchanged(foreach, reduction, m, n, seed, exponent):
    x, grads = problem(m, n, seed)
    i = seed % m
    factor = torch.ones(m, 1, dtype=torch.float64)
    factor[i] = 10.0**exponent
    options = {"lr": 0.1, "eps": 0.0, "reduction": reduction, "foreach": foreach}
    close(
        play(MatrixAdaGrad, Row(), x, [factor * g for g in grads], **options),
        play(MatrixAdaGrad, Row(), x, grads, **options),
    )


@given(kinds, st.sampled_from(GEOMETRIES), st.sampled_from([(4, 6), (2, 2), (6, 10)]), backends, seeds)
def test_mean_with_lr_and_eps_equals_sum_with_both_times_root_n(cls, geometry, shape, foreach, seed):
    x, grads = problem(*shape, seed)
    root = math.sqrt(geometry.members(shape))
    mean = play(cls, geometry, x, grads, lr=0.1, eps=0.3, reduction="mean", foreach=foreach)
    close(mean, play(cls, geometry, x, grads, lr=0.1 * root, eps=0.3 * root, foreach=foreach))


def test_the_mean_is_of_squares_and_not_the_square_of_the_mean():
    x, grads = problem(3, 5, seed=0, steps=1)
    x = Parameter(x)
    optimizer = MatrixAdaGrad([x], reduction="mean")
    x.grad = grads[0]
    optimizer.step()
    torch.testing.assert_close(optimizer.state[x]["sum"].flatten(), grads[0].square().mean(1))


@given(kinds, st.sampled_from(GEOMETRIES), seeds)
def test_the_first_adagrad_step_has_length_lr_in_every_block(cls, geometry, seed):
    x, grads = problem(4, 6, seed, steps=1)
    moved = play(cls, geometry, x, grads, lr=0.5, eps=0.0) - x
    close(geometry.statistic(moved).sqrt(), torch.full_like(geometry.statistic(moved), 0.5))


@given(seeds)
def test_a_finer_geometry_never_has_the_smaller_sum_of_roots(seed):
    """The sums of roots in the bounds: entries ≥ slices ≥ rows ≥ groups of rows ≥ the whole."""
    _, grads = problem(4, 6, seed)
    chain = (Entry(), Blocks(columns=2), Row(), Blocks(rows=2), Whole())
    roots = [sum(geometry.statistic(g) for g in grads).sqrt().sum() for geometry in chain]
    assert all(fine >= coarse * (1 - 1e-12) for fine, coarse in itertools.pairwise(roots))


@pytest.mark.parametrize("entrant", TABLE, ids=str)
def test_foreach_equals_reference(entrant):
    for options in settings(entrant):
        fast, fast_optimizer = train(lambda params, options=options: entrant(params, foreach=True, **options))
        slow, slow_optimizer = train(lambda params, options=options: entrant(params, foreach=False, **options))
        assert_same(fast, slow, rtol=1e-12, atol=1e-13)
        for p, q in zip(fast, slow, strict=True):
            assert fast_optimizer.state[p].keys() == slow_optimizer.state[q].keys()
            for key, value in fast_optimizer.state[p].items():
                assert_same([value], [slow_optimizer.state[q][key]], rtol=1e-12, atol=1e-14)


@given(
    kinds, st.sampled_from([Row(), Column(), Entry(), Whole()]), options, st.integers(0, 5), st.integers(0, 5), seeds
)
def test_foreach_equals_reference_on_any_shape_and_options(cls, geometry, options, m, n, seed):
    x, grads = problem(m, n, seed)
    paths = [play(cls, geometry, x, grads, **{**options, "foreach": foreach}) for foreach in (False, True)]
    close(*paths)


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("foreach", [False, True])
def test_l2_decay_is_part_of_the_statistic_and_decoupled_decay_is_not(cls, foreach):
    x, (grad,) = problem(3, 4, seed=5, steps=1)
    key = cls.STATISTIC
    statistics = {}
    for decay in ({}, {"weight_decay": 0.5}, {"weight_decay": 0.5, "decoupled_weight_decay": True}):
        param = Parameter(x.clone())
        param.grad = grad
        optimizer = cls([param], foreach=foreach, **decay)
        optimizer.step()
        statistics[len(decay)] = optimizer.state[param][key]
    factor = 1.0 if cls is MatrixAdaGrad else 0.001
    close(statistics[1], factor * (grad + 0.5 * x).square().sum(1, keepdim=True))
    torch.testing.assert_close(statistics[2], statistics[0], rtol=0, atol=0)
    assert not torch.allclose(statistics[1], statistics[0])
