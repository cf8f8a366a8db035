"""What is known of a group's tensors from its last step.

Small tensors take longer to inspect than to step, so what is known about them is kept, and checked all at once.
"""

from __future__ import annotations

import itertools
import operator
from typing import Any

import torch
from torch import Tensor

from matrix_adagrad.bags.gradient import BagGradient
from matrix_adagrad.domains import Domain
from matrix_adagrad.geometry import Geometry
from matrix_adagrad.optim.step.config import Config
from matrix_adagrad.optim.step.dispatch import GroupPlan
from matrix_adagrad.optim.step.update import PLAIN, Update
from matrix_adagrad.torch_private import layout_guard

__all__ = ["UpdateCache", "are_immutable"]

_NONE: Any = None
_IMMUTABLE, _FROZEN = {int, float, bool, str, tuple, torch.dtype, type(None)}, (Geometry, Domain)


class UpdateCache:
    """The updates of a group's last step. They stay valid for the next one if only values have changed since.

    Args:
        updates: of the parameters with a gradient.
        states: of these parameters.
        config: of the group.
        values: of the group's options, the geometry first, which the configuration was made from.
    """

    def __init__(
        self, updates: list[Update], states: list[dict[str, Any]], config: Config, values: tuple[Any, ...]
    ) -> None:
        self.updates, self._kept = updates, config.kept  # as it was: betas may be edited in place
        self._set_config(config, values)
        grads = [update.grad for update in updates]
        self._params, self._state = [update.param for update in updates], _tensors(states)  # alive: no id is reused
        self._bags = _bags(grads)
        tensors = [*self._params, *self._state, *(() if self._bags else grads)]
        is_plain = {type(x) for x in tensors} <= PLAIN and (
            self._bags is not None or all(g.layout is torch.strided for g in grads)
        )
        self._addresses = _addresses([*self._params, *self._state]) if is_plain else None
        if self._addresses is not None:
            self._have_same_layout = layout_guard(tensors)
        self._grads = grads  # of the updates, as long as these have none
        self._plan: GroupPlan | None = None

    def _set_config(self, config: Config, values: tuple[Any, ...]) -> None:
        self.config, self._values = config, values
        self._is_immutable = are_immutable(values, config)

    def has_config_of(self, values: tuple[Any, ...]) -> bool:
        """Whether the configuration was made from these very objects, none of which can have changed in place."""
        return self._is_immutable and all(map(operator.is_, values, self._values))

    def renew(
        self,
        params: list[Tensor],
        grads: list[Tensor],
        states: list[Any],
        config: Config,
        values: tuple[Any, ...],
    ) -> bool:
        """Whether the updates are valid for a step with these tensors. If so, they take over the gradients."""
        if config is not self.config and (values[0] is not self._values[0] or config.kept != self._kept):
            return False
        if self._addresses is None or not _are_same(params, self._params) or not all(states):
            return False
        state, bags = _tensors(states), _bags(grads)
        if (
            bags != self._bags
            or not _are_same(state, self._state)
            or not self._have_same_layout(*params, *state, *(() if bags else grads))
            or _addresses([*params, *state]) != self._addresses
        ):
            return False
        if config is not self.config:
            self._set_config(config, values)
        self._grads = grads
        return True

    def plan(self) -> GroupPlan:
        """The plan of the step: that of the last one, if it is still valid."""
        if self._plan is not None and self._plan.renew(self.config, self._grads):
            return self._plan
        for update, grad in zip(self.updates, self._grads, strict=True):
            update.grad = grad
        plan = GroupPlan(self.updates, self.config)
        self._plan = None if self._addresses is None else plan.repeated(self.updates)
        return plan

    def released(self) -> UpdateCache:
        """The same without gradients, which are not the optimizer's to keep; nor are updates that will not be valid."""
        if self._addresses is None:
            self.updates, self._params, self._state = [], [], []
        self._grads = []
        if self.updates and self.updates[0].grad is not None:
            for update in self.updates:
                update.grad = update.scale = _NONE
        return self


def are_immutable(values: tuple[Any, ...], config: Config) -> bool:
    """Whether the values of options cannot change in place. The rate may: it is read at each step."""
    return all(type(x) in _IMMUTABLE or isinstance(x, _FROZEN) for x in values if x is not config.lr)


def _tensors(states: list[dict[str, Any]]) -> list[Any]:
    return list(itertools.chain.from_iterable(map(dict.values, states)))


def _are_same(some: list[Any], others: list[Any]) -> bool:
    return len(some) == len(others) and all(map(operator.is_, some, others))


def _bags(grads: list[Any]) -> list[Any] | None:
    """If all gradients are parts of one batch of bags: which parts, and what of the batch has to stay the same."""
    if not grads or type(grads[0]) is not BagGradient:
        return None
    parts: list[Any] = [grad.part if type(grad) is BagGradient else None for grad in grads]
    if None in parts or len({id(part.batch) for part in parts}) > 1:
        return None
    return [parts[0].batch.values.dtype, *[part[1:] for part in parts]]


def _addresses(tensors: list[Tensor]) -> list[int] | None:
    try:
        return [*map(Tensor.data_ptr, tensors)]
    except RuntimeError:  # such as those that torch.func transforms
        return None
