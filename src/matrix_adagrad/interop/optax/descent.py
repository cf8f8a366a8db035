"""A rule as a transformation of all arrays in a tree."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from matrix_adagrad.domains import Domain, WholeSpace
from matrix_adagrad.geometry import Geometry, as_geometry
from matrix_adagrad.interop.optax.projections import check_domain, project
from matrix_adagrad.interop.optax.states import State, packed, unpacked
from matrix_adagrad.interop.optax.update_rule import Kept, UpdateRule, widened
from matrix_adagrad.optim.base import MatrixOptimizer
from matrix_adagrad.optim.step.config import check_values

__all__ = ["check", "descent", "make_rule", "scaling"]


def make_rule(family: type[MatrixOptimizer], geometry: Geometry | str, **options: Any) -> UpdateRule:
    """Check these options and make the rule."""
    check(options)
    if options.get("domain") is not None:
        check_domain(options["domain"])
    return UpdateRule(family, {**options, "geometry": as_geometry(geometry)})


def check(options: dict[str, Any]) -> None:
    """Raise an error that names the first invalid option. Arrays are skipped: their values may not be known."""
    check_values({name: value for name, value in options.items() if not isinstance(value, jax.Array)})


def scaling(rule: UpdateRule) -> optax.GradientTransformation:
    """The steps of a rule with the learning rate 1, as something to subtract."""
    descended = descent(rule, 1.0)

    def update(grads: Any, state: State, params: Any = None) -> tuple[Any, State]:
        updates, state = descended.update(grads, state, params)
        return jax.tree.map(jnp.negative, updates), state

    return optax.GradientTransformation(descended.init, update)


def descent(
    rule: UpdateRule, learning_rate: Any, weight_decay: Any = 0.0, decoupled_weight_decay: bool = False
) -> optax.GradientTransformation:
    """A rule as a transformation, with the requested penalty and projection."""
    decays = isinstance(weight_decay, jax.Array) or weight_decay != 0
    domain = rule.options.get("domain")
    domain = None if domain == WholeSpace() else domain

    def init(params: Any) -> State:
        paths, tree = jax.tree_util.tree_flatten_with_path(params)
        return packed(rule.family, jnp.zeros((), jnp.int32), tree, [rule.init(path, x) for path, x in paths])

    def update(grads: Any, state: State, params: Any = None) -> tuple[Any, State]:
        if params is None and (decays or domain is not None):
            raise ValueError("weight_decay and domain need the parameters: call update(grads, state, params)")
        lr = learning_rate(state.count) if callable(learning_rate) else learning_rate
        count = optax.safe_increment(state.count)

        def step(g: Any, x: Any, kept: Kept) -> tuple[jax.Array, Kept]:
            g, x = widened(g, kept), None if x is None else jnp.asarray(x)
            decay = widened(x, kept) * jnp.asarray(weight_decay, jnp.finfo(g.dtype).dtype) if decays else None
            if decay is not None and not decoupled_weight_decay:  # the penalty's gradient is part of G_t
                g = g + decay
            u, kept, metric = rule.step(g, kept, count, lr)
            if decay is not None and decoupled_weight_decay:
                u = u - jnp.asarray(lr, jnp.finfo(g.dtype).dtype) * decay
            return (u if domain is None else _projected(u, x, metric, kept, domain)), kept

        leaves, tree = jax.tree.flatten(grads)
        xs = [None] * len(leaves) if params is None else tree.flatten_up_to(params)
        pairs = [step(*each) for each in zip(leaves, xs, unpacked(state, tree), strict=True)]
        updates = tree.unflatten([u for u, _ in pairs])
        return updates, packed(rule.family, count, tree, [kept for _, kept in pairs])

    return optax.GradientTransformation(init, update)


def _projected(u: jax.Array, x: jax.Array, metric: jax.Array | None, kept: Kept, domain: Domain) -> jax.Array:
    """The update that ends at the projection of x + u onto the domain, in this metric."""
    wide = widened(x, kept)
    # Round before and after the projection, as happens to a low-precision parameter stored in memory.
    moved = (wide + u).astype(x.dtype)
    return widened(project(domain, moved, 1.0 if metric is None else metric), kept) - wide
