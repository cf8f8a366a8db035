"""The optimizers of this package for JAX, as `optax` gradient transformations.

They take the same steps as the PyTorch optimizers, in any geometry and over any domain in `matrix_adagrad.domains`.
``jax.jit`` traces them completely: there are no callbacks, and control flow depends only on shapes.

Example:
    >>> import jax.numpy as jnp
    >>> import optax
    >>> from matrix_adagrad.interop.optax import row_adagrad
    >>> params = {"table": jnp.zeros((2, 4)), "bias": jnp.zeros(3)}
    >>> optimizer = row_adagrad(learning_rate=1.0)
    >>> state = optimizer.init(params)
    >>> grads = {"table": jnp.array([[2.0, 2.0, 2.0, 2.0], [0.0, 0.0, 0.0, 0.0]]), "bias": jnp.array([1.0, 0.0, -5.0])}
    >>> updates, state = optimizer.update(grads, state, params)
    >>> print(optax.apply_updates(params, updates)["table"])
    [[-0.5 -0.5 -0.5 -0.5]
     [ 0.   0.   0.   0. ]]
    >>> state.sum["table"].shape, state.sum["bias"].shape
    ((2, 1), (3,))
"""

try:
    import jax  # noqa: F401
    import optax  # noqa: F401
except ImportError as error:
    raise ImportError("matrix_adagrad.interop.optax needs JAX and optax: pip install jax optax") from error

from matrix_adagrad.interop.optax.aliases import matrix_adagrad, matrix_momentum, steepest_descent
from matrix_adagrad.interop.optax.convert import from_torch, to_torch
from matrix_adagrad.interop.optax.projections import project
from matrix_adagrad.interop.optax.shorthands import column_adagrad, column_momentum, row_adagrad, row_momentum
from matrix_adagrad.interop.optax.states import MatrixAdaGradState, MatrixMomentumState, SteepestDescentState
from matrix_adagrad.interop.optax.transforms import (
    scale_by_matrix_adagrad,
    scale_by_matrix_momentum,
    scale_by_steepest_descent,
)

__all__ = [
    "MatrixAdaGradState",
    "MatrixMomentumState",
    "SteepestDescentState",
    "column_adagrad",
    "column_momentum",
    "from_torch",
    "matrix_adagrad",
    "matrix_momentum",
    "project",
    "row_adagrad",
    "row_momentum",
    "scale_by_matrix_adagrad",
    "scale_by_matrix_momentum",
    "scale_by_steepest_descent",
    "steepest_descent",
    "to_torch",
]
