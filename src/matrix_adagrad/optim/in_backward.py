"""Steps during the backward pass, so that the gradients of a model never exist all at once."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable
from types import TracebackType

from torch import Tensor
from torch.optim import Optimizer

from matrix_adagrad.optim.together import Together

__all__ = ["InBackward", "step_in_backward"]


class InBackward:
    """What `step_in_backward` has put in place. As a context manager it is removed at the end.

    Attributes:
        optimizers: one for each parameter, on the state and options of the user's own: what takes the steps, and what a
            `matrix_adagrad.advisor.Probe` looks at.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        owners = optimizer.optimizers if isinstance(optimizer, Together) else (optimizer,)
        self.optimizers: list[Optimizer] = []
        self._handles = []
        for owner in owners:
            _check(owner)
        for owner in owners:
            for number, group in enumerate(owner.param_groups):
                for place, param in enumerate(group["params"]):
                    if param.requires_grad:
                        self.optimizers.append(_alone(owner))
                        hook = _stepping(owner, self.optimizers[-1], number, place)
                        self._handles.append(param.register_post_accumulate_grad_hook(hook))

    def remove(self) -> None:
        """Gradients stay from now on, and the optimizer's own ``step`` takes them."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def __enter__(self) -> InBackward:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def step_in_backward(optimizer: Optimizer) -> InBackward:
    """Have each parameter stepped as soon as its gradient is complete, and the gradient freed.

    From now on ``loss.backward()`` trains. A loop stays as it is: ``optimizer.step()`` finds no gradients and does
    nothing, learning-rate schedulers and checkpoints work on the optimizer as ever. The steps are the same bit for bit
    (but for what stochastic rounding draws), and a few gradients exist at any time instead of all of them.

    What looks at all gradients, or changes them after the backward pass, does not go with it: clipping by the norm of
    all of them, `GradScaler`, `DistributedDataParallel`, which averages them afterwards. With FSDP2 (``fully_shard``),
    which averages them before, it works. To accumulate gradients, use it as a ``with`` block around the last of the
    backward passes of a step.

    Args:
        optimizer: any optimizer that steps each parameter by itself, of this package or of `torch.optim`. Parameters
            that are added later are stepped by ``optimizer.step()``.

    Returns:
        A handle: ``remove()`` undoes it, and so does the end of a ``with`` block.

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
    if inspect.signature(optimizer.step).parameters["closure"].default is inspect.Parameter.empty:
        raise TypeError(f"{type(optimizer).__name__} needs a closure: it cannot step parameter by parameter")


def _alone(owner: Optimizer) -> Optimizer:
    """An optimizer of the owner's kind; hooks on the owner's steps, and what schedulers put around it, stay with it."""
    one = object.__new__(type(owner))
    one.__dict__ = {name: value for name, value in vars(owner).items() if name != "step"}
    one._optimizer_step_pre_hooks, one._optimizer_step_post_hooks = OrderedDict(), OrderedDict()
    return one


def _stepping(owner: Optimizer, one: Optimizer, group: int, place: int) -> Callable[[Tensor], None]:
    """A hook that takes the step of one parameter, with the options and the state that its owner has then."""

    def step(param: Tensor) -> None:
        current = owner.param_groups[group]
        mine = {**current, "params": [param]}
        if "param_names" in current:
            mine["param_names"] = [current["param_names"][place]]
        one.param_groups, one.state = [mine], owner.state  # both are new after load_state_dict
        one.step()
        param.grad = None

    return step
