"""Several optimizers, each with its own parameters, used as one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from textwrap import indent
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim import SGD, Adadelta, Adafactor, Adagrad, Adam, Adamax, AdamW, Muon, RAdam, RMSprop
from torch.optim.optimizer import Optimizer, StateDict

from matrix_adagrad.optim.saved import plain
from matrix_adagrad.torch_private import after_loading, before_loading, without_step_hooks

__all__ = ["CombinedOptimizer", "needed_by_step", "without_hooks"]

# Torch optimizers whose state a step along zero gradients can create, without changing how training goes on.
_START_AT_ZERO = (Adadelta, Adafactor, Adagrad, Adam, Adamax, AdamW, Muon, RAdam, RMSprop, SGD)


class CombinedOptimizer(Optimizer):
    r"""Several optimizers with different parameters, used as one. One step takes a step of each part,

    .. math:: X^{(k)}_{t+1} = \mathrm{step}_k\big(X^{(k)}_t, G^{(k)}_t\big) \qquad \text{for each part } k,

    all with the gradients of one backward pass. It works wherever an optimizer does: with schedulers, `GradScaler`,
    trainers, the advisor's `Probe`, and checkpoints, including `torch.distributed.checkpoint`.

    ``param_groups`` lists the parts' own groups, one part after another. Editing them, as schedulers do, edits the
    parts. ``state`` is a view of the parts' states, and writes go through to them. Hooks registered here run once per
    step; a part's hooks run with that part. Nothing says which part a new group belongs to, so add it to a part, in
    ``optimizers``.

    Args:
        optimizers: torch optimizers of any kind whose step needs no closure. Each parameter belongs to one of them.

    Example:
        >>> import torch
        >>> from matrix_adagrad import CombinedOptimizer, RowMomentum
        >>> table, layer = torch.nn.Embedding(100, 8), torch.nn.Linear(8, 8, bias=False)
        >>> optimizer = CombinedOptimizer([
        ...     torch.optim.Muon(layer.parameters(), lr=0.02, weight_decay=0.0),
        ...     RowMomentum(table.parameters(), lr=1e-3, reduction="mean"),
        ... ])
        >>> schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
        >>> layer(table(torch.tensor([3, 14, 15]))).square().sum().backward()
        >>> optimizer.step()
        >>> schedule.step()
        >>> [group["lr"] for group in optimizer.param_groups]
        [0.01, 0.0005]
        >>> {number: tuple(state) for number, state in optimizer.state_dict()["state"].items()}
        {0: ('momentum_buffer',), 1: ('step', 'exp_avg', 'exp_avg_sq')}
    """

    optimizers: tuple[Optimizer, ...]

    def __init__(self, optimizers: Iterable[Optimizer]) -> None:
        # Skip Optimizer.__init__: it would create groups and a state, and those belong to the parts.
        self.__setstate__({"defaults": {}, "optimizers": _checked(optimizers)})

    def _check_owners(self) -> None:
        """Check again if parts have gained groups since the last check."""
        count = sum(len(group["params"]) for group in self.param_groups)
        if count != self.__dict__.get("_count"):
            _check_owners(self.optimizers)
            self._count = count

    def __getstate__(self) -> dict[str, Any]:
        return {"defaults": self.defaults, "optimizers": self.optimizers}

    def __repr__(self) -> str:
        return f"{type(self).__name__} (\n{indent(chr(10).join(map(repr, self.optimizers)), '    ')}\n)"

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The parts' own groups, including groups added to a part later."""
        return [group for part in self.optimizers for group in part.param_groups]

    @property
    def state(self) -> MutableMapping[Tensor, Any]:  # type: ignore[override]
        """The parts' states as one mapping."""
        return _States(self.optimizers)

    def add_param_group(self, param_group: dict[str, Any]) -> None:  # noqa: ARG002
        """Always raise an error that says what to call instead: the right part cannot be known."""
        parts = ", ".join(_titles(self.optimizers))
        raise TypeError(f"add_param_group: which part should get it? Call it on one of {parts}")

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients of all parts."""
        for part in self.optimizers:
            part.zero_grad(set_to_none)

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step with each part, in order.

        Args:
            closure: recomputes the loss and its gradients, and returns the loss. It is called once.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not torch.compiler.is_compiling():  # which would take the parts' groups for these, by their number
            self._check_owners()
        for part in self.optimizers:
            part.step()
        return loss

    def init_state(self) -> None:
        """Create the state of every trainable parameter now, not at its first gradient, so checkpoints are complete.

        Parts from `torch.optim` create it the way torch's distributed checkpoints do: with a step along zero gradients.
        Its learning rate and weight decay are 0, so nothing moves, and the step is not counted. Optimizers that would
        behave differently afterwards are left alone: NAdam, Rprop, ASGD, SparseAdam, SGD with dampening, and
        third-party optimizers.
        """
        for part in self.optimizers:
            if hasattr(part, "init_state"):
                part.init_state()
            elif type(part) in _START_AT_ZERO and not any(group.get("dampening") for group in part.param_groups):
                _init_by_a_step(part)

    def catch_up(self, param: Tensor | None = None, rows: Tensor | None = None) -> None:
        """With ``lazy="exact"`` in a part: bring rows up to the last step (`MatrixAdaGrad.catch_up`)."""
        for part in self.optimizers:
            if hasattr(part, "catch_up") and (
                param is None or any(param is own for group in part.param_groups for own in group["params"])
            ):
                part.catch_up(param, rows)

    # ----------------------------------------------------------------------------------------------------- checkpoints

    def state_dict(self) -> StateDict:
        """The state in torch's format. Groups and parameter numbers continue from one part to the next."""
        self._check_owners()
        # Runs before all other post-hooks, so that users' hooks see what is saved.
        handle = self.register_state_dict_post_hook(lambda *_: self._saved(), prepend=True)
        try:
            return super().state_dict()
        finally:
            handle.remove()

    def _saved(self) -> StateDict:
        state: dict[int, Any] = {}
        groups: list[dict[str, Any]] = []
        for part in self.optimizers:
            saved, first = part.state_dict(), sum(len(group["params"]) for group in groups)
            numbers = {number for group in saved["param_groups"] for number in group["params"]}
            if more := [*(set(saved) - {"state", "param_groups"}), *(set(saved["state"]) - numbers)]:
                raise ValueError(
                    f"{type(part).__name__} saves {more} besides its parameters' state: save it separately"
                )
            state |= {first + number: value for number, value in saved["state"].items()}
            groups += [
                {**plain(group), "params": [first + number for number in group["params"]]}
                for group in saved["param_groups"]
            ]
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load a state: each part loads its own piece. If any part refuses its piece, no part changes."""
        state_dict = state_dict.copy()
        for change in before_loading(self):
            changed = change(self, state_dict)
            state_dict = state_dict if changed is None else changed
        pieces = self._pieces(state_dict)
        before = [dict(vars(part)) for part in self.optimizers]  # loading replaces groups and state, and edits neither
        try:
            for part, piece in zip(self.optimizers, pieces, strict=True):
                part.load_state_dict(piece)
        except Exception:
            for part, kept in zip(self.optimizers, before, strict=True):
                vars(part).clear()
                vars(part).update(kept)
            raise
        for tell in after_loading(self):
            tell(self)

    def _pieces(self, state_dict: StateDict) -> list[StateDict]:
        """What each part is to load. Parameter numbers stay as they are: torch accepts any."""
        state, groups = dict(state_dict["state"]), list(state_dict["param_groups"])
        saved, needed = ([len(group["params"]) for group in some] for some in (groups, self.param_groups))
        if saved != needed:
            raise ValueError(f"the saved groups have {saved} parameters, and these have {needed}: nothing was loaded")
        pieces = []
        for part in self.optimizers:
            part_groups, groups = groups[: len(part.param_groups)], groups[len(part.param_groups) :]
            numbers = [number for group in part_groups for number in group["params"]]
            piece = {number: state.pop(number) for number in numbers if number in state}
            pieces.append({**state_dict, "state": piece, "param_groups": part_groups})
        if state:
            raise ValueError(f"the saved state has {list(state)}, which are in none of its groups: nothing was loaded")
        return pieces


def _checked(optimizers: Iterable[Optimizer]) -> tuple[Optimizer, ...]:
    if isinstance(optimizers, Optimizer) or not isinstance(optimizers, Iterable):
        raise TypeError(f"optimizers must be a list of torch optimizers, got {type(optimizers).__name__}")
    parts = tuple(optimizers)
    if not parts:
        raise ValueError("optimizers is empty: give at least one")
    for name, part in zip(_titles(parts), parts, strict=True):
        if not isinstance(part, Optimizer):
            raise TypeError(f"{name} is not a torch optimizer")
        if isinstance(part, CombinedOptimizer):
            raise TypeError(f"{name} already combines several: pass its parts, [*it.optimizers, ...]")
        if needed := needed_by_step(part):
            raise TypeError(f"{name} cannot step without {needed}: one closure cannot serve several line searches")
    _check_owners(parts)
    return parts


def _titles(parts: tuple[Optimizer, ...]) -> list[str]:
    return [f"optimizers[{number}] ({type(part).__name__})" for number, part in enumerate(parts)]


def _check_owners(parts: tuple[Optimizer, ...]) -> None:
    owner: dict[Tensor, str] = {}
    for title, part in zip(_titles(parts), parts, strict=True):
        for param, words in _named(part):
            if param in owner:
                raise ValueError(f"{words} of {title} is in {owner[param]} too: a parameter has one optimizer")
            owner[param] = title


def needed_by_step(optimizer: Optimizer) -> str:
    """The argument that ``step`` requires, such as L-BFGS's closure. Empty if it requires none."""
    # Look at the class: schedulers wrap the step of an instance.
    for argument in list(inspect.signature(type(optimizer).step).parameters.values())[1:]:
        if argument.default is argument.empty and argument.kind.name.startswith("POSITIONAL_"):
            return argument.name
    return ""


def without_hooks(optimizer: Optimizer) -> Optimizer:
    """The same optimizer without step hooks and schedulers' wrappers around ``step``: the original keeps those."""
    copy = object.__new__(type(optimizer))
    copy.__dict__ = {name: value for name, value in vars(optimizer).items() if name != "step"}
    without_step_hooks(copy)
    return copy


def _named(part: Optimizer) -> Iterator[tuple[Tensor, str]]:
    """The parameters, each with its name in error messages."""
    number = 0
    for group in part.param_groups:
        names = group.get("param_names") or [None] * len(group["params"])
        for name, param in zip(names, group["params"], strict=True):
            yield param, f"parameter {number if name is None else repr(name)}"
            number += 1


def _init_by_a_step(part: Optimizer) -> None:
    stepper, grads = without_hooks(part), dict[Tensor, Tensor | None]()
    stepper.param_groups = []
    for group in part.param_groups:
        new = [param for param in group["params"] if param.requires_grad and not part.state.get(param)]
        rates = {key: value for key, value in group.items() if key in ("lr", "weight_decay")}
        zeros = {key: torch.zeros_like(rate) if isinstance(rate, Tensor) else 0.0 for key, rate in rates.items()}
        stepper.param_groups += [{**group, **zeros, "params": new}] if new else []
        grads |= {param: param.grad for param in new}
    try:
        for param in grads:
            param.grad = torch.zeros_like(param, requires_grad=False)
        stepper.step()
    finally:
        for param, grad in grads.items():
            param.grad = grad
    for param in grads:
        count = part.state.get(param, {}).get("step")
        if isinstance(count, Tensor):
            count.zero_()


class _States(MutableMapping[Tensor, Any]):
    """The states of several optimizers as one. A parameter without state gets an empty one, as in torch."""

    def __init__(self, parts: tuple[Optimizer, ...]) -> None:
        self._parts = parts

    def _with(self, param: Tensor) -> MutableMapping[Tensor, Any]:
        """The state of the part that has the parameter."""
        for part in self._parts:
            if param in part.state or any(param is other for group in part.param_groups for other in group["params"]):
                return part.state
        raise KeyError("the parameter is in none of the optimizers")

    def __getitem__(self, param: Tensor) -> Any:
        return self._with(param)[param]

    def __setitem__(self, param: Tensor, value: Any) -> None:
        self._with(param)[param] = value

    def __delitem__(self, param: Tensor) -> None:
        del self._with(param)[param]

    def __contains__(self, param: object) -> bool:
        return any(param in part.state for part in self._parts)

    # MutableMapping's versions would mistake an empty state, created by their own lookup, for an existing one.
    def get(self, param: Tensor, default: Any = None) -> Any:
        return next((part.state[param] for part in self._parts if param in part.state), default)

    def pop(self, param: Tensor, *default: Any) -> Any:
        return self._with(param).pop(param, *default)

    def setdefault(self, param: Tensor, default: Any = None) -> Any:
        return self._with(param).setdefault(param, default)

    def __iter__(self) -> Iterator[Tensor]:
        return (param for part in self._parts for param in part.state)

    def __len__(self) -> int:
        return sum(len(part.state) for part in self._parts)

    def __repr__(self) -> str:
        return repr(dict(self))
