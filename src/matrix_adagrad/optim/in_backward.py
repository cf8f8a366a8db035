"""Steps during the backward pass, so that the gradients of a model never exist all at once."""

from __future__ import annotations

import weakref

from torch import Tensor
from torch.optim import Optimizer

from matrix_adagrad.optim.combined import CombinedOptimizer, needed_by_step, without_hooks
from matrix_adagrad.torch_private import gradient_hooks

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
            param: _Step(owner, number, place)
            for owner in owners
            for number, group in enumerate(owner.param_groups)
            for place, param in enumerate(group["params"])
            if param.requires_grad
        }
        self.optimizers = [step.stepper for step in steps.values()]
        self._hooks = [_Hook(param, step) for param, step in steps.items()]
        self._steps = list(steps.values())
        for owner in owners:  # whoever keeps the optimizer keeps the steps
            vars(owner)["_in_backward"] = self

    def remove(self) -> None:
        """Undo `step_in_backward`: gradients are kept again, and ``optimizer.step()`` uses them."""
        for hook in self._hooks:
            hook.handle.remove()
        for step in self._steps:
            if vars(step.owner).get("_in_backward") is self:
                del vars(step.owner)["_in_backward"]
        self._hooks.clear()

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


class _Step:
    """Steps one parameter, with its owner's options and state at the time of the call."""

    def __init__(self, owner: Optimizer, number: int, place: int) -> None:
        self.owner, self.number, self.place, self.stepper = owner, number, place, without_hooks(owner)

    def __call__(self, param: Tensor) -> None:
        group = self.owner.param_groups[self.number]
        if group["params"][self.place] is not param:
            raise RuntimeError("the optimizer's groups have changed since step_in_backward: call it again")
        lists = {key: [group[key][self.place]] for key in group if key in ("params", "param_names")}
        # Both are new after load_state_dict.
        self.stepper.param_groups, self.stepper.state = [{**group, **lists}], self.owner.state
        try:
            self.stepper.step()
        finally:
            param.grad = None


class _Hook:
    """Runs a step that it only references weakly: a strong reference would keep the parameter alive forever."""

    def __init__(self, param: Tensor, step: _Step) -> None:
        self.step = weakref.ref(step)
        self.handle = param.register_post_accumulate_grad_hook(self)

    def __call__(self, param: Tensor) -> None:
        step = self.step()
        if step is None:
            self.handle.remove()
            raise RuntimeError("the optimizer of step_in_backward is gone: keep it, or remove() its handle first")
        step(param)
