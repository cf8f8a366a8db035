"""What is known of a group's tensors from its last step.

Small tensors take longer to inspect than to step, so what is known about them is kept, and checked all at once.
"""

from __future__ import annotations

import itertools
import operator
from typing import Any

import torch
from torch import Tensor

from matrix_adagrad.domains import Domain
from matrix_adagrad.geometry import Geometry
from matrix_adagrad.optim.step.config import Config
from matrix_adagrad.optim.step.update import PLAIN, Update

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
        params, grads = [update.param for update in updates], [update.grad for update in updates]
        self._state = _tensors(states)  # kept alive, so that no id is reused
        is_plain = {type(x) for x in (*params, *grads, *self._state)} <= PLAIN
        is_dense = all(g.layout is torch.strided for g in grads)
        self._layout = _layout(params, grads, self._state) if is_plain and is_dense else None

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
        if (
            self._layout is None
            or None in states
            or values[0] is not self._values[0]
            or config.kept != self._kept
            or _layout(params, grads, _tensors(states)) != self._layout
        ):
            return False
        if config is not self.config:
            self._set_config(config, values)
        for update, grad in zip(self.updates, grads, strict=True):
            update.grad = grad
        return True

    def released(self) -> UpdateCache:
        """The same without gradients, which are not the optimizer's to keep; nor are updates that will not be valid."""
        if self._layout is None:
            self.updates, self._state = [], []
        for update in self.updates:
            update.grad = update.scale = _NONE
        return self


def are_immutable(values: tuple[Any, ...], config: Config) -> bool:
    """Whether the values of options cannot change in place. The rate may: it is read at each step."""
    return all(type(x) in _IMMUTABLE or isinstance(x, _FROZEN) for x in values if x is not config.lr)


def _tensors(states: list[dict[str, Any]]) -> list[Any]:
    return list(itertools.chain.from_iterable(map(dict.values, states)))


def _layout(params: list[Tensor], grads: list[Tensor], state: list[Tensor]) -> list[Any] | None:
    """All that a step depends on, except values and the gradients' addresses. None unless all are plain memory."""
    try:
        layout: list[Any] = [(id(x), x.data_ptr(), x.stride(), x.shape, x.dtype, x.is_neg()) for x in params]
        layout += [(type(g), g.stride(), g.shape, g.dtype, g.is_cpu, g.is_neg()) for g in grads]
        layout += [*map(id, state), *map(Tensor.data_ptr, state), *map(Tensor.stride, state)]  # most of all are here
        return layout
    except (RuntimeError, AttributeError, TypeError):  # such as sparse gradients, which have no strides
        return None
