"""The optimizers with one scale per row or per column."""

from __future__ import annotations

import optax

from matrix_adagrad.domains import Domain
from matrix_adagrad.geometry import Column, Row
from matrix_adagrad.interop.optax.aliases import LearningRate, matrix_adagrad, matrix_momentum
from matrix_adagrad.optim.step.config import Reduction

__all__ = ["column_adagrad", "column_momentum", "row_adagrad", "row_momentum"]


def row_adagrad(
    learning_rate: LearningRate,
    *,
    reduction: Reduction = "sum",
    eps: float = 1e-10,
    weight_decay: float = 0.0,
    decoupled_weight_decay: bool = False,
    initial_accumulator_value: float = 0.0,
    domain: Domain | None = None,
) -> optax.GradientTransformation:
    """`matrix_adagrad` with one scale per row: the paper's Algorithm 1.

    Takes the same arguments as `matrix_adagrad`, except ``geometry``.

    Example:
        >>> import jax.numpy as jnp
        >>> from matrix_adagrad.interop.optax import row_adagrad
        >>> row_adagrad(0.1).init(jnp.zeros((1000, 16))).sum.shape
        (1000, 1)
    """
    return matrix_adagrad(
        learning_rate,
        Row(),
        reduction=reduction,
        eps=eps,
        weight_decay=weight_decay,
        decoupled_weight_decay=decoupled_weight_decay,
        initial_accumulator_value=initial_accumulator_value,
        domain=domain,
    )


def column_adagrad(
    learning_rate: LearningRate,
    *,
    reduction: Reduction = "sum",
    eps: float = 1e-10,
    weight_decay: float = 0.0,
    decoupled_weight_decay: bool = False,
    initial_accumulator_value: float = 0.0,
    domain: Domain | None = None,
) -> optax.GradientTransformation:
    """`matrix_adagrad` with one scale per column: the paper's Algorithm 2.

    Takes the same arguments as `matrix_adagrad`, except ``geometry``.

    Example:
        >>> import jax.numpy as jnp
        >>> from matrix_adagrad.interop.optax import column_adagrad
        >>> column_adagrad(0.1).init(jnp.zeros((1000, 16))).sum.shape
        (1, 16)
    """
    return matrix_adagrad(
        learning_rate,
        Column(),
        reduction=reduction,
        eps=eps,
        weight_decay=weight_decay,
        decoupled_weight_decay=decoupled_weight_decay,
        initial_accumulator_value=initial_accumulator_value,
        domain=domain,
    )


def row_momentum(
    learning_rate: LearningRate,
    *,
    reduction: Reduction = "sum",
    betas: tuple[float, float] = (0.9, 0.999),
    bias_correction: bool = True,
    nesterov: bool = False,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    decoupled_weight_decay: bool = False,
    domain: Domain | None = None,
) -> optax.GradientTransformation:
    """`matrix_momentum` with one scale per row.

    Takes the same arguments as `matrix_momentum`, except ``geometry``.

    Example:
        >>> import jax.numpy as jnp
        >>> from matrix_adagrad.interop.optax import row_momentum
        >>> row_momentum(0.1).init(jnp.zeros((1000, 16))).exp_avg_sq.shape
        (1000, 1)
    """
    return matrix_momentum(
        learning_rate,
        Row(),
        reduction=reduction,
        betas=betas,
        bias_correction=bias_correction,
        nesterov=nesterov,
        eps=eps,
        weight_decay=weight_decay,
        decoupled_weight_decay=decoupled_weight_decay,
        domain=domain,
    )


def column_momentum(
    learning_rate: LearningRate,
    *,
    reduction: Reduction = "sum",
    betas: tuple[float, float] = (0.9, 0.999),
    bias_correction: bool = True,
    nesterov: bool = False,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    decoupled_weight_decay: bool = False,
    domain: Domain | None = None,
) -> optax.GradientTransformation:
    """`matrix_momentum` with one scale per column.

    Takes the same arguments as `matrix_momentum`, except ``geometry``.

    Example:
        >>> import jax.numpy as jnp
        >>> from matrix_adagrad.interop.optax import column_momentum
        >>> column_momentum(0.1).init(jnp.zeros((1000, 16))).exp_avg_sq.shape
        (1, 16)
    """
    return matrix_momentum(
        learning_rate,
        Column(),
        reduction=reduction,
        betas=betas,
        bias_correction=bias_correction,
        nesterov=nesterov,
        eps=eps,
        weight_decay=weight_decay,
        decoupled_weight_decay=decoupled_weight_decay,
        domain=domain,
    )
