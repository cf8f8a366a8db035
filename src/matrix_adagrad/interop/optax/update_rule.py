"""The update rule for one array: what `matrix_adagrad.optim.step.reference` does, without writing to anything."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from matrix_adagrad.geometry import Partition

__all__ = ["UpdateRule", "wide_dtype", "widened"]


def wide_dtype(x: Any, statistic: jax.Array) -> Any:
    """The compute dtype for ``x``: the dtype of its statistic, or the corresponding complex dtype."""
    return jnp.promote_types(statistic.dtype, jnp.complex64) if jnp.iscomplexobj(x) else statistic.dtype


def widened(x: Any, statistic: jax.Array) -> jax.Array:
    """``x`` in its compute dtype."""
    return jnp.asarray(x, wide_dtype(x, statistic))


@dataclass(frozen=True)
class UpdateRule:
    """How statistics grow, and what they do to a direction. The equations are the same as in `matrix_adagrad.optim`.

    Numbers may be arrays, including traced ones, as from `optax.inject_hyperparams`.
    """

    geometry: Partition
    reduction: str
    eps: Any
    start: Any = 0.0  # of the statistic
    betas: tuple[float, float] | None = None  # None: sums, not running averages
    bias_correction: bool = False

    def init_statistic(self, path: Any, x: Any) -> jax.Array:
        """V_0 of the parameter at this path in the tree."""
        x, name = jnp.asarray(x), f"parameter {jax.tree_util.keystr(path)}".strip()
        if not jnp.issubdtype(x.dtype, jnp.inexact):
            raise TypeError(f"{name} has dtype {x.dtype}; only floating-point and complex parameters can be trained")
        self.geometry.check_fits(name, x.shape)
        dtype = jnp.finfo(jnp.promote_types(x.dtype, jnp.float32)).dtype
        shape, dims = self.geometry.statistic_shape(x.shape), self.geometry.dims(x.shape)
        if x.size == 0:
            return jnp.full(shape, self.start, dtype)
        # Made from one entry of each block, it lives on the same devices as its block.
        first = x.reshape(self.geometry.cut(x.shape))[tuple(slice(1 if d in dims else None) for d in range(len(shape)))]
        return jnp.full_like(first, self.start, dtype)

    def statistic(self, g: jax.Array, before: jax.Array) -> jax.Array:
        """V_t."""
        shape = self.geometry.statistic_shape(g.shape)
        if before.shape != shape:
            raise ValueError(
                f"a gradient of shape {g.shape} and geometry {self.geometry} needs a state of shape {shape}, "
                f"but got one of shape {before.shape}, made for another"
            )
        viewed = g.reshape(self.geometry.cut(g.shape))
        magnitudes = jnp.abs(viewed) if jnp.iscomplexobj(viewed) else viewed
        squares = jnp.sum(jnp.square(magnitudes), self.geometry.dims(g.shape), keepdims=True)
        if self.reduction == "mean":
            squares = squares / max(1, self.geometry.members(g.shape))
        if self.betas is None:
            return before + squares
        return self.betas[1] * before + (1 - self.betas[1]) * squares

    def average(self, g: jax.Array, before: jax.Array) -> jax.Array:
        """D_t."""
        assert self.betas is not None
        return before + (1 - self.betas[0]) * (g - before)

    def scale(self, statistic: jax.Array, count: jax.Array) -> jax.Array:
        """S, which a step divides by: √V + ε, where V is bias-corrected."""
        corrected = statistic if self.betas is None else statistic / self._correction(self.betas[1], count, statistic)
        zero = corrected == 0  # the root has no derivative here, and some users differentiate through steps
        root = jnp.where(zero, 0, jnp.sqrt(jnp.where(zero, 1, corrected)))
        return root + jnp.asarray(self.eps, root.dtype)

    def step(self, lr: Any, direction: jax.Array, s: jax.Array, count: jax.Array) -> jax.Array:
        """η D / S, with 0/0 = 0. The scale η / S is never infinite: a zero gradient gives a zero step."""
        lr = jnp.asarray(lr, s.dtype)
        if self.betas is not None:
            lr = lr / self._correction(self.betas[0], count, s)
        zero = s == 0
        largest = jnp.finfo(s.dtype).max
        scale = jnp.where(zero, 0, jnp.clip(lr / jnp.where(zero, 1, s), -largest, largest))
        return (scale * direction.reshape(self.geometry.cut(direction.shape))).reshape(direction.shape)

    def metric(self, s: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        """S for `project`: positive, finite, and in a shape that broadcasts against the parameter."""
        # Without eps, a block that never had a gradient has no metric: it takes the smallest one.
        s = jnp.clip(s, jnp.finfo(s.dtype).tiny, jnp.finfo(s.dtype).max)
        cut = self.geometry.cut(shape)
        return s if len(cut) == len(shape) else jnp.broadcast_to(s, cut).reshape(shape)

    def _correction(self, beta: float, count: jax.Array, like: jax.Array) -> Any:
        """1 - βᵗ. In float32, 1 - 0.999 keeps four digits, while expm1 keeps all of them."""
        if not self.bias_correction or beta == 0:
            return 1.0
        return -jnp.expm1(count.astype(like.dtype) * math.log(beta))
