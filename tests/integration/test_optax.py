"""JAX: the transformations take the steps of the torch optimizers, and runs move between both."""

import importlib
import inspect
import itertools
import os
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from matrix_adagrad import (
    Blocks,
    ColumnAdaGrad,
    ColumnMomentum,
    Factored,
    Full,
    MatrixAdaGrad,
    MatrixMomentum,
    RowAdaGrad,
    RowMomentum,
    Spectral,
    SteepestDescent,
)
from matrix_adagrad.domains import Balls, Box, FrobeniusBall, RowBalls, RowProduct, RowSimplex
from matrix_adagrad.geometry import Column, Partition, Row, Unscaled
from tests.domains.table import DOMAINS, SHAPE, draw, draw_scale
from tests.integration import optax_runs as runs
from tests.optim.own_geometries import FullRows, RowPlusColumn
from tests.optim.table import GEOMETRIES
from tests.optim.training import make_grads, make_params

if "INTEGRATIONS" not in os.environ:
    pytest.skip("it imports JAX: make test-integrations", allow_module_level=True)
jax = pytest.importorskip("jax", reason="JAX is not installed: make test-integrations")
optax = pytest.importorskip("optax", reason="optax is not installed: make test-integrations")
jnp, ours = jax.numpy, importlib.import_module("matrix_adagrad.interop.optax")


@dataclass(frozen=True)
class Parity(Partition):
    """A geometry of somebody's own: one scale for all rows of the same parity."""

    def cut(self, shape):
        return (shape[0] // 2, 2, *shape[1:]) if len(shape) > 1 else tuple(shape)

    def dims(self, shape):
        return (0, *range(2, len(shape) + 1)) if len(shape) > 1 else ()

    @property
    def transpose(self):
        raise NotImplementedError


SCALED = {"adagrad": (MatrixAdaGrad, ours.matrix_adagrad), "momentum": (MatrixMomentum, ours.matrix_momentum)}
KINDS = {**SCALED, "steepest": (SteepestDescent, ours.steepest_descent)}
SHORTHANDS = (
    *((RowAdaGrad, ours.row_adagrad), (ColumnAdaGrad, ours.column_adagrad)),
    *((RowMomentum, ours.row_momentum), (ColumnMomentum, ours.column_momentum)),
)
DECAYS = ({}, {"weight_decay": 0.1}, {"weight_decay": 0.1, "decoupled_weight_decay": True})


# --------------------------------------------------------------------------------------------------- equal to PyTorch


def assert_same_steps(kind, params, tolerance, lr=0.1, compiled=False, **options):
    cls, alias = KINDS[kind]
    theirs, optimizer = runs.train_torch(cls, params, 4, lr, **options)
    transformation = alias(lr, **options)
    x, state = runs.train_jax(transformation, params, 4, jax.jit(transformation.update) if compiled else None)
    runs.assert_same(x, theirs, tolerance)
    assert int(state.count) == 4
    expected = ours.from_torch(optimizer, {str(i): param for i, param in enumerate(theirs)})
    assert jax.tree.structure(state) == jax.tree.structure(expected)
    for mine, other in zip(jax.tree.leaves(state[1:]), jax.tree.leaves(expected[1:]), strict=True):
        if not getattr(options.get("geometry"), "derived", ()):  # eigenvectors have any sign
            runs.assert_same({"0": mine}, [torch.from_numpy(np.array(other))], tolerance)
    return x


@pytest.mark.parametrize("geometry", [*GEOMETRIES, Parity()], ids=str)
@pytest.mark.parametrize("kind", SCALED)
def test_steps_are_those_of_the_torch_optimizer(kind, geometry):
    extra = [{}, {"initial_accumulator_value": 0.3}] if kind == "adagrad" else [{}, {"bias_correction": False}]
    params = make_params(torch.float32, ((6, 4), (5,)))
    assert_same_steps(kind, make_params(torch.float32, ((4, 2, 3, 3),)), 1e-6, geometry=geometry)  # a convolution
    for reduction, decay, own in itertools.product(("sum", "mean"), DECAYS, extra):
        assert_same_steps(kind, params, 1e-6, geometry=geometry, reduction=reduction, **decay, **own)


OWN = {
    "adagrad": ({}, {"reduction": "mean", "weight_decay": 0.1}),
    "momentum": (
        {"nesterov": True, "weight_decay": 0.1, "decoupled_weight_decay": True},
        {"betas": (0.0, 0.9), "reduction": "mean"},
        {"betas": (0.8, 0.9), "nesterov": True, "bias_correction": False},
    ),
}
BATCHES = ((6, 4), (5,), (), (2, 4, 6))


@pytest.mark.parametrize(
    "geometry", [*map(Factored, ("product", "geometric", "minimum")), RowPlusColumn(), Row()], ids=repr
)
@pytest.mark.parametrize("kind", OWN)
def test_steps_in_geometries_with_several_statistics_are_those_of_torch(kind, geometry):
    for options in OWN[kind]:
        params = make_params(torch.float32, BATCHES)
        assert_same_steps(kind, params, 1e-6, geometry=geometry, compiled=True, **options)


FULL = [Full("row"), Full("column"), Full("smaller"), Full("row", every=3), Full("column", block=3, every=2)]


@pytest.mark.parametrize("geometry", FULL, ids=repr)
@pytest.mark.parametrize("kind", OWN)
def test_steps_in_a_full_metric_are_those_of_torch(kind, geometry):
    """In float64: the inverse of a root multiplies the rounding errors of float32 by the root of their reciprocal."""
    with jax.enable_x64(True):
        for options in OWN[kind]:
            params = make_params(torch.float64, BATCHES)
            assert_same_steps(kind, params, 1e-6, geometry=geometry, compiled=True, **options)


@pytest.mark.parametrize("kind", OWN)
def test_in_float32_a_full_metric_is_as_exact_as_in_torch(kind):
    (cls, alias), geometry = KINDS[kind], Full("smaller")
    params = make_params(torch.float64, ((6, 4), (2, 4, 6), (5, 3)) * 8)
    exact, _ = runs.train_torch(cls, params, 4, geometry=geometry)
    narrow = [param.detach().float() for param in params]
    theirs, _ = runs.train_torch(cls, narrow, 4, geometry=geometry)
    x, _ = runs.train_jax(alias(0.1, geometry), narrow, 4)
    true = np.concatenate([param.numpy(force=True).ravel() for param in exact])
    results = ([np.asarray(x[str(i)]) for i in range(len(params))], [their.numpy(force=True) for their in theirs])
    errors = [np.concatenate([y.ravel() for y in result]) - true for result in results]
    assert np.linalg.norm(errors[0]) <= 2 * np.linalg.norm(errors[1])


def test_a_full_geometry_of_somebodys_own():
    with jax.enable_x64(True):
        assert_same_steps("adagrad", make_params(torch.float64, ((4, 6), (5,))), 1e-6, geometry=FullRows(), eps=1e-3)


STEEPEST = (
    {"nesterov": True, "weight_decay": 0.1, "decoupled_weight_decay": True},
    {"scale": None, "momentum": 0.0, "weight_decay": 0.1},
    {"rescale": Row(), "rescale_beta": 0.5},
    {"rescale": Column(), "scale": None, "nesterov": True},
)


@pytest.mark.parametrize("geometry", [*GEOMETRIES, Spectral(), Spectral(steps=None)], ids=repr)
def test_steepest_descent_is_that_of_torch(geometry):
    """With Newton–Schulz in float64: each iteration multiplies rounding errors of small singular values by 3.4."""
    floors = () if isinstance(geometry, Unscaled) else ({"floor": 0.3}, {"floor": 0.3, "rescale": Row()})
    is_iterated = geometry == Spectral()
    with jax.enable_x64(is_iterated):
        for options in (*STEEPEST, *floors):
            params = make_params(torch.float64 if is_iterated else torch.float32, BATCHES)
            assert_same_steps("steepest", params, 1e-6, geometry=geometry, compiled=True, **options)


def test_the_iterations_of_the_spectral_norm_have_a_dtype_and_coefficients():
    params = make_params(torch.float32, ((6, 4), (2, 4, 6)))
    narrow = Spectral(dtype=torch.bfloat16)
    x, _ = runs.train_jax(ours.steepest_descent(0.1, narrow), params, 4)
    theirs, _ = runs.train_torch(SteepestDescent, params, 4, geometry=narrow)
    wide, _ = runs.train_jax(ours.steepest_descent(0.1, Spectral()), params, 4)
    runs.assert_same(x, theirs, 1e-2)
    assert max(float(jnp.abs(a - b).max()) for a, b in zip(x.values(), wide.values(), strict=True)) > 1e-5
    cubic = Spectral(steps=3, coefficients=(1.5, -0.5, 0.0))
    assert_same_steps("steepest", params, 1e-6, geometry=cubic)


@pytest.mark.parametrize(("cls", "alias"), [*KINDS.values(), *SHORTHANDS])
def test_options_and_defaults_are_those_of_torch(cls, alias):
    theirs = vars(cls.CONFIG())
    shown = {name: option.default for name, option in inspect.signature(alias).parameters.items()}
    assert shown.pop("learning_rate") is inspect.Parameter.empty
    assert shown == {name: theirs[name] for name in shown}
    of_torch_alone = {"lr", "maximize", "stochastic_rounding", "momentum_dtype", "capturable", "differentiable"}
    of_torch_alone |= {"foreach", "fused", "project_start", "lazy"}  # JAX's gradients are dense
    assert set(cls.CONFIG.OPTIONS) - set(shown) == of_torch_alone & set(cls.CONFIG.OPTIONS)


@pytest.mark.parametrize("domain", DOMAINS, ids=repr)
@pytest.mark.parametrize("kind", SCALED)
def test_steps_over_a_domain_are_those_of_the_torch_optimizer(kind, domain):
    start = [domain.project(draw(0, dtype=torch.float32))]
    others = itertools.cycle(itertools.product(("sum", "mean"), DECAYS))  # all of them come by
    for geometry, (reduction, decay) in zip((*GEOMETRIES, Parity()), others, strict=False):
        options = {"geometry": geometry, "reduction": reduction, "domain": domain, "eps": 1e-3, **decay}
        x = assert_same_steps(kind, start, 1e-6, lr=0.5, **options)
        assert domain.contains(torch.from_numpy(np.array(x["0"])))


@pytest.mark.parametrize("kind", SCALED)
def test_in_float64_steps_agree_to_its_precision(kind):
    with jax.enable_x64(True):
        options = {"geometry": Blocks(columns=2), "weight_decay": 0.1, "compiled": True}
        assert_same_steps(kind, make_params(torch.float64, runs.SHAPES), 1e-14, **options)
        options = {"geometry": "entry", "eps": 1e-3, "domain": FrobeniusBall(1.5), "compiled": True}
        assert_same_steps(kind, [FrobeniusBall(1.5).project(draw(0))], 1e-10, lr=0.5, **options)


@pytest.mark.parametrize("kind", SCALED)
def test_bfloat16_parameters_get_the_same_bits(kind):
    """Statistics are float32, and a parameter is rounded once a step; by entry no sum can be taken in another order."""
    params = make_params(torch.bfloat16, runs.SHAPES)
    assert_same_steps(kind, params, 0.0, geometry="entry")
    assert_same_steps(kind, [Box(-0.5, 0.5).project(p) for p in params], 0.0, geometry="entry", domain=Box(-0.5, 0.5))


@pytest.mark.parametrize("kind", SCALED)
def test_complex_parameters_are_scaled_by_magnitudes(kind):
    params = make_params(torch.complex64, runs.SHAPES)
    for geometry in ("row", "entry"):
        assert_same_steps(kind, params, 1e-6, geometry=geometry, weight_decay=0.1, compiled=True)
    options = {"domain": FrobeniusBall(1.0), "eps": 1e-3, "compiled": True}
    assert_same_steps(kind, [FrobeniusBall(1.0).project(params[0])], 1e-6, **options)


def test_without_a_gradient_nothing_moves_even_without_eps():
    x = jnp.ones((3, 2))
    for alias in (ours.row_adagrad, ours.row_momentum):
        optimizer = alias(0.1, eps=0.0)
        grads = jnp.array([[1.0, 2.0], [0.0, 0.0], [-1.0, 0.0]])
        updates, _ = optimizer.update(grads, optimizer.init(x), x)
        assert (updates[1] == 0).all()
        assert (updates[::2, 0] != 0).all()


def test_by_entry_momentum_is_adam_and_adamw():
    params = make_params(torch.float32, runs.SHAPES)
    for mine, theirs in (
        (ours.matrix_momentum(0.01, "entry"), optax.adam(0.01)),
        (
            ours.matrix_momentum(0.01, "entry", weight_decay=0.1, decoupled_weight_decay=True),
            optax.adamw(0.01, weight_decay=0.1),
        ),
        (
            optax.chain(ours.scale_by_matrix_momentum("entry"), optax.scale_by_learning_rate(0.01)),
            optax.adam(0.01),
        ),
    ):
        expected, _ = runs.train_jax(theirs, params, 5)
        x, _ = runs.train_jax(mine, params, 5)
        # optax undoes the start from zero with 1 - 0.999ᵗ in float32, which keeps four digits.
        for a, b in zip(x.values(), expected.values(), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


def test_a_column_of_x_is_a_row_of_its_transpose():
    x, g = (jnp.array(draw(seed, (6, 4), torch.float32).numpy()) for seed in (0, 1))
    for alias, other in (
        (ours.row_adagrad, ours.column_adagrad),
        (ours.row_momentum, ours.column_momentum),
    ):
        rows, _ = alias(0.1).update(g, alias(0.1).init(x), x)
        columns, _ = other(0.1).update(g.T, other(0.1).init(x.T), x.T)
        np.testing.assert_array_equal(rows, columns.T)
        assert np.ptp(np.linalg.norm(rows, axis=1)) < 1e-6  # every row moves by the learning rate


# -------------------------------------------------------------------------------------------------------- projections


@pytest.mark.parametrize("domain", DOMAINS, ids=repr)
def test_a_projection_is_that_of_torch_and_keeps_its_own_bits(domain):
    projected = jax.jit(lambda x, scale: ours.project(domain, x, scale))
    with jax.enable_x64(True):
        for seed in range(3):
            x, scale = 3 * draw(seed), draw_scale("entry", seed, orders=5.0)
            y = projected(jnp.array(x.numpy()), jnp.array(scale.numpy()))
            np.testing.assert_allclose(y, domain.project(x, scale), rtol=1e-9, atol=1e-12)
            assert domain.contains(torch.from_numpy(np.array(y)))
            np.testing.assert_array_equal(projected(y, jnp.array(scale.numpy())), y)


def test_projections_of_a_batch_are_projections_one_by_one():
    x = jnp.array(draw(0, (3, *SHAPE), torch.float32).numpy())
    scale = jnp.array(draw_scale("row", 0).float().numpy())
    for domain in (FrobeniusBall(1.0), RowSimplex(), Balls(1.0, Blocks(columns=2))):
        batch = jax.vmap(lambda x, domain=domain: ours.project(domain, x, scale))(x)
        each = jnp.stack([ours.project(domain, matrix, scale) for matrix in x])
        np.testing.assert_allclose(batch, each, rtol=1e-6, atol=1e-7)


def test_what_is_not_negative_stays_so_exactly():
    """x + (0 - x) is 0, and x + (y - x) is not negative for any y that is not."""
    params = [RowSimplex().project(draw(0, (50, 40), torch.float32))]
    x, _ = runs.train_jax(ours.column_adagrad(5.0, domain=RowSimplex()), params, 3)
    assert x["0"].min() == 0


def test_a_domain_of_somebodys_own_is_refused_by_name():
    class Shells(RowBalls):
        def project(self, x, scale=1.0):
            return x / (scale * x).norm(dim=1, keepdim=True)

    for domain in (Shells(1.0), RowProduct(((2, RowBalls(1.0)), (4, Shells(1.0))))):
        with pytest.raises(TypeError, match="Shells.* has no projection in JAX"):
            ours.row_adagrad(0.1, domain=domain)
    with pytest.raises(TypeError, match="floating-point dtype, got int32"):
        ours.project(Box(0.0, 1.0), jnp.arange(3))
    with pytest.raises(ValueError, match="without rows or columns"):
        ours.project(RowSimplex(), jnp.ones(3))


# ------------------------------------------------------------------------------------------------- from torch, and back


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((kind, {}) for kind in KINDS),
        ("adagrad", {"geometry": Factored()}),
        ("momentum", {"geometry": Factored("minimum"), "betas": (0.0, 0.9)}),
        ("steepest", {"geometry": Column(), "rescale": Row()}),
    ],
    ids=str,
)
def test_a_run_moves_from_torch_to_jax_and_back(kind, options):
    cls, alias = KINDS[kind]
    params = make_params(torch.float32, runs.SHAPES)
    whole, _ = runs.train_torch(cls, params, 6, **options)
    half, optimizer = runs.train_torch(cls, params, 2, **options)
    tree = {str(i): param for i, param in enumerate(half)}
    x, state = runs.to_jax(half), ours.from_torch(optimizer, tree)
    assert int(state.count) == 2
    kept = jax.tree.map(np.array, state)
    transformation = alias(0.1, **options)
    for t in (2, 3):
        updates, state = transformation.update(runs.to_jax(make_grads(params, t)), state, x)
        x = optax.apply_updates(x, updates)
    with torch.no_grad():
        for i, param in enumerate(half):
            param.copy_(torch.from_numpy(np.array(x[str(i)])))
    early = ours.from_torch(optimizer, tree)
    ours.to_torch(state, optimizer, tree)
    for t in (4, 5):
        for param, grad in zip(half, make_grads(half, t), strict=True):
            param.grad = grad
        optimizer.step()
    runs.assert_same(runs.to_jax(half), whole)
    jax.tree.map(np.testing.assert_array_equal, early, kept)  # torch's own memory is not shared


def test_a_state_that_does_not_fit_is_refused_and_changes_nothing():
    (table,) = params = make_params(torch.float32, ((6, 4),))
    optimizer = MatrixAdaGrad(params, 0.1, geometry=Row(), initial_accumulator_value=0.5)
    state = ours.matrix_adagrad(0.1, Column()).init(runs.to_jax(params))
    with pytest.raises(ValueError, match=r"has .* shape \(1, 4\), and this optimizer needs .* shape \(6, 1\)"):
        ours.to_torch(state, optimizer, {"0": table})
    for transformation in (ours.row_momentum(0.1), ours.steepest_descent(0.1), ours.matrix_adagrad(0.1, Factored())):
        with pytest.raises(ValueError, match="the saved state has .*, and MatrixAdaGrad has step, sum; nothing was"):
            ours.to_torch(transformation.init(runs.to_jax(params)), optimizer, {"0": table})
    assert not optimizer.state
    for wrong in ({}, {"0": torch.nn.Parameter(torch.zeros(6, 4))}):
        with pytest.raises(ValueError, match="params must be all of the optimizer's own"):
            ours.to_torch(state, optimizer, wrong)
    with pytest.raises(ValueError, match="params must be all of the optimizer's own"):
        ours.from_torch(optimizer, {"0": torch.nn.Parameter(torch.zeros(6, 4))})
    two = make_params(torch.float32, ((6, 4), (3,)))
    optimizer = MatrixAdaGrad(two, 0.1)
    two[0].grad = torch.ones(6, 4)
    optimizer.step()
    with pytest.raises(ValueError, match="it has 2, and of 1 leaves 1 are among them"):
        ours.from_torch(optimizer, two[:1])
    with pytest.raises(TypeError, match="optimizer must be a MatrixAdaGrad, .* got dict"):
        ours.from_torch(optimizer.state_dict(), two)
    with pytest.raises(ValueError, match=r"have taken \[0, 1\] steps"):
        ours.from_torch(optimizer, two)
