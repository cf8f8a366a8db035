"""A probe around any training loop: how the energy of each parameter's gradients is spread."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self, cast

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo  # torch.compiler.disable would import the compiler
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from matrix_adagrad.advisor.energy import Energy, Seen
from matrix_adagrad.advisor.portrait import portrait
from matrix_adagrad.advisor.report import Report
from matrix_adagrad.optim.groups import unwrapped
from matrix_adagrad.optim.state import here, is_sharded

__all__ = ["Probe", "Report"]

BUDGET = 1 / 30  # of the time
_GOLDEN = (math.sqrt(5) - 1) / 2  # its multiples come around to no number
SHARDED = 16  # machines that share a parameter must look at the same steps, so they count them


class Probe:
    """Records how the energy of gradients is spread, while a training loop runs as it always does.

    It looks at gradients right before the optimizer steps: after accumulation, unscaling and clipping, dense or sparse,
    whole or sharded; where the step is given a closure, right after that ran first. It changes nothing, keeps O(m + n)
    numbers for an m×n parameter, and leaves steps out so as to take at most about a thirtieth of the time. Steps that
    mixed precision skips are not seen.

    Models may be compiled, and steps too, but for ``fullgraph=True``: the hooks run between graphs. Steps that a CUDA
    graph replays run no hooks, and nothing is seen of them.

    Args:
        model: the model, also compiled or wrapped; it gives parameters their names.
        optimizer: the optimizer that trains it, of any kind; or several.
        every: look at one step in so many, at irregular distances, instead of as often as the time allows (one in 16
            where parameters are sharded: there machines must look at the same steps).

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
        >>> weight.dead, round(weight.rows.silent, 2), weight.columns.silent
        (2, 0.67, 0.0)
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer | Iterable[Optimizer], *, every: int | None = None
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a module, got {type(model).__name__}")
        if every is not None and (not isinstance(every, int) or every < 1):
            raise ValueError(f"every must be a whole number of steps and at least 1, got {every!r}")
        self.optimizers = _optimizers(optimizer)
        self._names = {param: name for name, param in unwrapped(model).named_parameters()}
        if not any(param in self._names for one in self.optimizers for param in _params(one)):
            raise ValueError("the optimizer has none of the model's parameters: give the optimizer that trains it")
        if every is None and any(map(is_sharded, self._names)):
            every = SHARDED
        self.every = every
        self.seconds = 0.0  # that all looks have taken
        self._energies: dict[Tensor, Energy] = {}
        self._tracks = {one: _Track() for one in self.optimizers}
        self._handles: list[Any] = []
        self._detached = time.perf_counter()  # since when

    def __enter__(self) -> Self:
        self.attach()
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    def attach(self) -> None:
        """Begin to look; what ``with`` does."""
        if self._handles:
            raise RuntimeError("the probe is attached already")
        for track in self._tracks.values():  # the budget is of the time that it is attached
            track.not_before += time.perf_counter() - self._detached
        for one in self.optimizers:
            self._handles += [one.register_step_pre_hook(self._before), one.register_step_post_hook(self._after)]

    def detach(self) -> None:
        """Look no longer. What was seen stays, and the probe may be attached again."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._detached = time.perf_counter()
        for track in self._tracks.values():
            track.looked.clear()

    # ------------------------------------------------------------------------------------------------------ observation

    @_disable_dynamo
    def _before(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        track = self._tracks[optimizer]
        track.steps += 1
        track.looked.clear()  # of a step that failed
        is_due = time.perf_counter() >= track.not_before if self.every is None else self._is_chosen(track.steps)
        if not is_due or (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()):
            return None
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self._look(optimizer, track)
            return None

        def closure_and_look() -> Any:
            loss = closure()
            if not track.looked:  # at the first of the points that a line search tries
                self._look(optimizer, track)
            return loss

        if len(args) > 1:
            return (args[0], closure_and_look, *args[2:]), kwargs
        return args, {**kwargs, "closure": closure_and_look}

    def _is_chosen(self, step: int) -> bool:
        """One step in so many, at irregular distances: looks must not fall in step with batches that come around."""
        assert self.every is not None
        return step * _GOLDEN % 1 * self.every < 1

    @torch.no_grad()
    def _look(self, optimizer: Optimizer, track: _Track) -> None:
        now = time.perf_counter()
        # torch's GradScaler leaves both to optimizers that can unscale, and skip a step, by themselves.
        scale, overflow = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
        if overflow is not None and float(overflow):
            track.steps -= 1
            return
        for param in _params(optimizer):
            if param not in self._names or (param.grad is None and not param.requires_grad) or is_lazy(param):
                continue
            own = here(param)
            if param not in self._energies:
                self._energies[param] = Energy(own, since=track.last)
            energy = self._energies[param]
            seen = energy.look(_gradient(param), scale)
            energy.add(seen)
            track.looked.append(_Looked(param, energy, seen, energy.entries(own, seen.where)))
        track.last = track.steps
        track.cost = 0.0
        self._pay(track, time.perf_counter() - now)

    @_disable_dynamo
    @torch.no_grad()
    def _after(self, optimizer: Optimizer, *_: Any) -> None:
        track = self._tracks[optimizer]
        if not track.looked:
            return
        now = time.perf_counter()
        for param, energy, seen, before in track.looked:
            energy.moved(seen, before, energy.entries(here(param), seen.where))
        track.looked.clear()
        self._pay(track, time.perf_counter() - now)

    def _pay(self, track: _Track, seconds: float) -> None:
        """Stay away until a look of each optimizer, as long as its last one, is within the budget."""
        self.seconds += seconds
        track.cost += seconds
        track.not_before = time.perf_counter() + sum(one.cost for one in self._tracks.values()) / BUDGET

    # ---------------------------------------------------------------------------------------------------------- results

    @property
    def nbytes(self) -> int:
        """The memory that the probe takes, in bytes."""
        return sum(energy.nbytes for energy in self._energies.values())

    def report(self) -> Report:
        """What was seen so far. Where parameters are sharded, all machines must call it together."""
        steps: dict[Tensor, int] = {}  # a parameter may be in several optimizers
        for one in self.optimizers:
            for param in _params(one):
                steps[param] = steps.get(param, 0) + self._tracks[one].steps
        portraits = []
        for param, name in self._names.items():
            if param in steps and not is_lazy(param):
                energy = self._energies.get(param) or Energy(here(param))
                portraits.append(portrait(name, param, energy, steps[param] - energy.since))
        return Report(tuple(portraits))


class _Looked(NamedTuple):
    """A parameter that was looked at before a step, and its sampled values then."""

    param: Tensor
    energy: Energy
    seen: Seen
    before: Tensor


@dataclass
class _Track:
    """How far an optimizer is, and the probe with it."""

    steps: int = 0
    last: int = 0  # step that was looked at
    cost: float = 0.0  # seconds that this took
    not_before: float = -math.inf
    looked: list[_Looked] = field(default_factory=list)


def _params(optimizer: Optimizer) -> Iterator[Tensor]:
    return (param for group in optimizer.param_groups for param in group["params"])


def _gradient(param: Tensor) -> Tensor | None:
    """What lies here of a parameter's gradient."""
    grad, owner = cast(Any, param.grad), cast(Any, param)
    if is_sharded(grad) and grad.placements != owner.placements:  # a sum over the mesh, perhaps, that is not taken yet
        grad = grad.redistribute(owner.device_mesh, owner.placements)
    return None if grad is None else here(grad)


def _optimizers(given: Optimizer | Iterable[Optimizer]) -> list[Optimizer]:
    found: list[Any] = [given] if isinstance(given, Optimizer) else list(given) if isinstance(given, Iterable) else []
    # A wrapper that is an optimizer by name only, such as Accelerate's, runs no hooks: what it wraps does.
    found = [one if hasattr(one, "_optimizer_step_pre_hooks") else getattr(one, "optimizer", None) for one in found]
    if not found or not all(isinstance(one, Optimizer) for one in found):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer, or several, got {type(given).__name__}")
    return found
