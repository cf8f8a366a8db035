r"""The projections of `matrix_adagrad.domains` for JAX arrays: the same equations, fully traced.

Each is :math:`\operatorname{argmin}_{Y}\ \tfrac12 \langle Y - X,\ S \circ (Y - X) \rangle_F` over the set. The domains'
own modules derive the equations.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import torch

from matrix_adagrad.domains import Balls, Box, Domain, L1Balls, RowProduct, Simplices
from matrix_adagrad.domains.balls import _BISECTION, _NEWTON
from matrix_adagrad.domains.base import _EPS, BlockDomain
from matrix_adagrad.interop.optax.tensors import twin

__all__ = ["check_domain", "project"]


def project(domain: Domain, x: Any, scale: Any = 1.0) -> jax.Array:
    """The point of the domain nearest to ``x`` in the metric ½⟨X, S∘X⟩. If ``x`` is inside, its values are unchanged.

    Args:
        domain: a set from `matrix_adagrad.domains`.
        x: an array with a floating-point dtype. Its shape must fit the domain.
        scale: S, positive and finite; this is not checked. It broadcasts against ``x`` like a geometry's statistic: row
            scales are an m×1 column.

    Example:
        >>> import jax.numpy as jnp
        >>> from matrix_adagrad.domains import FrobeniusBall
        >>> from matrix_adagrad.interop.optax import project
        >>> x, scale = jnp.array([[3.0], [4.0]]), jnp.array([[1.0], [9.0]])
        >>> with jnp.printoptions(precision=3):
        ...     print(project(FrobeniusBall(1.0), x).T)  # the nearest point
        ...     print(project(FrobeniusBall(1.0), x, scale).T)  # where the second row costs nine times as much
        [[0.6 0.8]]
        [[0.106 0.994]]
    """
    check_domain(domain)
    x = jnp.asarray(x)
    if getattr(torch, x.dtype.name, None) not in _EPS:
        raise TypeError(f"an array to be projected must have a floating-point dtype, got {x.dtype}")
    domain.check_fits("an array to be projected", twin(x))
    return _onto(domain, x, scale) if x.size else x


@partial(jax.jit, static_argnames="domain")
def _onto(domain: Domain, x: jax.Array, scale: Any) -> jax.Array:
    return _RULES[type(domain).project](domain, x, scale).reshape(x.shape).astype(x.dtype)


def check_domain(domain: Domain) -> None:
    """Raise an error that names the domain if it has no projection here."""
    if not isinstance(domain, Domain):
        raise TypeError(f"domain must be a Domain, such as RowBalls(1.0), got {domain!r}")
    if type(domain).project not in _RULES:  # a subclass with its own projection has none here either
        raise TypeError(
            f"domain={domain!r} has no projection in JAX: {type(domain).__name__} projects torch tensors in its own "
            "way, and only the domains of matrix_adagrad.domains are known here"
        )
    if isinstance(domain, RowProduct):
        for _, part in domain.parts:
            check_domain(part)


def _viewed(domain: BlockDomain, x: jax.Array, scale: Any) -> tuple[jax.Array, jax.Array]:
    """``x`` as the blocks' geometry views it, in a wide dtype, and the scale, which broadcasts against it."""
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    s = jnp.asarray(scale, jnp.finfo(x.dtype).dtype)
    cut = domain.blocks.cut(x.shape)
    if s.size == 1:
        return x.reshape(cut), s.reshape((1,) * len(cut))
    if len(cut) != x.ndim:
        return x.reshape(cut), jnp.broadcast_to(s, x.shape).reshape(cut)
    return x, s.reshape((1,) * (x.ndim - s.ndim) + s.shape)


# --------------------------------------------------------------------------------------------------------------- boxes


def _onto_box(domain: Box, x: jax.Array, scale: Any) -> jax.Array:  # noqa: ARG001
    return x if domain.low == -math.inf and domain.high == math.inf else jnp.clip(x, domain.low, domain.high)


# --------------------------------------------------------------------------------------------------------------- balls


def _onto_balls(domain: Balls, x: jax.Array, scale: Any) -> jax.Array:
    viewed, s = _viewed(domain, x, scale)
    dims = domain.geometry.dims(x.shape)
    alike = tuple(d for d in dims if s.shape[d] == 1)  # these entries share a factor: only their lengths enter
    lengths = jnp.sqrt(jnp.sum(jnp.square(jnp.abs(viewed)), alike, keepdims=True)) if alike else jnp.abs(viewed)
    rest = tuple(d for d in dims if d not in alike)
    return viewed * _shrinkage(lengths / domain.radius, s, rest, domain._slack(twin(x)))


def _shrinkage(a: jax.Array, s: jax.Array, dims: tuple[int, ...], slack: float) -> jax.Array:
    """The factors s / (s + λ) that bring the lengths ``a``, over ``dims``, into the unit ball."""
    if not dims:
        return 1 / jnp.where(a <= 1 + slack, 1, a)

    def length(v: jax.Array) -> jax.Array:
        return jnp.sqrt(jnp.sum(jnp.square(v), dims, keepdims=True))

    a = jnp.where(length(a) <= 1 + slack, 0, a)  # inside: λ = 0
    s = jnp.maximum(s / s.max(dims, keepdims=True), jnp.finfo(a.dtype).tiny)
    u = s * a

    def newton(at: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The next λ after ``at``, which is below the root, and the square of ‖u / (s + λ)‖ at ``at``."""
        shifted = s + at
        squares = jnp.square(u / shifted)
        square = squares.sum(dims, keepdims=True)
        slope = (squares / shifted).sum(dims, keepdims=True)
        return at + square * (jnp.sqrt(square) - 1) / jnp.where(slope == 0, 1, slope), square

    def bisect(_: int, bounds: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        lower, upper, at = bounds
        after, square = newton(at)
        lower = jnp.maximum(lower, after)
        upper = jnp.where(square < 1, jnp.minimum(upper, at), upper)
        return lower, upper, jnp.where(upper > 16 * lower, jnp.sqrt(lower) * jnp.sqrt(upper), lower)

    upper = length(u)
    lower = jnp.maximum(jnp.maximum((u - s).max(dims, keepdims=True), upper - 1), 0)
    lower = jax.lax.fori_loop(0, _NEWTON, lambda _, at: jnp.maximum(at, newton(at)[0]), lower)
    lower, _, _ = jax.lax.fori_loop(0, _BISECTION, bisect, (lower, upper, lower))
    return jnp.where(lower == 0, 1, s / (s + lower))


# ----------------------------------------------------------------------------------------------- simplices and ℓ₁ balls


def _onto_sums(
    domain: Simplices | L1Balls, x: jax.Array, scale: Any, onto: Callable[[jax.Array, jax.Array, float], jax.Array]
) -> jax.Array:
    """Apply ``onto``, which takes a matrix with one row per block, its scales, and what rounding may add to a sum."""
    viewed, s = _viewed(domain, x, scale)
    dims = domain.blocks.dims(x.shape)
    last = tuple(range(-len(dims), 0))
    moved, scales = (jnp.moveaxis(v, dims, last) for v in (viewed, jnp.broadcast_to(s, viewed.shape)))
    matrix = (-1, math.prod(moved.shape[moved.ndim - len(dims) :]))
    y = onto(moved.reshape(matrix), scales.reshape(matrix), domain._slack(twin(x)))
    return jnp.moveaxis(y.reshape(moved.shape), last, dims)


def _onto_simplices(domain: Simplices, x: jax.Array, scale: Any) -> jax.Array:
    def onto(x: jax.Array, s: jax.Array, slack: float) -> jax.Array:
        excess = jnp.abs(x.sum(1, keepdims=True) - domain.total)
        inside = (x >= 0).all(1, keepdims=True) & (excess <= slack * domain.total)
        return jnp.where(inside, x, _onto_simplex(x, s, domain.total))

    return _onto_sums(domain, x, scale, onto)


def _onto_l1_balls(domain: L1Balls, x: jax.Array, scale: Any) -> jax.Array:
    def onto(x: jax.Array, s: jax.Array, slack: float) -> jax.Array:
        magnitude = jnp.abs(x)
        inside = magnitude.sum(1, keepdims=True) <= domain.radius * (1 + slack)
        return jnp.where(inside, x, jnp.copysign(_onto_simplex(magnitude, s, domain.radius), x))

    return _onto_sums(domain, x, scale, onto)


def _onto_simplex(x: jax.Array, s: jax.Array, total: float) -> jax.Array:
    """The projection of each row of ``x`` onto the simplex with this sum, in the metric of ``s``."""
    # Move by τ/s, with τ in units of the row's smallest scale: these weights are at most 1.
    w = jnp.maximum(s.min(1, keepdims=True) / s, jnp.finfo(x.dtype).tiny)
    ends = x / w  # an entry is positive while τ is below
    in_order = partial(jnp.take_along_axis, indices=jnp.argsort(ends, axis=1, descending=True), axis=1)
    candidates = (jnp.cumsum(in_order(x), 1) - total) / jnp.cumsum(in_order(w), 1)
    positive = (in_order(ends) > candidates).sum(1, keepdims=True)
    threshold = jnp.take_along_axis(candidates, jnp.maximum(positive - 1, 0), 1)
    stays = ends > threshold
    y, w = jnp.where(stays, x - threshold * w, 0), jnp.where(stays, w, 0)
    # From rounding, in running sums of large numbers.
    excess = (y.sum(1, keepdims=True) - total) / w.sum(1, keepdims=True)
    return jnp.maximum(y - excess * w, 0)


# ------------------------------------------------------------------------------------------------------------ products


def _onto_product(domain: RowProduct, x: jax.Array, scale: Any) -> jax.Array:
    s = jnp.asarray(scale)
    rows_share = s.ndim < x.ndim or s.shape[0] == 1
    parts = [(part, rows) for part, rows in domain._slices() if rows.stop > rows.start]
    return jnp.concatenate([_onto(part, x[rows], s if rows_share else s[rows]) for part, rows in parts])


_RULES: dict[Any, Callable[[Any, jax.Array, Any], jax.Array]] = {
    Box.project: _onto_box,
    Balls.project: _onto_balls,
    Simplices.project: _onto_simplices,
    L1Balls.project: _onto_l1_balls,
    RowProduct.project: _onto_product,
}
