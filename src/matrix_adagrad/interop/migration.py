r"""Migration between this package and others: how sum and mean convert, and what is refused.

Others only support the mean of squares. For blocks of n entries, the mean and the sum take the same steps if

.. math::
    \eta_\text{sum} = \sqrt n\, \eta_\text{mean}, \qquad
    \epsilon_\text{sum} = \sqrt n\, \epsilon_\text{mean}, \qquad
    V_\text{sum} = n\, V_\text{mean},

since :math:`\eta_\text{sum} / (\sqrt{V_\text{sum}} + \epsilon_\text{sum})` is then the same.
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from matrix_adagrad.geometry import Geometry, Partition, as_partition, wide_dtype
from matrix_adagrad.optim import MatrixAdaGrad
from matrix_adagrad.optim.base import MatrixOptimizer
from matrix_adagrad.optim.state import STEP
from matrix_adagrad.optim.step.config import Reduction
from matrix_adagrad.optim.step.update import is_sharded

__all__ = [
    "OPTIONS_THEY_LACK",
    "check_kind",
    "groups_from",
    "groups_to",
    "load_states",
    "mean_statistic",
    "parameters",
    "refuse",
    "regroup",
    "store_states",
]

Group = Mapping[str, Any]

_RATES = ("lr", "initial_lr", "max_lr", "min_lr")  # schedulers keep the other three in groups
_OPTIONS_WE_LACK = {
    "lr_decay": "use a scheduler, LambdaLR(optimizer, lambda t: 1 / (1 + lr_decay * t)), and lr_decay=0",
    "differentiable": "its state belongs to an autograd graph; create a new optimizer",
}
OPTIONS_THEY_LACK = {
    "domain": "it never projects; remove the domain from the group, if the run may leave it",
    "capturable": "set it to False in the group",
    "momentum_dtype": "its averages are as wide as its parameters; set it to None in the group",
    "differentiable": "the state belongs to an autograd graph; create a new optimizer",
}


def regroup(group: Group, reduction: Reduction) -> list[dict[str, Any]]:
    """Groups that take the same steps with this ``reduction``: one for each number of entries that share a scale.

    One learning rate no longer fits matrices of several widths, so a group may become several. Parameter names, and
    whatever schedulers and users keep in a group, go along.

    Args:
        group: a parameter group, with its ``geometry`` and ``reduction``.
        reduction: the reduction to change to.

    Example:
        >>> import torch
        >>> from matrix_adagrad import RowAdaGrad
        >>> from matrix_adagrad.interop.migration import regroup
        >>> wide, narrow = torch.nn.Parameter(torch.zeros(5, 16)), torch.nn.Parameter(torch.zeros(5, 4))
        >>> (group,) = RowAdaGrad([wide, narrow], lr=0.1, reduction="mean").param_groups
        >>> [(new["lr"], new["params"][0].shape[1]) for new in regroup(group, "sum")]
        [(0.4, 16), (0.2, 4)]
    """
    options = copy.deepcopy({key: value for key, value in group.items() if key not in ("params", "param_names")})
    names = group.get("param_names")
    params = list(zip(names, group["params"], strict=True)) if names else list(group["params"])
    if group["reduction"] == reduction:
        return [{**options, "params": params}]
    by_size: dict[int, list[Any]] = {}
    for own, param in zip(params, group["params"], strict=True):
        by_size.setdefault(_members(param, group["geometry"]), []).append(own)
    return [{**_changed(options, n, reduction), "params": own} for n, own in by_size.items()]


def _changed(options: Group, n: int, reduction: Reduction) -> dict[str, Any]:
    up, down = (operator.mul, operator.truediv) if reduction == "sum" else (operator.truediv, operator.mul)
    factors = {key: up(options[key], math.sqrt(n)) for key in (*_RATES, "eps") if key in options}
    if "initial_accumulator_value" in options:
        factors["initial_accumulator_value"] = up(options["initial_accumulator_value"], n)
    if options.get("decoupled_weight_decay"):  # the decay is lr * weight_decay
        factors["weight_decay"] = down(options["weight_decay"], math.sqrt(n))
    return {**options, **factors, "reduction": reduction}


def _members(param: Tensor, geometry: Partition) -> int:
    return max(1, geometry.members(param.shape))


# -------------------------------------------------------------------------------------------------------------- to here


def groups_from(optimizer: Optimizer, geometry: Geometry, reduction: Reduction) -> Iterator[dict[str, Any]]:
    """Convert the groups of another optimizer, which uses the mean, to groups of `MatrixAdaGrad`."""
    for group in optimizer.param_groups:
        refuse(group, _OPTIONS_WE_LACK, "matrix-adagrad")
        own = {key: value for key, value in group.items() if key not in _OPTIONS_WE_LACK}
        yield from regroup({**own, "geometry": geometry, "reduction": "mean"}, reduction)


def load_states(optimizer: MatrixOptimizer, states: Mapping[Tensor, Mapping[str, Any]], peer: str) -> None:
    """Load a copy of the parameters' states in a peer optimizer."""
    saved = optimizer.state_dict()
    saved["state"] = {
        i: {**states[param], **optimizer.shape_to_save(param, group)}
        for i, (_, param, group) in enumerate(parameters(optimizer, peer))
        if states.get(param)
    }
    optimizer.load_state_dict(saved)


# ------------------------------------------------------------------------------------------------------------- to there


def groups_to(peer: str, optimizer: MatrixAdaGrad, options: Collection[str]) -> list[dict[str, Any]]:
    """Convert groups of `MatrixAdaGrad` to groups of a dense AdaGrad with these ``options``, which uses the mean."""
    check_kind("optimizer", optimizer, MatrixAdaGrad)
    foreign = set(optimizer.defaults) - set(options)
    groups = []
    for group in optimizer.param_groups:
        refuse(group, OPTIONS_THEY_LACK, peer)
        as_partition(group["geometry"])  # the others have no statistics of two kinds, nor matrices of them
        if group["weight_decay"] != 0:
            refuse(group, {"decoupled_weight_decay": "set weight_decay=0, and decay by hand before each step"}, peer)
        groups += [{key: own[key] for key in own if key not in foreign} for own in regroup(group, "mean")]
    return groups


def store_states(optimizer: MatrixAdaGrad, theirs: Optimizer) -> None:
    """Copy the state into another optimizer's existing state, which broadcasts against parameters."""
    peer = type(theirs).__name__
    for name, param, group in parameters(optimizer, peer):
        mean, state = mean_statistic(name, param, group, optimizer, peer), theirs.state[param]
        if state["sum"].dtype != mean.dtype:
            raise ValueError(f"{name} is {param.dtype}, in which {peer} keeps sums too, and they stall: widen it")
        state["sum"].copy_(group["geometry"].spread(mean, param.shape))
        state[STEP].fill_(steps(optimizer, param))


def mean_statistic(name: str, param: Tensor, group: Group, optimizer: MatrixOptimizer, peer: str) -> Tensor:
    """The mean of squares over each block so far, in the geometry's `statistic_shape`, even before the first step."""
    geometry, state = group["geometry"], optimizer.state.get(param)
    if state:
        statistic: Tensor = state[optimizer.STATISTIC]
    else:
        start, dtype = group.get("initial_accumulator_value", 0.0), wide_dtype(param.dtype)
        statistic = torch.full(geometry.statistic_shape(param.shape), start, dtype=dtype, device=param.device)
    if group["eps"] == 0 and not statistic.all():
        raise ValueError(
            f"eps=0 cannot be carried over to {peer}: {name} has scales of 0, and 0/0 is NaN there; set a positive eps"
        )
    return statistic / _members(param, geometry) if group["reduction"] == "sum" else statistic


def steps(optimizer: MatrixOptimizer, param: Tensor) -> int:
    """How many steps a parameter has taken."""
    state = optimizer.state.get(param)
    return int(state[STEP]) if state else 0


# -------------------------------------------------------------------------------------------------------------- refusal


def refuse(options: Group, advice: Mapping[str, str], where: str) -> None:
    """Raise an error, with advice, for an option in use that ``where`` does not support."""
    for option, instead in advice.items():
        if options.get(option) not in (None, False):
            raise ValueError(f"{option}={options[option]!r} cannot be carried over to {where}: {instead}")


def check_kind(argument: str, value: object, *kinds: type) -> None:
    """Raise an error for an argument of the wrong type."""
    if not isinstance(value, kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"{argument} must be an instance of {names}, got {type(value).__name__}")


def parameters(optimizer: MatrixOptimizer, peer: str) -> Iterator[tuple[str, Tensor, Group]]:
    """All parameters with their names and groups. Raises an error for one that the peer would treat differently."""
    for group in optimizer.param_groups:
        for name, param in optimizer._named(group):
            if is_sharded(param):
                raise ValueError(f"{name} is sharded: carry over unsharded parameters, in one process")
            if param.is_complex():
                raise ValueError(
                    f"{name} is {param.dtype}, which {peer} squares differently: carry over real parameters"
                )
            yield name, param, group
