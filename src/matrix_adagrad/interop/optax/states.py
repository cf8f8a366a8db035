"""The states of the transformations, with the names of torch's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from matrix_adagrad.interop.optax.update_rule import Kept
from matrix_adagrad.optim import MatrixAdaGrad, MatrixMomentum
from matrix_adagrad.optim.base import MatrixOptimizer

__all__ = ["MatrixAdaGradState", "MatrixMomentumState", "State", "SteepestDescentState", "packed", "unpacked"]


class MatrixAdaGradState(NamedTuple):
    """``count``, the number of steps, and ``sum``, one number per scale in float32 or wider, as in the torch state.

    If a geometry keeps several statistics of a parameter, they are a tuple, in the order of the geometry.
    """

    count: jax.Array
    sum: Any


class MatrixMomentumState(NamedTuple):
    """``count``, the number of steps; ``exp_avg``, of the parameters' shapes; ``exp_avg_sq``, one number per scale.

    Without momentum, β₁ = 0, ``exp_avg`` is None.
    """

    count: jax.Array
    exp_avg: Any
    exp_avg_sq: Any


class SteepestDescentState(NamedTuple):
    """``count``, the number of steps; ``momentum_buffer``, of the parameters' shapes; ``exp_avg_sq``, for ``rescale``.

    Without momentum, or without ``rescale``, they are None.
    """

    count: jax.Array
    momentum_buffer: Any
    exp_avg_sq: Any


State = MatrixAdaGradState | MatrixMomentumState | SteepestDescentState


def packed(family: type[MatrixOptimizer], count: jax.Array, tree: Any, kept: Sequence[Kept]) -> State:
    """The state of all arrays: trees of the parameters' structure, or None for what is not kept."""
    singles = [own.statistics[0] if len(own.statistics) == 1 else own.statistics for own in kept]
    statistics = tree.unflatten(singles) if any(own.statistics for own in kept) else None
    if issubclass(family, MatrixAdaGrad):
        return MatrixAdaGradState(count, statistics)
    averages = [own.average for own in kept]
    kind = MatrixMomentumState if issubclass(family, MatrixMomentum) else SteepestDescentState
    return kind(count, tree.unflatten(averages) if any(x is not None for x in averages) else None, statistics)


def unpacked(state: State, tree: Any) -> list[Kept]:
    """The state of each array."""

    def each(values: Any, nothing: Any) -> list[Any]:
        return [nothing] * tree.num_leaves if values is None else tree.flatten_up_to(values)

    averages, statistics = (None, *state[1:])[-2:]
    return [
        Kept(average, own if isinstance(own, tuple) else (own,))
        for average, own in zip(each(averages, None), each(statistics, ()), strict=True)
    ]
