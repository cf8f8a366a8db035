"""The scalings for `optax.chain`: they divide gradients by their scales."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from matrix_adagrad.domains import Domain, WholeSpace
from matrix_adagrad.geometry import Geometry, as_partition
from matrix_adagrad.interop.optax.projections import project
from matrix_adagrad.interop.optax.update_rule import UpdateRule, wide_dtype, widened
from matrix_adagrad.optim.step.config import Reduction, check_values

__all__ = [
    "MatrixAdaGradState",
    "MatrixMomentumState",
    "check",
    "descent",
    "make_rule",
    "scale_by_matrix_adagrad",
    "scale_by_matrix_momentum",
]


class MatrixAdaGradState(NamedTuple):
    """``count``, the number of steps, and ``sum``, one number per scale in float32 or wider, as in the torch state."""

    count: jax.Array
    sum: Any


class MatrixMomentumState(NamedTuple):
    """``count``, the number of steps; ``exp_avg``, of the parameters' shapes; ``exp_avg_sq``, one number per scale."""

    count: jax.Array
    exp_avg: Any
    exp_avg_sq: Any


State = MatrixAdaGradState | MatrixMomentumState


def scale_by_matrix_adagrad(
    geometry: Geometry | str = "row",
    *,
    reduction: Reduction = "sum",
    eps: float = 1e-10,
    initial_accumulator_value: float = 0.0,
) -> optax.GradientTransformation:
    r"""Divide gradients by one scale per block of a geometry: the root of the sum of all squares so far.

    .. math::
        U_{t,b} = G_{t,b} / s_{t,b}, \qquad s_{t,b} = \sqrt{\textstyle\sum_{k \le t} \|G_{k,b}\|_2^2} + \epsilon

    and 0 where both the root and ε are 0.

    Args:
        geometry: which entries share one scale: ``"row"``, ``"column"``, ``"entry"``, ``"whole"``, or a `Geometry`.
        reduction: the ``"sum"`` of the squares over a block, or their ``"mean"``.
        eps: the stabilizer, added to the root.
        initial_accumulator_value: the initial value of ``state.sum``.

    Returns:
        A gradient transformation whose state is a `MatrixAdaGradState`.

    Example:
        >>> import jax.numpy as jnp
        >>> import optax
        >>> from matrix_adagrad.interop.optax import scale_by_matrix_adagrad
        >>> optimizer = optax.chain(
        ...     optax.clip_by_global_norm(5.0), scale_by_matrix_adagrad("column"), optax.scale_by_learning_rate(1.0)
        ... )
        >>> state = optimizer.init(jnp.zeros((4, 2)))
        >>> updates, state = optimizer.update(jnp.array([[2.0, 1.0], [2.0, 0.0], [2.0, 0.0], [2.0, 0.0]]), state)
        >>> print(updates.T)
        [[-0.5 -0.5 -0.5 -0.5]
         [-1.  -0.  -0.  -0. ]]
    """
    rule = make_rule(geometry, reduction=reduction, eps=eps, initial_accumulator_value=initial_accumulator_value)
    return descent(rule, learning_rate=-1.0)


def scale_by_matrix_momentum(
    geometry: Geometry | str = "row",
    *,
    reduction: Reduction = "sum",
    betas: tuple[float, float] = (0.9, 0.999),
    bias_correction: bool = True,
    eps: float = 1e-8,
) -> optax.GradientTransformation:
    r"""Divide the running average of gradients by one scale per block: the root of the running average of squares.

    .. math::
        D_t &= \beta_1 D_{t-1} + (1 - \beta_1)\, G_t, \qquad
        V_{t,b} = \beta_2 V_{t-1,b} + (1 - \beta_2)\, \|G_{t,b}\|_2^2 \\
        U_{t,b} &= \hat D_{t,b} / (\sqrt{\hat V_{t,b}} + \epsilon)

    with :math:`\hat D_t = D_t / (1 - \beta_1^t)` and :math:`\hat V_t = V_t / (1 - \beta_2^t)` if ``bias_correction``.
    In the entry geometry this is `optax.scale_by_adam`.

    Args:
        geometry: as in `scale_by_matrix_adagrad`.
        reduction: as in `scale_by_matrix_adagrad`.
        betas: the decay rates β₁ and β₂ of the running averages of the gradient and of its square.
        bias_correction: correct for the averages starting at zero.
        eps: the stabilizer, added to the root.

    Returns:
        A gradient transformation whose state is a `MatrixMomentumState`.

    Example:
        >>> import jax.numpy as jnp
        >>> from matrix_adagrad.interop.optax import scale_by_matrix_momentum
        >>> scaling = scale_by_matrix_momentum("row")
        >>> state = scaling.init(jnp.zeros((4, 16)))
        >>> state.exp_avg.shape, state.exp_avg_sq.shape
        ((4, 16), (4, 1))
    """
    rule = make_rule(geometry, reduction=reduction, eps=eps, betas=betas, bias_correction=bias_correction)
    return descent(rule, learning_rate=-1.0)


def make_rule(geometry: Geometry | str, *, initial_accumulator_value: Any = 0.0, **options: Any) -> UpdateRule:
    """Check these options and make the rule."""
    check({**options, "initial_accumulator_value": initial_accumulator_value})
    return UpdateRule(as_partition(geometry), start=initial_accumulator_value, **options)


def check(options: dict[str, Any]) -> None:
    """Raise an error that names the first invalid option. Arrays are skipped: their values may not be known."""
    check_values({name: value for name, value in options.items() if not isinstance(value, jax.Array)})


def descent(
    rule: UpdateRule,
    learning_rate: Any,
    weight_decay: Any = 0.0,
    decoupled_weight_decay: bool = False,
    domain: Domain | None = None,
) -> optax.GradientTransformation:
    """A rule as a transformation: -η D / S, with the requested penalty and projection."""
    decays = isinstance(weight_decay, jax.Array) or weight_decay != 0
    domain = None if domain == WholeSpace() else domain

    def init(params: Any) -> State:
        count = jnp.zeros((), jnp.int32)
        statistics = jax.tree_util.tree_map_with_path(rule.init_statistic, params)
        if rule.betas is None:
            return MatrixAdaGradState(count, statistics)
        averages = jax.tree.map(lambda x, v: jnp.zeros_like(x, wide_dtype(x, v)), params, statistics)
        return MatrixMomentumState(count, averages, statistics)

    def update(grads: Any, state: State, params: Any = None) -> tuple[Any, State]:
        if params is None and (decays or domain is not None):
            raise ValueError("weight_decay and domain need the parameters: call update(grads, state, params)")
        count, before = optax.safe_increment(state.count), state[-1]
        lr = learning_rate(state.count) if callable(learning_rate) else learning_rate

        g = jax.tree.map(widened, grads, before)
        if decays and not decoupled_weight_decay:  # the penalty's gradient is part of G_t
            g = jax.tree.map(lambda g, x, v: g + jnp.asarray(weight_decay, v.dtype) * widened(x, v), g, params, before)
        statistics = jax.tree.map(rule.statistic, g, before)
        directions = g if rule.betas is None else jax.tree.map(rule.average, g, state[1])

        scales = jax.tree.map(lambda v: rule.scale(v, count), statistics)
        updates = jax.tree.map(lambda d, s: -rule.step(lr, d, s, count), directions, scales)
        if decays and decoupled_weight_decay:
            updates = jax.tree.map(
                lambda u, x, s: u - jnp.asarray(lr * weight_decay, s.dtype) * widened(x, s), updates, params, scales
            )
        if domain is not None:
            updates = jax.tree.map(lambda u, x, s: _projected(u, x, s, rule, domain), updates, params, scales)
        after = (count, statistics) if rule.betas is None else (count, directions, statistics)
        return updates, type(state)(*after)

    return optax.GradientTransformation(init, update)


def _projected(u: jax.Array, x: Any, s: jax.Array, rule: UpdateRule, domain: Domain) -> jax.Array:
    """The update that ends at the projection of x + u onto the domain, in the metric S."""
    wide = widened(x, s)
    # Round before and after the projection, as happens to a low-precision parameter stored in memory.
    moved = (wide + u).astype(jnp.asarray(x).dtype)
    return widened(project(domain, moved, rule.metric(s, moved.shape)), s) - wide
