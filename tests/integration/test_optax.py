"""JAX: the transformations take the steps of the torch optimizers, and are at home in optax."""

import doctest
import importlib
import itertools
import os
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from matrix_adagrad import Blocks, MatrixAdaGrad, MatrixMomentum
from matrix_adagrad.domains import Balls, Box, FrobeniusBall, RowBalls, RowProduct, RowSimplex
from matrix_adagrad.geometry import Column, Geometry, Row
from tests.domains.table import DOMAINS, SHAPE, draw, draw_scale
from tests.optim.table import GEOMETRIES
from tests.optim.training import make_grads, make_params
from tests.test_docs import ROOT, blocks

if "INTEGRATIONS" not in os.environ:
    pytest.skip("it imports JAX: make test-integrations", allow_module_level=True)
jax = pytest.importorskip("jax", reason="JAX is not installed: make test-integrations")
optax = pytest.importorskip("optax", reason="optax is not installed: make test-integrations")
jnp, ours = jax.numpy, importlib.import_module("matrix_adagrad.interop.optax")


@dataclass(frozen=True)
class Parity(Geometry):
    """A geometry of somebody's own: one scale for all rows of the same parity."""

    def cut(self, shape):
        return (shape[0] // 2, 2, *shape[1:]) if len(shape) > 1 else tuple(shape)

    def dims(self, shape):
        return (0, *range(2, len(shape) + 1)) if len(shape) > 1 else ()

    @property
    def transpose(self):
        raise NotImplementedError


KINDS = {"adagrad": (MatrixAdaGrad, ours.matrix_adagrad), "momentum": (MatrixMomentum, ours.matrix_momentum)}
DECAYS = ({}, {"weight_decay": 0.1}, {"weight_decay": 0.1, "decoupled_weight_decay": True})
SHAPES = ((6, 4), (5,), (4, 2, 3, 3))


def to_jax(tensors):
    """A copy, under names, as of a model; bfloat16 goes through float32, without rounding."""
    return {
        str(i): jnp.array(t.detach().to(torch.float32 if t.dtype is torch.bfloat16 else t.dtype).numpy()).astype(
            str(t.dtype).removeprefix("torch.")
        )
        for i, t in enumerate(tensors)
    }


def train_torch(cls, params, steps, lr=0.1, **options):
    params = [torch.nn.Parameter(p.detach().clone()) for p in params]
    optimizer = cls(params, lr, **options)
    for t in range(steps):
        for param, grad in zip(params, make_grads(params, t), strict=True):
            param.grad = grad
        optimizer.step()
    return params, optimizer


def train_jax(transformation, params, steps, update=None):
    x, update = to_jax(params), update or transformation.update
    state = transformation.init(x)
    for t in range(steps):
        updates, state = update(to_jax(make_grads(params, t)), state, x)
        x = optax.apply_updates(x, updates)
    return x, state


def assert_same(ours, theirs, tolerance=1e-6):
    """Up to the tolerance, relative to the largest entry of each tensor."""
    assert len(ours) == len(theirs)
    for array, tensor in zip(ours.values(), theirs, strict=True):
        expected = to_jax([tensor])["0"]
        assert (array.shape, array.dtype) == (expected.shape, expected.dtype)
        if expected.size:
            gap = np.abs(np.asarray(array - expected, np.complex128)).max()
            assert gap <= tolerance * np.abs(np.asarray(expected, np.complex128)).max()


# --------------------------------------------------------------------------------------------------- equal to PyTorch


def assert_same_steps(kind, params, tolerance, lr=0.1, compiled=False, **options):
    cls, alias = KINDS[kind]
    theirs, optimizer = train_torch(cls, params, 4, lr, **options)
    transformation = alias(lr, **options)
    x, state = train_jax(transformation, params, 4, jax.jit(transformation.update) if compiled else None)
    assert_same(x, theirs, tolerance)
    for name in state._fields[1:]:
        assert_same(getattr(state, name), [optimizer.state[p][name] for p in theirs], tolerance)
    assert int(state.count) == 4
    return x


@pytest.mark.parametrize("geometry", [*GEOMETRIES, Parity()], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_those_of_the_torch_optimizer(kind, geometry):
    extra = [{}, {"initial_accumulator_value": 0.3}] if kind == "adagrad" else [{}, {"bias_correction": False}]
    params = make_params(torch.float32, SHAPES)
    for reduction, decay, own in itertools.product(("sum", "mean"), DECAYS, extra):
        assert_same_steps(kind, params, 1e-6, geometry=geometry, reduction=reduction, **decay, **own)


@pytest.mark.parametrize("domain", DOMAINS, ids=repr)
@pytest.mark.parametrize("kind", KINDS)
def test_steps_over_a_domain_are_those_of_the_torch_optimizer(kind, domain):
    start = [domain.project(draw(0, dtype=torch.float32))]
    others = itertools.cycle(itertools.product(("sum", "mean"), DECAYS))  # all of them come by
    for geometry, (reduction, decay) in zip((*GEOMETRIES, Parity()), others, strict=False):
        options = {"geometry": geometry, "reduction": reduction, "domain": domain, "eps": 1e-3, **decay}
        x = assert_same_steps(kind, start, 1e-6, lr=0.5, **options)
        assert domain.contains(torch.from_numpy(np.array(x["0"])))


@pytest.mark.parametrize("kind", KINDS)
def test_in_float64_steps_agree_to_its_precision(kind):
    with jax.enable_x64(True):
        options = {"geometry": Blocks(columns=2), "weight_decay": 0.1, "compiled": True}
        assert_same_steps(kind, make_params(torch.float64, SHAPES), 1e-14, **options)
        options = {"geometry": "entry", "eps": 1e-3, "domain": FrobeniusBall(1.5), "compiled": True}
        assert_same_steps(kind, [FrobeniusBall(1.5).project(draw(0))], 1e-10, lr=0.5, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_parameters_get_the_same_bits(kind):
    """Statistics are float32, and a parameter is rounded once a step; by entry no sum can be taken in another order."""
    params = make_params(torch.bfloat16, SHAPES)
    assert_same_steps(kind, params, 0.0, geometry="entry")
    assert_same_steps(kind, [Box(-0.5, 0.5).project(p) for p in params], 0.0, geometry="entry", domain=Box(-0.5, 0.5))


@pytest.mark.parametrize("kind", KINDS)
def test_complex_parameters_are_scaled_by_magnitudes(kind):
    params = make_params(torch.complex64, SHAPES)
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
    params = make_params(torch.float32, SHAPES)
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
        expected, _ = train_jax(theirs, params, 5)
        x, _ = train_jax(mine, params, 5)
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
        for kind, seed in itertools.product(("one", "entry"), (0, 1)):
            x, scale = 3 * draw(seed), draw_scale(kind, seed, orders=5.0)
            y = projected(jnp.array(x.numpy()), jnp.array(scale.numpy()))
            np.testing.assert_allclose(y, domain.project(x, scale), rtol=1e-9, atol=1e-12)
            assert domain.contains(torch.from_numpy(np.array(y)))
            np.testing.assert_array_equal(projected(y, jnp.array(scale.numpy())), y)


def test_projections_of_a_batch_are_projections_one_by_one():
    x = jnp.array(draw(0, (3, *SHAPE), torch.float32).numpy())
    scale = jnp.array(draw_scale("row", 0).float().numpy())
    for domain in (FrobeniusBall(1.0), RowSimplex(), Balls(1.0, Blocks(columns=2))):
        batch = jax.vmap(lambda x, domain=domain: ours.project(domain, x, scale))(x)
        each = jnp.stack([ours.project(domain, one, scale) for one in x])
        np.testing.assert_allclose(batch, each, rtol=1e-6, atol=1e-7)


def test_what_is_not_negative_stays_so_exactly():
    """x + (0 - x) is 0, and x + (y - x) is not negative for any y that is not."""
    params = [RowSimplex().project(draw(0, (50, 40), torch.float32))]
    x, _ = train_jax(ours.column_adagrad(5.0, domain=RowSimplex()), params, 3)
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


# ------------------------------------------------------------------------------------------------------ at home in JAX

ALIASES = {
    "adagrad": ours.row_adagrad(0.1, weight_decay=0.01),
    "momentum": ours.row_momentum(optax.cosine_decay_schedule(0.1, 10), decoupled_weight_decay=True, weight_decay=0.1),
    "scaling": optax.chain(ours.scale_by_matrix_adagrad("column"), optax.scale_by_learning_rate(0.1)),
    "domain": ours.matrix_momentum(0.1, "entry", domain=FrobeniusBall(1.0)),
}


def described(tree):
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype, leaf.weak_type), tree)


@pytest.mark.parametrize("name", ALIASES)
def test_a_step_is_traced_once_and_leaves_shapes_and_dtypes_alone(name):
    optimizer, traces = ALIASES[name], []

    @jax.jit
    def step(x, state, grads):
        traces.append(None)
        updates, state = optimizer.update(grads, state, x)
        return optax.apply_updates(x, updates), state

    params = [*make_params(torch.float32, SHAPES), *make_params(torch.bfloat16, ((4, 3), (0, 3), (3, 0)))]
    x = to_jax(params)
    state = optimizer.init(x)
    before = described((x, state))
    for t in range(3):
        x, state = step(x, state, to_jax(make_grads(params, t)))
    assert len(traces) == 1
    assert described((x, state)) == before
    expected, _ = train_jax(optimizer, params, 3)  # not compiled
    for mine, theirs in zip(x.values(), expected.values(), strict=True):
        tolerance = 1e-5 if mine.dtype == jnp.float32 else 1e-2
        np.testing.assert_allclose(*(np.asarray(a, np.float32) for a in (mine, theirs)), tolerance, tolerance)


def test_a_schedule_gets_the_number_of_steps_before():
    x = jnp.zeros((2, 2))
    optimizer = ours.row_momentum(lambda count: 1.0 + count, betas=(0.0, 0.0))
    state, moved = optimizer.init(x), []
    for _ in range(3):
        updates, state = optimizer.update(jnp.ones((2, 2)), state, x)
        moved.append(float(jnp.linalg.norm(updates[0])))
    assert moved == pytest.approx([1.0, 2.0, 3.0])


def test_numbers_can_be_injected_and_changed():
    params = make_params(torch.float32, SHAPES)
    optimizer = optax.inject_hyperparams(ours.row_momentum)(
        learning_rate=0.5, weight_decay=0.1, decoupled_weight_decay=True, domain=Box(-1.0, 1.0)
    )
    x = to_jax(params)
    state = optimizer.init(x)
    assert set(state.hyperparams) == {"learning_rate", "weight_decay", "eps"}
    state.hyperparams["learning_rate"] = jnp.asarray(0.1)
    updates, _ = jax.jit(optimizer.update)(to_jax(make_grads(params, 0)), state, x)
    mine = optax.apply_updates(x, updates)
    options = {"weight_decay": 0.1, "decoupled_weight_decay": True, "domain": Box(-1.0, 1.0)}
    expected, _ = train_jax(ours.row_momentum(0.1, **options), params, 1)
    for a, b in zip(mine.values(), expected.values(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)
    scheduled = optax.inject_hyperparams(ours.row_adagrad)(learning_rate=optax.linear_schedule(1.0, 0.0, 10))
    assert float(scheduled.init(x).hyperparams["learning_rate"]) == 1.0


def test_trees_of_any_kind():
    optimizer = ours.row_adagrad(0.1, domain=FrobeniusBall(10.0))
    params = {"a": [jnp.ones((2, 3)), None], "b": {}, "c": (jnp.ones(2),)}
    state = optimizer.init(params)
    assert jax.tree.structure(state.sum) == jax.tree.structure(params)
    updates, state = optimizer.update(params, state, params)
    assert jax.tree.structure(updates) == jax.tree.structure(optax.apply_updates(params, updates))
    for empty in ({}, (), None):
        updates, state = ours.row_momentum(0.1).update(empty, ours.row_momentum(0.1).init(empty), empty)
        assert jax.tree.leaves((updates, state.exp_avg)) == []


def test_different_transformations_for_different_leaves():
    params = {"table": jnp.ones((4, 3)), "kernel": jnp.ones((3, 2)), "frozen": jnp.ones(2)}
    grads = jax.tree.map(lambda x: jnp.arange(1.0, 1 + x.size).reshape(x.shape), params)
    parts = {
        "row": ours.row_adagrad(0.1, domain=RowBalls(1.0)),
        "column": ours.column_momentum(0.2, weight_decay=0.1),
        "none": optax.set_to_zero(),
    }
    labels = {"table": "row", "kernel": "column", "frozen": "none"}
    for optimizer in (
        optax.multi_transform(parts, labels),
        optax.chain(
            *(
                optax.masked(parts[part], {name: label == part for name, label in labels.items()})
                for part in ("row", "column", "none")
            )
        ),
    ):
        updates, _ = jax.jit(optimizer.update)(grads, optimizer.init(params), params)
        for name, label in labels.items():
            part = parts[label]
            alone, _ = part.update(grads[name], part.init(params[name]), params[name])
            np.testing.assert_allclose(updates[name], alone, rtol=1e-6)


def test_a_population_is_trained_at_once():
    x = jnp.array(draw(0, (3, 6, 4), torch.float32).numpy())
    rates, grads = jnp.array([0.1, 1.0, 10.0]), x[::-1]

    def train(rate, x, g):
        optimizer = ours.row_momentum(rate, domain=FrobeniusBall(2.0))
        state = optimizer.init(x)
        for _ in range(2):
            updates, state = optimizer.update(g, state, x)
            x = optax.apply_updates(x, updates)
        return x

    together = jax.jit(jax.vmap(train))(rates, x, grads)
    each = jnp.stack([train(*one) for one in zip(rates, x, grads, strict=True)])
    np.testing.assert_allclose(together, each, rtol=1e-5, atol=1e-6)


def test_a_scan_over_steps_and_donated_buffers():
    params = make_params(torch.float32, SHAPES)
    optimizer = ours.column_momentum(0.1, domain=Box(-1.0, 1.0))
    grads = jax.tree.map(lambda *each: jnp.stack(each), *(to_jax(make_grads(params, t)) for t in range(4)))

    def step(carry, g):
        x, state = carry
        updates, state = optimizer.update(g, state, x)
        return (optax.apply_updates(x, updates), state), None

    x = to_jax(params)
    expected, _ = train_jax(optimizer, params, 4)
    start = x, optimizer.init(x)
    (x, state), _ = jax.jit(lambda start, grads: jax.lax.scan(step, start, grads), donate_argnums=0)(start, grads)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(start))
    assert int(state.count) == 4
    for a, b in zip(x.values(), expected.values(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_accumulated_gradients_and_rejected_ones():
    x, g = jnp.ones((3, 2)), jnp.arange(6.0).reshape(3, 2)
    optimizer = ours.row_adagrad(0.1, domain=FrobeniusBall(1.0))
    expected, _ = optimizer.update(g, optimizer.init(x), x)
    steps = optax.MultiSteps(optimizer, 2)
    state = steps.init(x)
    nothing, state = steps.update(2 * g, state, x)
    updates, state = steps.update(0 * g, state, x)
    assert (nothing == 0).all()
    np.testing.assert_allclose(updates, expected, rtol=1e-6)
    careful = optax.apply_if_finite(optimizer, 5)
    updates, state = careful.update(g * jnp.nan, careful.init(x), x)
    assert (updates == 0).all()
    np.testing.assert_allclose(careful.update(g, state, x)[0], expected, rtol=1e-6)


SHARDED = """
import jax, jax.numpy as jnp, numpy as np, optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from matrix_adagrad.domains import FrobeniusBall
from matrix_adagrad.interop.optax import matrix_momentum, row_adagrad

assert len(jax.devices()) == 4
mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("rows", "columns"))
table = (np.random.default_rng(0).normal(size=(8, 6)) * np.logspace(-1, 1, 8)[:, None]).astype(np.float32)
for optimizer in (
    row_adagrad(0.1, domain=FrobeniusBall(1.0)),
    matrix_momentum(0.1, "column", weight_decay=0.1),
):
    @jax.jit
    def step(x, state):
        updates, state = optimizer.update(jnp.sin(3 * x), state, x)
        return optax.apply_updates(x, updates), state

    x = jnp.array(table)
    state = optimizer.init(x)
    for _ in range(3):
        x, state = step(x, state)
    for spec in (P(("rows", "columns"), None), P(None, "columns"), P("rows", "columns")):
        y = jax.device_put(table, NamedSharding(mesh, spec))
        others = optimizer.init(y)
        for _ in range(4):
            statistics = others[-1]  # of the start, and then of each step
            here, part = statistics.sharding.shard_shape(statistics.shape), y.sharding.shard_shape(table.shape)
            assert here == tuple(min(pair) for pair in zip(statistics.shape, part)), (here, part, spec)
            if others.count < 3:
                y, others = step(y, others)
        for a, b in zip(jax.tree.leaves((x, state)), jax.tree.leaves((y, others))):
            np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-6)
print("equal")
"""


def test_sharded_arrays_take_the_steps_of_whole_ones_and_statistics_lie_with_their_blocks():
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    run = subprocess.run([sys.executable, "-c", SHARDED], env=environment, capture_output=True, text=True)
    assert run.stdout == "equal\n", run.stderr


# ----------------------------------------------------------------------------------------------------- errors, packages


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"learning_rate": -1.0}, ValueError, "learning_rate must be a finite number, at least 0, got -1.0"),
        ({"learning_rate": "fast"}, TypeError, "learning_rate must be .* got 'fast'"),
        ({"eps": -1e-3}, ValueError, "eps must be .* got -0.001"),
        ({"reduction": "max"}, ValueError, "reduction must be 'sum' or 'mean', got 'max'"),
        ({"geometry": "diagonal"}, ValueError, "geometry must be .* got 'diagonal'"),
        ({"betas": (0.9, 1.0)}, ValueError, "betas must be"),
        ({"domain": 3}, TypeError, "domain must be a Domain"),
        ({"weight_decay": -1}, ValueError, "weight_decay must be"),
        ({"decoupled_weight_decay": 1}, TypeError, "decoupled_weight_decay must be True or False, got 1"),
        ({"epsilon": 1.0}, TypeError, "epsilon"),
    ],
    ids=str,
)
def test_a_wrong_argument_is_named(options, error, words):
    with pytest.raises(error, match=words):
        ours.matrix_momentum(**{"learning_rate": 0.1, **options})


def test_what_does_not_fit_is_named():
    with pytest.raises(ValueError, match=r"parameter \['table'\], of shape \(5, 2\), does not fit .* 5 rows into 3"):
        ours.matrix_adagrad(0.1, Blocks(rows=3)).init({"table": jnp.zeros((5, 2))})
    with pytest.raises(TypeError, match=r"parameter \['step'\] has dtype int32"):
        ours.row_adagrad(0.1).init({"step": jnp.zeros((), int)})
    x = jnp.ones((4, 3))
    with pytest.raises(ValueError, match=r"needs a state of shape \(1, 3\), and got one of shape \(4, 1\)"):
        ours.column_adagrad(0.1).update(x, ours.row_adagrad(0.1).init(x))
    for options in ({"weight_decay": 0.1}, {"domain": RowBalls(1.0)}):
        optimizer = ours.row_adagrad(0.1, **options)
        with pytest.raises(ValueError, match=r"call update\(grads, state, params\)"):
            optimizer.update(x, optimizer.init(x))
    with pytest.raises(TypeError, match="geometry"):
        ours.row_adagrad(0.1, geometry="column")


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_moves_from_torch_to_jax_and_back(kind):
    cls, alias = KINDS[kind]
    params = make_params(torch.float32, SHAPES)
    whole, _ = train_torch(cls, params, 6)
    half, optimizer = train_torch(cls, params, 2)
    tree = {str(i): param for i, param in enumerate(half)}
    x, state = to_jax(half), ours.from_torch(optimizer, tree)
    assert int(state.count) == 2
    kept = jax.tree.map(np.array, state)
    transformation = alias(0.1)
    for t in (2, 3):
        updates, state = transformation.update(to_jax(make_grads(params, t)), state, x)
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
    assert_same(to_jax(half), whole)
    jax.tree.map(np.testing.assert_array_equal, early, kept)  # torch's own memory is not shared


def test_a_state_that_does_not_fit_is_refused_and_changes_nothing():
    (table,) = params = make_params(torch.float32, ((6, 4),))
    optimizer = MatrixAdaGrad(params, 0.1, geometry=Row(), initial_accumulator_value=0.5)
    state = ours.matrix_adagrad(0.1, Column()).init(to_jax(params))
    with pytest.raises(ValueError, match=r"has .* shape \(1, 4\), and this optimizer needs .* shape \(6, 1\)"):
        ours.to_torch(state, optimizer, {"0": table})
    assert not optimizer.state
    for wrong in ({}, {"0": torch.nn.Parameter(torch.zeros(6, 4))}):
        with pytest.raises(ValueError, match="params: they must be the optimizer's own"):
            ours.to_torch(state, optimizer, wrong)
    with pytest.raises(ValueError, match="params: they must be the optimizer's own"):
        ours.from_torch(optimizer, {"0": torch.nn.Parameter(torch.zeros(6, 4))})
    two = make_params(torch.float32, ((6, 4), (3,)))
    optimizer = MatrixAdaGrad(two, 0.1)
    two[0].grad = torch.ones(6, 4)
    optimizer.step()
    with pytest.raises(ValueError, match=r"have taken \[0, 1\] steps"):
        ours.from_torch(optimizer, two)


@pytest.mark.parametrize("name", ["", ".aliases", ".transforms", ".projections", ".convert"])
def test_the_examples_run(name):
    tested = doctest.testmod(importlib.import_module(f"matrix_adagrad.interop.optax{name}"))
    assert (tested.failed, tested.attempted > 0) == (0, True)


def test_without_jax_an_error_says_what_to_install():
    code = "import sys; sys.modules['jax'] = None; import matrix_adagrad; import matrix_adagrad.interop.optax"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stderr.splitlines()[-1].endswith("needs JAX and optax: pip install 'matrix-adagrad[jax]'")


def test_the_example_and_the_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = subprocess.run([sys.executable, "-W", "error", ROOT / "examples/jax_rows.py"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    names = {"__name__": "docs"}
    for number, code in enumerate(blocks(ROOT / "docs/optax.md", "python")):
        exec(compile(code, f"optax.md, block {number}", "exec"), names)
