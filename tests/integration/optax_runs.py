"""The same steps in torch and in JAX, and what tells whether they are the same."""

import numpy as np
import torch

from tests.optim.training import make_grads

SHAPES = ((6, 4), (5,), (4, 2, 3, 3))


def to_jax(tensors):
    """A copy, under names, as of a model; bfloat16 goes through float32, without rounding."""
    import jax.numpy as jnp  # this module is imported without JAX, too

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
    import optax

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
