"""A probe for any training loop: it measures how each parameter's squared gradients are spread."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from matrix_adagrad.advisor.probe_report import ProbeReport
from matrix_adagrad.advisor.squared_gradients import GOLDEN, Observation, SquaredGradients
from matrix_adagrad.advisor.summary import summarize
from matrix_adagrad.optim.choices import unwrapped
from matrix_adagrad.optim.step.update import is_sharded, local
from matrix_adagrad.torch_private import runs_step_hooks, without_compiling

__all__ = ["Probe"]

BUDGET = 1 / 30  # of the training time
SHARDED = 16  # ranks that share a parameter must observe the same steps, so they count steps instead of seconds


class Probe:
    """Measures how squared gradients are spread over rows and columns, inside your own training loop.

    It reads gradients right before the optimizer steps: after accumulation, unscaling and clipping, dense or sparse,
    sharded or not. If the step takes a closure, it reads them after the first call. It changes nothing, and keeps
    O(m + n) numbers for an m×n parameter. It skips steps so as to take at most about a thirtieth of the training time.
    Steps that mixed precision skips are not observed.

    The model may be compiled. The step may be compiled too, but not with ``fullgraph=True``: hooks run between graphs.
    Replaying a CUDA graph runs no hooks, so those steps are not observed.

    Args:
        model: the model, compiled, wrapped, or neither. It names the parameters.
        optimizer: the optimizer that trains it, of any class, or several optimizers.
        every: observe one step in ``every``, at irregular intervals. By default as many as the time budget allows, or
            one in 16 if parameters are sharded, because all ranks must observe the same steps.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from matrix_adagrad import RowAdaGrad
        >>> from matrix_adagrad.advisor import Probe
        >>> model = nn.Embedding(4, 8)
        >>> optimizer = RowAdaGrad(model.parameters(), lr=0.1)
        >>> with Probe(model, optimizer, every=1) as probe:
        ...     for items in ([0], [0, 1], [0]):
        ...         optimizer.zero_grad()
        ...         model(torch.tensor(items)).square().sum().backward()
        ...         optimizer.step()
        >>> weight = probe.report()["weight"]
        >>> weight.dead, round(weight.rows.inactive, 2), weight.columns.inactive
        (2, 0.67, 0.0)
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer | Iterable[Optimizer], *, every: int | None = None
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be an nn.Module, got {type(model).__name__}")
        if every is not None and (not isinstance(every, int) or every < 1):
            raise ValueError(f"every must be a whole number of steps and at least 1, got {every!r}")
        self.optimizers = _optimizers(optimizer)
        self._names = {param: name for name, param in unwrapped(model).named_parameters()}
        if not any(param in self._names for optimizer in self.optimizers for param in _params(optimizer)):
            raise ValueError("optimizer has none of the model's parameters: give the one that trains this model")
        if every is None and any(map(is_sharded, self._names)):
            every = SHARDED
        self.every = every
        self.seconds = 0.0  # spent on observations
        self._squared: dict[Tensor, SquaredGradients] = {}
        self._schedules = {optimizer: _Schedule() for optimizer in self.optimizers}
        self._handles: list[Any] = []
        self._detached_at = time.perf_counter()

    def __enter__(self) -> Self:
        self.attach()
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    def attach(self) -> None:
        """Start observing, as ``with`` does."""
        if self._handles:
            raise RuntimeError("the probe is already attached: detach it first")
        for schedule in self._schedules.values():  # the budget is a share of the time while attached
            schedule.not_before += time.perf_counter() - self._detached_at
        for optimizer in self.optimizers:
            self._handles += [
                optimizer.register_step_pre_hook(self._before),
                optimizer.register_step_post_hook(self._after),
            ]

    def detach(self) -> None:
        """Stop observing. The measurements stay, and the probe may be attached again."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._detached_at = time.perf_counter()
        for schedule in self._schedules.values():
            schedule.pending.clear()

    # ------------------------------------------------------------------------------------------------------ observation

    @without_compiling
    def _before(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        schedule = self._schedules[optimizer]
        schedule.steps += 1
        schedule.pending.clear()  # left by a step that failed
        is_due = time.perf_counter() >= schedule.not_before if self.every is None else self._is_chosen(schedule.steps)
        if not is_due or (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()):
            return None
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self._observe(optimizer, schedule)
            return None

        def observed_closure() -> Any:
            loss = closure()
            if not schedule.pending:  # the first point of a line search
                self._observe(optimizer, schedule)
            return loss

        if len(args) > 1:
            return (args[0], observed_closure, *args[2:]), kwargs
        return args, {**kwargs, "closure": observed_closure}

    def _is_chosen(self, step: int) -> bool:
        """One step in ``every``, at irregular intervals, so as not to synchronize with a cycle of batches."""
        assert self.every is not None
        return step * GOLDEN % 1 * self.every < 1

    @torch.no_grad()
    def _observe(self, optimizer: Optimizer, schedule: _Schedule) -> None:
        now = time.perf_counter()
        # torch's GradScaler sets both on optimizers that unscale, and skip steps, themselves.
        scale, overflow = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
        if overflow is not None and float(overflow):
            schedule.steps -= 1
            return
        for param in _params(optimizer):
            if param not in self._names or (param.grad is None and not param.requires_grad) or is_lazy(param):
                continue
            shard = local(param)
            if param not in self._squared:
                self._squared[param] = SquaredGradients(shard, since=schedule.last_observed)
            squared = self._squared[param]
            observation = squared.observe(_gradient(param), scale)
            squared.add(observation)
            before = squared.sampled_weights(shard, observation.indices)
            schedule.pending.append(_Pending(param, squared, observation, before))
        schedule.last_observed = schedule.steps
        schedule.cost = 0.0
        self._charge(schedule, time.perf_counter() - now)

    @without_compiling
    @torch.no_grad()
    def _after(self, optimizer: Optimizer, *_: Any) -> None:
        schedule = self._schedules[optimizer]
        if not schedule.pending:
            return
        now = time.perf_counter()
        for param, squared, observation, before in schedule.pending:
            after = squared.sampled_weights(local(param), observation.indices)
            squared.add_update(observation, before, after)
        schedule.pending.clear()
        self._charge(schedule, time.perf_counter() - now)

    def _charge(self, schedule: _Schedule, seconds: float) -> None:
        """Wait until one more observation of each optimizer, as long as its last one, fits the budget."""
        self.seconds += seconds
        schedule.cost += seconds
        schedule.not_before = time.perf_counter() + sum(each.cost for each in self._schedules.values()) / BUDGET

    # ---------------------------------------------------------------------------------------------------------- results

    @property
    def nbytes(self) -> int:
        """The probe's memory in bytes."""
        return sum(squared.nbytes for squared in self._squared.values())

    def report(self) -> ProbeReport:
        """The measurements so far. If parameters are sharded, all ranks must call this together."""
        steps: dict[Tensor, int] = {}  # a parameter may be in several optimizers
        for optimizer in self.optimizers:
            for param in _params(optimizer):
                steps[param] = steps.get(param, 0) + self._schedules[optimizer].steps
        parameters = []
        for param, name in self._names.items():
            if param in steps and not is_lazy(param):
                squared = self._squared.get(param) or SquaredGradients(local(param))
                parameters.append(summarize(name, param, squared, steps[param] - squared.since))
        return ProbeReport(tuple(parameters))


class _Pending(NamedTuple):
    """A parameter that was observed before a step, and its sampled weights then."""

    param: Tensor
    squared: SquaredGradients
    observation: Observation
    before: Tensor


@dataclass
class _Schedule:
    """The steps of one optimizer, and when to observe it next."""

    steps: int = 0
    last_observed: int = 0  # step
    cost: float = 0.0  # seconds of the last observation
    not_before: float = -math.inf
    pending: list[_Pending] = field(default_factory=list)


def _params(optimizer: Optimizer) -> Iterator[Tensor]:
    return (param for group in optimizer.param_groups for param in group["params"])


def _gradient(param: Tensor) -> Tensor | None:
    """The local shard of a parameter's gradient."""
    grad, owner = cast(Any, param.grad), cast(Any, param)
    if is_sharded(grad) and grad.placements != owner.placements:  # perhaps a partial sum
        grad = grad.redistribute(owner.device_mesh, owner.placements)
    return None if grad is None else local(grad)


def _optimizers(given: Optimizer | Iterable[Optimizer]) -> list[Optimizer]:
    found: list[Any] = [given] if isinstance(given, Optimizer) else list(given) if isinstance(given, Iterable) else []
    # Wrappers such as Accelerate's subclass Optimizer but run no hooks; what they wrap does.
    found = [optimizer if runs_step_hooks(optimizer) else getattr(optimizer, "optimizer", None) for optimizer in found]
    if not found or not all(isinstance(optimizer, Optimizer) for optimizer in found):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer, or several, got {type(given).__name__}")
    return found
