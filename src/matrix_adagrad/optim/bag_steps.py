"""The step of tables in the backward pass, from a batch of bags, without a gradient for each table."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor
from torch.optim import Optimizer

from matrix_adagrad.bags.batch import BagBatch
from matrix_adagrad.optim.state import NUMBERS
from matrix_adagrad.optim.step.cache import are_immutable
from matrix_adagrad.optim.step.config import Config, SteepestConfig
from matrix_adagrad.optim.step.dispatch import NATIVE
from matrix_adagrad.optim.step.native import BagUpdates
from matrix_adagrad.torch_private import step_hooks

__all__ = ["BagSteps", "SingleStep", "subgroup"]

_SHAPE_AND_DTYPE = operator.attrgetter("shape", "dtype")


class SingleStep(Protocol):
    """The step of one parameter in the backward pass."""

    owner: Any  # a MatrixOptimizer
    stepper: Optimizer
    number: int  # of the parameter group
    place: int  # in the group
    index: int  # in the optimizer


class BagSteps:
    """Steps some tables of a parameter group in one native call.

    What is known about the tables is kept from batch to batch and checked with little work, as in `UpdateCache`.

    Args:
        tables: in one parameter group.
        steps: of the tables in the backward pass.
        features: the numbers of those that read the tables.
    """

    def __init__(self, tables: Sequence[Tensor], steps: Sequence[SingleStep], features: Sequence[int]) -> None:
        self._tables = tables
        self._features = features
        self._hooks = [hooks for step in steps for hooks in step_hooks(step.stepper)]
        self._optimizer, self._number = steps[0].owner, steps[0].number
        self._steps = steps
        self._updates: BagUpdates | None = None
        self._config: Config
        self._is_immutable = False
        self._kept: tuple[Any, ...] = ()
        self._values: tuple[Any, ...] = ()
        self._layout: list[Any] = []

    def step(self, batch: BagBatch) -> bool:
        """Step the tables, or return false if there is more to do than the kernels can do at once."""
        if any(self._hooks):  # of a `Probe`, which looks at the gradients
            return False
        group = self._optimizer.param_groups[self._number]
        values = self._optimizer.option_values(group)
        if not (self._values and self._is_immutable and all(map(operator.is_, values, self._values))):
            config = self._optimizer.config_of(group)
            before, values = self._values, self._optimizer.option_values(group)
            kept = config.kept, _is_plain(config)
            if not before or kept != self._kept or values[0] is not before[0] or isinstance(config, SteepestConfig):
                self._updates = None
            self._config, self._kept, self._values = config, kept, values
            self._is_immutable = are_immutable(values, config)
        tables = [group["params"][step.place] for step in self._steps]
        if any(map(operator.is_not, tables, self._tables)):
            raise RuntimeError("the optimizer's groups have changed since step_in_backward: call it again")
        if self._updates is None or self._layout_of(tables, batch) != self._layout:
            self._updates = self._planned(group, tables, batch)
            if self._updates is None:
                return False
            self._layout = self._layout_of(tables, batch)
        if self._config.is_random:
            self._optimizer.assign_streams(self._updates, self._config)
        return self._updates.step(batch, self._config)

    def _planned(self, group: dict[str, Any], tables: Sequence[Tensor], batch: BagBatch) -> BagUpdates | None:
        """The updates, described for the kernels. None if these do not take all of them."""
        config = self._config
        if not _is_plain(config):
            return None
        gradients = batch.gradients(self._features, [table.shape for table in tables])
        for table, gradient in zip(tables, gradients, strict=True):
            table.grad = gradient
        try:
            updates = self._optimizer.updates_of(subgroup(group, self._steps), config)
        finally:
            for table in tables:
                table.grad = None
        is_taken = not any(NATIVE.reason_against(update, config) for update in updates)
        found = BagUpdates(updates) if is_taken else None
        for update in updates:
            del update.grad  # the kernels have their own account of it
        return found

    def _layout_of(self, tables: Sequence[Tensor], batch: BagBatch) -> list[Any]:
        """All that the description depends on, except for the gradients."""
        states = [self._optimizer.state.get(table, {}) for table in tables]
        state = list(itertools.chain.from_iterable(map(dict.values, states)))
        arrays = [*tables, *state]
        return [
            *map(id, arrays),
            *map(Tensor.data_ptr, arrays),
            *map(Tensor.stride, arrays),
            *map(_SHAPE_AND_DTYPE, tables),
            batch.values.dtype,
        ]


def _is_plain(config: Config) -> bool:
    """Whether a step is one call of the kernels, with nothing before or after."""
    is_native = config.fused is not False and not (config.foreach or config.differentiable)
    return is_native and config.domain is None and config.lazy == "touched"


def subgroup(group: dict[str, Any], steps: Sequence[SingleStep]) -> dict[str, Any]:
    """A parameter group with some of the parameters, which keep the numbers that they have in the optimizer."""
    lists = {key: [group[key][step.place] for step in steps] for key in group if key in ("params", "param_names")}
    return {**group, **lists, NUMBERS: [step.index for step in steps]}
