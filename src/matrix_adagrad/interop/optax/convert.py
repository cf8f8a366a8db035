"""Conversion between the state of a torch optimizer and the state of an optax transformation."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from matrix_adagrad.interop.optax.transforms import MatrixAdaGradState, MatrixMomentumState
from matrix_adagrad.optim import MatrixAdaGrad, MatrixMomentum
from matrix_adagrad.optim.state import STEP

__all__ = ["from_torch", "to_torch"]


def from_torch(optimizer: MatrixAdaGrad | MatrixMomentum, params: Any) -> MatrixAdaGradState | MatrixMomentumState:
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
    leaves, _ = _flattened(params, optimizer)
    optimizer.init_state()
    steps = {int(optimizer.state[param][STEP]) for param in leaves}
    if len(steps) > 1:
        raise ValueError(f"optimizer: its parameters have taken {sorted(steps)} steps, and a JAX state has one count")
    count = jnp.asarray(max(steps, default=0), jnp.int32)

    def values(key: str) -> Any:  # copies: torch updates its own in place
        return jax.tree.map(lambda param: jnp.array(optimizer.state[param][key].numpy(force=True)), params)

    if not optimizer.AVERAGE:
        return MatrixAdaGradState(count, values(optimizer.STATISTIC))
    return MatrixMomentumState(count, values(optimizer.AVERAGE), values(optimizer.STATISTIC))


def to_torch(
    state: MatrixAdaGradState | MatrixMomentumState, optimizer: MatrixAdaGrad | MatrixMomentum, params: Any
) -> None:
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
    numbers = {param: i for i, param in enumerate(_parameters(optimizer))}
    groups = {param: group for group in optimizer.param_groups for param in group["params"]}
    columns = [tree.flatten_up_to(values) for values in state[1:]]
    loaded = {
        numbers[param]: {
            STEP: torch.tensor(float(state.count)),
            **{key: torch.from_numpy(np.array(value)) for key, value in zip(state._fields[1:], values, strict=True)},
            **optimizer.shape_to_save(param, groups[param]),
        }
        for param, *values in zip(leaves, *columns, strict=True)
    }
    optimizer.load_state_dict({**optimizer.state_dict(), "state": loaded})


def _parameters(optimizer: Any) -> list[torch.Tensor]:
    if not isinstance(optimizer, MatrixAdaGrad | MatrixMomentum):
        raise TypeError(f"optimizer must be a MatrixAdaGrad or a MatrixMomentum, got {type(optimizer).__name__}")
    return [param for group in optimizer.param_groups for param in group["params"]]


def _flattened(params: Any, optimizer: Any) -> tuple[list[Any], Any]:
    """The leaves of the tree and its structure. Raises an error unless they are the optimizer's parameters."""
    leaves, tree = jax.tree.flatten(params)
    own = _parameters(optimizer)
    if set(leaves) != set(own):
        raise ValueError(
            f"params must be all of the optimizer's own parameters, in a tree: it has {len(own)}, and of {len(leaves)} "
            f"leaves {len(set(leaves) & set(own))} are among them"
        )
    return leaves, tree
