"""JAX: the transformations take the steps of the torch optimizers, and are at home in optax."""

import doctest
import importlib
import itertools
import os
import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch

from matrix_adagrad import Blocks, MatrixAdaGrad, MatrixMomentum
from matrix_adagrad.domains import Balls, Box, FrobeniusBall, RowBalls, RowProduct, RowSimplex
from matrix_adagrad.geometry import Column, Geometry, Row
from tests.domains.table import DOMAINS, SCALES, SHAPE, draw, draw_scale
from tests.optim.table import GEOMETRIES
from tests.optim.training import make_grads, make_params

if "INTEGRATIONS" not in os.environ:
    pytest.skip("it imports JAX: make test-integrations", allow_module_level=True)
jax = pytest.importorskip("jax", reason="JAX is not installed: make test-integrations")
optax = pytest.importorskip("optax", reason="optax is not installed: make test-integrations")
import jax.numpy as jnp
import numpy as np

from matrix_adagrad.interop import optax as ours


@dataclass(frozen=True)
class Diagonals(Geometry):
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
WIDTHS = {"float32": torch.float32, "float64": torch.float64}


@pytest.fixture(params=WIDTHS)
def dtype(request):
    """float64 lives in a context of its own."""
    with jax.enable_x64(request.param == "float64"):
        yield WIDTHS[request.param]


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


# -------------------------------------------------------------------------------------------------- equal to PyTorch


@pytest.mark.parametrize("geometry", [*GEOMETRIES, Diagonals()], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_those_of_the_torch_optimizer(kind, geometry, dtype):
    cls, alias = KINDS[kind]
    extra = [{}, {"initial_accumulator_value": 0.3}] if kind == "adagrad" else [{}, {"bias_correction": False}]
    params = make_params(dtype)
    for reduction, decay, own in itertools.product(("sum", "mean"), DECAYS, extra):
        options = {"geometry": geometry, "reduction": reduction, **decay, **own}
        theirs, optimizer = train_torch(cls, params, 4, **options)
        x, state = train_jax(alias(0.1, **options), params, 4)
        tolerance = 1e-6 if dtype is torch.float32 else 1e-13
        assert_same(x, theirs, tolerance)
        for name in state._fields[1:]:
            assert_same(getattr(state, name), [optimizer.state[p][name] for p in theirs], tolerance)
        assert int(state.count) == 4


@pytest.mark.parametrize("domain", DOMAINS, ids=repr)
@pytest.mark.parametrize("kind", KINDS)
def test_steps_over_a_domain_are_those_of_the_torch_optimizer(kind, domain, dtype):
    cls, alias = KINDS[kind]
    start = [domain.project(draw(0, dtype=dtype))]
    for geometry, reduction in itertools.product((*GEOMETRIES, Diagonals()), ("sum", "mean")):
        decay = DECAYS[len(str(geometry)) % 3]
        options = {"geometry": geometry, "reduction": reduction, "domain": domain, "eps": 1e-3, **decay}
        theirs, _ = train_torch(cls, start, 4, lr=0.5, **options)
        x, _ = train_jax(alias(0.5, **options), start, 4)
        assert_same(x, theirs, 1e-6 if dtype is torch.float32 else 1e-9)
        assert domain.contains(torch.from_numpy(np.array(x["0"])))
