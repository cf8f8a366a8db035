"""Conversion between the state of a torch optimizer and the state of an optax transformation."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from matrix_adagrad.interop.optax.states import State, packed, unpacked
from matrix_adagrad.interop.optax.update_rule import Kept
from matrix_adagrad.optim import MatrixAdaGrad, MatrixMomentum, SteepestDescent
from matrix_adagrad.optim.base import MatrixOptimizer
from matrix_adagrad.optim.state import STEP

__all__ = ["from_torch", "to_torch"]


def from_torch(optimizer: MatrixAdaGrad | MatrixMomentum | SteepestDescent, params: Any) -> State:
    """The state with which a transformation with the same options continues a torch optimizer's run.

    Args:
        optimizer: the torch optimizer. All of its parameters must have taken the same number of steps.
        params: all of its parameters, in the same tree structure as the JAX parameters, such as
            ``dict(model.named_parameters())``.

    Example:
        >>> import torch
        >>> from matrix_adagrad import RowAdaGrad
        >>> from matrix_adagrad.interop.optax import from_torch
        >>> table = torch.nn.Embedding(1000, 16)
        >>> optimizer = RowAdaGrad(table.parameters(), lr=0.1)
        >>> table(torch.tensor([3, 5])).square().sum().backward()
        >>> optimizer.step()
        >>> state = from_torch(optimizer, dict(table.named_parameters()))
        >>> int(state.count), state.sum["weight"].shape
        (1, (1000, 1))
    """
    leaves, tree = _flattened(params, optimizer)
    optimizer.init_state()
    steps = {int(optimizer.state[param][STEP]) for param in leaves}
    if len(steps) > 1:
        raise ValueError(f"optimizer: its parameters have taken {sorted(steps)} steps, and a JAX state has one count")
    count = jnp.asarray(max(steps, default=0), jnp.int32)

    groups = _groups(optimizer)

    def kept(param: torch.Tensor) -> Kept:  # copies: torch updates its own in place
        values = {key: jnp.array(value.numpy(force=True)) for key, value in optimizer.state[param].items()}
        return Kept(values.get(optimizer.AVERAGE), tuple(values[key] for key in _keys(optimizer, groups[param], param)))

    return packed(type(optimizer), count, tree, [kept(param) for param in leaves])


def to_torch(state: State, optimizer: MatrixAdaGrad | MatrixMomentum | SteepestDescent, params: Any) -> None:
    """Load the state of a transformation into a torch optimizer, which then continues from there.

    Args:
        state: the state of a transformation. If its shapes differ from the optimizer's, it is refused, and nothing
            changes.
        optimizer: the torch optimizer. Its options stay as they are.
        params: all of its parameters, in the same tree structure as the JAX parameters.

    Example:
        >>> import jax.numpy as jnp
        >>> import torch
        >>> from matrix_adagrad import RowAdaGrad
        >>> from matrix_adagrad.interop.optax import row_adagrad, to_torch
        >>> table = torch.nn.Embedding(1000, 16)
        >>> optimizer = RowAdaGrad(table.parameters(), lr=0.1)
        >>> state = row_adagrad(0.1, initial_accumulator_value=0.5).init({"weight": jnp.zeros((1000, 16))})
        >>> to_torch(state, optimizer, dict(table.named_parameters()))
        >>> optimizer.state[table.weight]["sum"].mean()
        tensor(0.5000)
    """
    leaves, tree = _flattened(params, optimizer)
    groups = _groups(optimizer)
    numbers = {param: i for i, param in enumerate(groups)}
    loaded = {
        numbers[param]: {
            STEP: torch.tensor(float(state.count)),
            **_named(state, kept, _keys(optimizer, groups[param], param)),
            **optimizer.shape_to_save(param, groups[param]),
        }
        for param, kept in zip(leaves, unpacked(state, tree), strict=True)
    }
    optimizer.load_state_dict({**optimizer.state_dict(), "state": loaded})


def _groups(optimizer: Any) -> dict[torch.Tensor, dict[str, Any]]:
    """The group of each parameter."""
    if not isinstance(optimizer, MatrixAdaGrad | MatrixMomentum | SteepestDescent):
        raise TypeError(
            f"optimizer must be a MatrixAdaGrad, a MatrixMomentum or a SteepestDescent, got {type(optimizer).__name__}"
        )
    return {param: group for group in optimizer.param_groups for param in group["params"]}


def _keys(optimizer: MatrixOptimizer, group: dict[str, Any], param: torch.Tensor) -> tuple[str, ...]:
    """The state keys of a parameter's statistics."""
    return optimizer._statistic_keys(optimizer._measured(group, param.shape))


def _named(state: State, kept: Kept, keys: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """What is kept for a parameter, by torch's keys. If it is another family's, they say so, and torch refuses it."""
    average, statistic = state._fields[-2:]
    if len(keys) != len(kept.statistics) or not all(key.startswith(statistic) for key in keys):
        keys = tuple(f"{statistic}_{i}" for i in range(len(kept.statistics)))
    values = {average: kept.average, **dict(zip(keys, kept.statistics, strict=True))}
    return {key: torch.from_numpy(np.array(value)) for key, value in values.items() if value is not None}


def _flattened(params: Any, optimizer: Any) -> tuple[list[Any], Any]:
    """The leaves of the tree and its structure. Raises an error unless they are the optimizer's parameters."""
    leaves, tree = jax.tree.flatten(params)
    own = _groups(optimizer)
    if set(leaves) != own.keys():
        raise ValueError(
            f"params must be all of the optimizer's own parameters, in a tree: it has {len(own)}, and of {len(leaves)} "
            f"leaves {len(set(leaves) & own.keys())} are among them"
        )
    return leaves, tree
