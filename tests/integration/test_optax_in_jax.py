"""JAX: the transformations are at home in it, and in optax."""

import doctest
import importlib
import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from matrix_adagrad import Blocks, Factored, Full, Row, Spectral
from matrix_adagrad.domains import Box, FrobeniusBall, RowBalls
from tests.domains.table import draw
from tests.integration import optax_runs as runs
from tests.optim.training import make_grads, make_params

if "INTEGRATIONS" not in os.environ:
    pytest.skip("it imports JAX: make test-integrations", allow_module_level=True)
jax = pytest.importorskip("jax", reason="JAX is not installed: make test-integrations")
optax = pytest.importorskip("optax", reason="optax is not installed: make test-integrations")
jnp, ours = jax.numpy, importlib.import_module("matrix_adagrad.interop.optax")

ALIASES = {
    "adagrad": ours.row_adagrad(0.1, weight_decay=0.01),
    "momentum": ours.row_momentum(optax.cosine_decay_schedule(0.1, 10), decoupled_weight_decay=True, weight_decay=0.1),
    "scaling": optax.chain(ours.scale_by_matrix_adagrad("column"), optax.scale_by_learning_rate(0.1)),
    "domain": ours.matrix_momentum(0.1, "entry", domain=FrobeniusBall(1.0)),
    "factored": ours.matrix_momentum(0.1, Factored(), betas=(0.0, 0.9), domain=FrobeniusBall(1.0)),
    "full": ours.matrix_adagrad(0.1, Full("row", every=2)),
    "muon": ours.steepest_descent(0.1, Spectral(), nesterov=True, rescale=Row(), weight_decay=0.1),
    "direction": optax.chain(ours.scale_by_steepest_descent(floor=0.1), optax.scale_by_learning_rate(0.1)),
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

    params = [*make_params(torch.float32, ((6, 4), (5,), ())), *make_params(torch.bfloat16, ((4, 3), (0, 3), (3, 0)))]
    x = runs.to_jax(params)
    state = optimizer.init(x)
    before = described((x, state))
    for t in range(3):
        x, state = step(x, state, runs.to_jax(make_grads(params, t)))
    assert len(traces) == 1
    assert described((x, state)) == before


def test_a_schedule_gets_the_number_of_steps_before():
    x = jnp.zeros((2, 2))
    optimizer = ours.row_momentum(lambda count: 1.0 + count, betas=(0.0, 0.0))
    state, moved = optimizer.init(x), []
    for _ in range(3):
        updates, state = optimizer.update(jnp.ones((2, 2)), state, x)
        moved.append(float(jnp.linalg.norm(updates[0])))
    assert moved == pytest.approx([1.0, 2.0, 3.0])


def test_numbers_can_be_injected_and_changed():
    params = make_params(torch.float32, runs.SHAPES)
    optimizer = optax.inject_hyperparams(ours.row_momentum)(
        learning_rate=0.5, weight_decay=0.1, decoupled_weight_decay=True, domain=Box(-1.0, 1.0)
    )
    x = runs.to_jax(params)
    state = optimizer.init(x)
    assert set(state.hyperparams) == {"learning_rate", "weight_decay", "eps"}
    state.hyperparams["learning_rate"] = jnp.asarray(0.1)
    updates, _ = jax.jit(optimizer.update)(runs.to_jax(make_grads(params, 0)), state, x)
    mine = optax.apply_updates(x, updates)
    options = {"weight_decay": 0.1, "decoupled_weight_decay": True, "domain": Box(-1.0, 1.0)}
    expected, _ = runs.train_jax(ours.row_momentum(0.1, **options), params, 1)
    for a, b in zip(mine.values(), expected.values(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)
    scheduled = optax.inject_hyperparams(ours.row_adagrad)(learning_rate=optax.linear_schedule(1.0, 0.0, 10))
    assert float(scheduled.init(x).hyperparams["learning_rate"]) == 1.0


@pytest.mark.parametrize("options", [{"floor": 0.1, "rescale": Row()}, {"geometry": Spectral()}], ids=str)
def test_numbers_of_steepest_descent_can_be_injected(options):
    params = make_params(torch.float32, ((6, 4), (5,)))
    optimizer = optax.inject_hyperparams(ours.steepest_descent)(learning_rate=0.1, momentum=0.5, **options)
    numbers = set(optimizer.init(runs.to_jax(params)).hyperparams)
    assert numbers == {"learning_rate", "momentum", "floor", "rescale_beta", "weight_decay"}
    mine, _ = runs.train_jax(optimizer, params, 2, jax.jit(optimizer.update))
    expected, _ = runs.train_jax(ours.steepest_descent(0.1, momentum=0.5, **options), params, 2)
    for a, b in zip(mine.values(), expected.values(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


def test_a_scaling_is_what_the_optimizer_subtracts():
    x, g = (jnp.array(draw(seed, (6, 4), torch.float32).numpy()) for seed in (0, 1))
    for optimizer, scaling in (
        (ours.matrix_adagrad(1.0, Factored()), ours.scale_by_matrix_adagrad(Factored())),
        (ours.matrix_momentum(1.0, nesterov=True), ours.scale_by_matrix_momentum(nesterov=True)),
        (ours.steepest_descent(1.0, Spectral()), ours.scale_by_steepest_descent(Spectral())),
    ):
        updates, _ = optimizer.update(g, optimizer.init(x), x)
        scaled, _ = scaling.update(g, scaling.init(x))
        np.testing.assert_array_equal(updates, -scaled)


def test_roots_are_decomposed_only_in_the_steps_that_are_due():
    x = jnp.array(draw(0, (6, 4), torch.float32).numpy())
    optimizer, vectors = ours.matrix_adagrad(0.1, Full("smaller", every=3)), []
    state = optimizer.init(x)
    for t in range(5):
        _, state = jax.jit(optimizer.update)(jnp.roll(x, t), state, x)
        vectors.append(state.sum[2])
    same = [bool((a == b).all()) for a, b in itertools.pairwise(vectors)]
    assert same == [True, True, False, True]
    traced = jax.make_jaxpr(optimizer.update)(x, state, x)
    assert str(traced).count("= eigh[") == 1
    always = set(outside_of_branches(traced.jaxpr))
    assert "cond" in always
    assert "eigh" not in always


def outside_of_branches(jaxpr):
    """The names of all operations that every call runs."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        if equation.primitive.name != "cond":
            for inner in equation.params.values():
                if hasattr(inner, "jaxpr"):
                    yield from outside_of_branches(inner.jaxpr)


def test_what_is_not_kept_is_none():
    x = jnp.zeros((6, 4))
    assert ours.matrix_momentum(0.1, Factored(), betas=(0.0, 0.9)).init(x).exp_avg is None
    assert [v.shape for v in ours.matrix_adagrad(0.1, Factored()).init(x).sum] == [(6, 1), (1, 4), (1, 1)]
    _, momentum_buffer, exp_avg_sq = ours.steepest_descent(0.1, Spectral(), momentum=0.0).init(x)
    assert (momentum_buffer, exp_avg_sq) == (None, None)
    with pytest.raises(ValueError, match="need an average of gradients"):
        ours.row_momentum(0.1).update(x, ours.row_momentum(0.1, betas=(0.0, 0.9)).init(x))


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
    each = jnp.stack([train(*member) for member in zip(rates, x, grads, strict=True)])
    np.testing.assert_allclose(together, each, rtol=1e-5, atol=1e-6)


def test_a_scan_over_steps_and_donated_buffers():
    params = make_params(torch.float32, runs.SHAPES)
    optimizer = ours.column_momentum(0.1, domain=Box(-1.0, 1.0))
    grads = jax.tree.map(lambda *each: jnp.stack(each), *(runs.to_jax(make_grads(params, t)) for t in range(4)))

    def step(carry, g):
        x, state = carry
        updates, state = optimizer.update(g, state, x)
        return (optax.apply_updates(x, updates), state), None

    x = runs.to_jax(params)
    expected, _ = runs.train_jax(optimizer, params, 4)
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
from matrix_adagrad import Factored
from matrix_adagrad.domains import FrobeniusBall
from matrix_adagrad.interop.optax import matrix_momentum, row_adagrad

assert len(jax.devices()) == 4
mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("rows", "columns"))
table = (np.random.default_rng(0).normal(size=(8, 6)) * np.logspace(-1, 1, 8)[:, None]).astype(np.float32)
for optimizer in (
    row_adagrad(0.1, domain=FrobeniusBall(1.0)),
    matrix_momentum(0.1, "column", weight_decay=0.1),
    matrix_momentum(0.1, Factored(), betas=(0.0, 0.9)),
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
            for statistic in jax.tree.leaves(others[-1]):  # of the start, and then of each step
                here, part = statistic.sharding.shard_shape(statistic.shape), y.sharding.shard_shape(table.shape)
                assert here == tuple(min(pair) for pair in zip(statistic.shape, part)), (here, part, spec)
            if others.count < 3:
                y, others = step(y, others)
        for a, b in zip(jax.tree.leaves((x, state)), jax.tree.leaves((y, others))):
            np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-6)
print("equal")
"""


def test_sharded_arrays_take_the_steps_of_whole_ones_and_statistics_lie_with_their_blocks():
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    run = subprocess.run([sys.executable, "-c", SHARDED], env=environment, capture_output=True, encoding="utf-8")
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
    with pytest.raises(ValueError, match=r"needs a state of shape \(1, 3\), but got one of shape \(4, 1\)"):
        ours.column_adagrad(0.1).update(x, ours.row_adagrad(0.1).init(x))
    for options in ({"weight_decay": 0.1}, {"domain": RowBalls(1.0)}):
        optimizer = ours.row_adagrad(0.1, **options)
        with pytest.raises(ValueError, match=r"call update\(grads, state, params\)"):
            optimizer.update(x, optimizer.init(x))
    with pytest.raises(TypeError, match=r"row_adagrad\(\) got an unexpected keyword argument 'geometry'"):
        ours.row_adagrad(0.1, geometry="column")
    with pytest.raises(TypeError, match=r"column_momentum\(\) got an unexpected keyword argument 'lr'"):
        ours.column_momentum(lr=0.1)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"momentum": 1.0}, ValueError, "momentum must be a number, at least 0 and less than 1, got 1.0"),
        ({"floor": -1.0}, ValueError, "floor must be a finite number, at least 0, got -1.0"),
        ({"scale": "max"}, ValueError, "scale must be 'rms' or None, got 'max'"),
        ({"rescale": "row"}, TypeError, r"rescale must be a partition, such as Row\(\), or None, got 'row'"),
        ({"domain": Box(0.0, 1.0)}, TypeError, "domain"),
    ],
    ids=str,
)
def test_a_wrong_argument_of_steepest_descent_is_named(options, error, words):
    with pytest.raises(error, match=words):
        ours.steepest_descent(0.1, **options)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ours.matrix_adagrad(0.1, Spectral()), r"Spectral\(\) has no scale .* use it in SteepestDescent"),
        (lambda: ours.steepest_descent(0.1, Factored()), "has no direction of steepest descent"),
        (lambda: ours.steepest_descent(0.1, Spectral(), floor=0.1), "leave floor=0, got 0.1"),
        (lambda: ours.matrix_adagrad(0.1, Full(), domain=RowBalls(1.0)), "metric is not diagonal: leave domain=None"),
        (lambda: ours.matrix_adagrad(0.1, Full(), initial_accumulator_value=1.0), "leave initial_accumulator_value=0"),
    ],
)
def test_a_pair_that_makes_no_sense_is_refused_with_the_reason(make, words):
    with pytest.raises(ValueError, match=rf"parameter \['table'\].*{words}"):
        make().init({"table": jnp.zeros((4, 3))})


def test_an_operator_without_a_counterpart_is_named():
    from matrix_adagrad.interop.optax.tensors import JaxTensor

    x = JaxTensor(jnp.ones((2, 2)))
    with pytest.raises(NotImplementedError, match=r"torch's operator aten.median.* has no counterpart in JAX"):
        x.median()
    with pytest.raises(NotImplementedError, match=r"aten.mul_.Tensor has no counterpart"):
        x[0].mul_(2)  # a view, whose array is its own


@pytest.mark.parametrize("name", ["", ".aliases", ".transforms", ".tensors", ".projections", ".convert"])
def test_the_examples_run(name):
    tested = doctest.testmod(importlib.import_module(f"matrix_adagrad.interop.optax{name}"))
    assert (tested.failed, tested.attempted > 0) == (0, True)


def test_without_jax_an_error_says_what_to_install():
    code = "import sys; sys.modules['jax'] = None; import matrix_adagrad; import matrix_adagrad.interop.optax"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8")
    assert run.stderr.splitlines()[-1].endswith("needs JAX and optax: pip install jax optax")
