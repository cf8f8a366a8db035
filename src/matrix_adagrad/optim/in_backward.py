"""Steps during the backward pass, so that the gradients of a model never exist all at once."""

from __future__ import annotations

import inspect
import weakref
from collections import defaultdict
from collections.abc import Iterator, Sequence

from torch import Tensor
from torch.optim import Optimizer

from matrix_adagrad.bags.batch import BagBatch
from matrix_adagrad.optim.bag_steps import BagSteps, subgroup
from matrix_adagrad.optim.base import MatrixOptimizer
from matrix_adagrad.optim.combined import CombinedOptimizer, needed_by_step, without_hooks
from matrix_adagrad.torch_private import backward_pass, gradient_hooks

__all__ = ["InBackward", "step_in_backward"]


class InBackward:
    """A handle for the hooks that `step_in_backward` installs. As a context manager, it removes them on exit.

    Attributes:
        optimizers: one per parameter, sharing the state and options of the user's optimizer. These take the steps, and
            a `matrix_adagrad.advisor.Probe` looks at these.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        owners = optimizer.optimizers if isinstance(optimizer, CombinedOptimizer) else (optimizer,)
        for owner in owners:
            _check(owner)
        steps = {
            param: _Step(owner, number, place, i)
            for owner in owners
            for i, (number, place, param) in enumerate(_places(owner))
            if param.requires_grad
        }
        self.optimizers = [step.stepper for step in steps.values()]
        self._hooks = [_Hook(param, step, self) for param, step in steps.items()]
        self._steps = steps
        self._bag_steps: dict[tuple[int, ...], list[tuple[BagSteps, list[int]]]] = {}
        self._stepped: tuple[int, set[int]] = -1, set()  # the last backward pass with bags, and the ids of its tables
        for owner in owners:  # whoever keeps the optimizer keeps the steps
            vars(owner)["_in_backward"] = self

    def remove(self) -> None:
        """Undo `step_in_backward`: gradients are kept again, and ``optimizer.step()`` uses them."""
        for hook in self._hooks:
            hook.handle.remove()
        for step in self._steps.values():
            if vars(step.owner).get("_in_backward") is self:
                del vars(step.owner)["_in_backward"]
        self._hooks.clear()

    # ------------------------------------------------------------------------------- tables that are read by bags alone

    def step_bags(self, tables: Sequence[Tensor], features: Sequence[int], batch: BagBatch) -> set[int]:
        """Step tables in one native call for each parameter group. Returns the numbers of their features.

        Args:
            tables: without a gradient yet.
            features: the number of the only one that reads each table.
            batch: the gradients of the features' sums.
        """
        ids = list(map(id, tables))
        before, number = self._stepped, backward_pass()
        if before[0] == number:
            for table in filter(self.was_stepped, tables):
                raise _in_parts(table)
        key = (*ids, *features)
        if key not in self._bag_steps:
            self._bag_steps[key] = self._steps_of(tables, features)
        done: set[int] = set()
        if len(self._bag_steps[key]) > 1:
            batch.check()  # before any of them moves
        for steps, numbers in self._bag_steps[key]:
            done.update(numbers if steps.step(batch) else ())
        stepped = {own for own, number in zip(ids, features, strict=True) if number in done}
        self._stepped = number, stepped | before[1] if before[0] == number else stepped
        return done

    def _steps_of(self, tables: Sequence[Tensor], features: Sequence[int]) -> list[tuple[BagSteps, list[int]]]:
        groups: defaultdict[tuple[int, int], list[tuple[Tensor, _Step, int]]] = defaultdict(list)
        for table, feature in zip(tables, features, strict=True):
            step = self._steps[table]
            if inspect.unwrap(type(step.owner).step) is inspect.unwrap(MatrixOptimizer.step):  # torch wraps it
                groups[id(step.owner), step.number].append((table, step, feature))
        steps = []
        for members in groups.values():
            own, taken, read_by = zip(*members, strict=True)
            steps.append((BagSteps(own, taken, read_by), list(read_by)))
        return steps

    def was_stepped(self, param: Tensor) -> bool:
        """Whether the running backward pass has stepped this table already, from a batch of bags."""
        number, tables = self._stepped
        return id(param) in tables and number == backward_pass()

    def __enter__(self) -> InBackward:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


def step_in_backward(optimizer: Optimizer) -> InBackward:
    """Step each parameter as soon as its gradient is complete, then free the gradient.

    From now on, ``loss.backward()`` trains. Your loop stays the same. ``optimizer.step()`` finds no gradients and does
    nothing; keep the call, because schedulers look for it. Checkpoint the optimizer as before. Steps are bit-for-bit
    the same, except for the random draws of stochastic rounding. Only a few gradients exist at any time, instead of all
    of them.

    It does not work with anything that needs all gradients at once, or changes them after the backward pass: clipping
    by the global norm, `GradScaler`, and `DistributedDataParallel`, which averages gradients afterwards. It does work
    with FSDP2 (``fully_shard``), which averages them first. Activation checkpointing needs ``use_reentrant=False``: the
    reentrant kind runs several backward passes in one. To accumulate gradients, use the handle as a ``with`` block
    around the last backward pass of each step.

    If a backward pass fails, some parameters have moved and others have not: go back to a checkpoint. Before another
    optimizer takes over, call `InBackward.remove` on this one.

    Args:
        optimizer: any optimizer that steps each parameter independently, from this package or `torch.optim`.
            Parameters added later are stepped by ``optimizer.step()``.

    Returns:
        A handle. ``remove()`` undoes the change, and so does leaving a ``with`` block. Keep a reference to the handle
        or the optimizer: if both are gone, the next backward pass raises an error.

    Example:
        >>> import torch
        >>> from matrix_adagrad import RowAdaGrad, step_in_backward
        >>> model = torch.nn.Linear(4, 2)
        >>> optimizer = RowAdaGrad(model.parameters(), lr=0.1)
        >>> handle = step_in_backward(optimizer)
        >>> model(torch.ones(1, 4)).sum().backward()  # this was the step
        >>> model.weight.grad is None, optimizer.state[model.weight]["step"]
        (True, tensor(1.))
    """
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}")
    return InBackward(optimizer)


def _check(optimizer: Optimizer) -> None:
    if needed := needed_by_step(optimizer):
        raise TypeError(f"{type(optimizer).__name__} needs a {needed}: it cannot step parameter by parameter")
    if "param_groups" not in vars(optimizer):
        raise TypeError(f"{type(optimizer).__name__} wraps another optimizer: pass that one, before wrapping it")
    for group in optimizer.param_groups:
        for param in group["params"]:
            if any(isinstance(hook, _Hook) and hook.step() is not None for hook in gradient_hooks(param)):
                raise ValueError("the parameters are already stepped in the backward pass: call remove() first")


def _places(optimizer: Optimizer) -> Iterator[tuple[int, int, Tensor]]:
    """All parameters, each with the number of its group and its place there."""
    for number, group in enumerate(optimizer.param_groups):
        for place, param in enumerate(group["params"]):
            yield number, place, param


def _in_parts(table: Tensor) -> RuntimeError:
    return RuntimeError(
        f"a table of shape {tuple(table.shape)} was looked up by EmbeddingBags, which stepped it, and is used "
        "elsewhere in the same backward pass: its gradient has two parts, and step_in_backward needs the sum"
    )


class _Step:
    """Steps one parameter, with its owner's options and state at the time of the call."""

    def __init__(self, owner: Optimizer, number: int, place: int, index: int) -> None:
        self.owner, self.number, self.place, self.index = owner, number, place, index
        self.stepper = without_hooks(owner)

    def __call__(self, param: Tensor) -> None:
        group = self.owner.param_groups[self.number]
        if group["params"][self.place] is not param:
            raise RuntimeError("the optimizer's groups have changed since step_in_backward: call it again")
        # Both are new after load_state_dict.
        self.stepper.param_groups, self.stepper.state = [subgroup(group, [self])], self.owner.state
        try:
            self.stepper.step()
        finally:
            param.grad = None


class _Hook:
    """Runs a step that it only references weakly: a strong reference would keep the parameter alive forever."""

    def __init__(self, param: Tensor, step: _Step, handle: InBackward) -> None:
        self.step, self._handle = weakref.ref(step), weakref.ref(handle)
        self.handle = param.register_post_accumulate_grad_hook(self)

    def __call__(self, param: Tensor) -> None:
        step = self.step()
        if step is None:
            self.handle.remove()
            raise RuntimeError("the optimizer of step_in_backward is gone: keep it, or remove() its handle first")
        handle = self._handle()
        if handle is not None and handle.was_stepped(param):
            if param.grad is None:
                return
            param.grad = None
            raise _in_parts(param)
        step(param)

    @property
    def bag_stepper(self) -> InBackward | None:
        """What can step the parameter without a gradient of its own: see `matrix_adagrad.bags.lookup.StepsBags`."""
        return None if self.step() is None else self._handle()
