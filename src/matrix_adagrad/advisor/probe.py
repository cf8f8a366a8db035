"""A probe around any training loop: how the energy of each parameter's gradients is spread."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from matrix_adagrad.advisor.energy import Energy
from matrix_adagrad.advisor.portrait import Portrait, portrait
from matrix_adagrad.optim.groups import unwrapped
from matrix_adagrad.optim.state import here, is_sharded
from matrix_adagrad.text import columns

__all__ = ["Probe", "Report", "ScalarWriter"]

BUDGET = 0.05  # of the time
SHARDED = 16  # machines that share a parameter must look at the same steps, so they count them


class ScalarWriter(Protocol):
    """TensorBoard's ``SummaryWriter``, and what behaves like it."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> None:
        """Write one number."""


class Probe:
    """Records how the energy of gradients is spread, while a training loop runs as it always does.

    It looks at gradients right before the optimizer steps: after accumulation, unscaling and clipping, dense or sparse,
    whole or sharded. It changes nothing, keeps O(m + n) numbers for an m×n parameter, and leaves steps out so as to
    take at most about a twentieth of the time.

    Args:
        model: the model, also compiled or wrapped; it gives parameters their names.
        optimizer: the optimizer that trains it, of any kind; or several.
        every: look at every so many steps, instead of as often as the time allows (at every 16th, where parameters are
            sharded: there machines must look at the same steps).

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
        trained = {p for one in self.optimizers for group in one.param_groups for p in group["params"]}
        self._names = {param: name for name, param in unwrapped(model).named_parameters() if param in trained}
        if not self._names:
            raise ValueError("the optimizer has none of the model's parameters: give the optimizer that trains it")
        if every is None and any(map(is_sharded, self._names)):
            every = SHARDED
        self.every = every
        self._energies: dict[nn.Parameter, Energy] = {}
        self._steps: dict[Optimizer, int] = dict.fromkeys(self.optimizers, 0)
        self._not_before: dict[Optimizer, float] = dict.fromkeys(self.optimizers, -math.inf)
        self._looked: dict[Optimizer, list[_Looked]] = {}
        self._handles: list[Any] = []

    def __enter__(self) -> Self:
        self.attach()
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    def attach(self) -> None:
        """Begin to look; what ``with`` does."""
        if self._handles:
            raise RuntimeError("the probe is attached already")
        for one in self.optimizers:
            self._handles += [one.register_step_pre_hook(self._before), one.register_step_post_hook(self._after)]

    def detach(self) -> None:
        """Look no longer. What was seen stays, and the probe may be attached again."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._looked.clear()

    # ------------------------------------------------------------------------------------------------------ observation

    @torch.no_grad()
    def _before(self, optimizer: Optimizer, *_: Any) -> None:
        self._steps[optimizer] += 1
        now = time.perf_counter()
        is_due = now >= self._not_before[optimizer] if self.every is None else self._steps[optimizer] % self.every == 0
        if not is_due or torch.compiler.is_compiling():
            return
        scale = getattr(optimizer, "grad_scale", None)  # what torch's GradScaler leaves to optimizers that can unscale
        looked = []
        for param in self._mine(optimizer):
            if param.grad is not None:
                own, grad = here(param), here(param.grad)
                if param not in self._energies:
                    self._energies[param] = Energy(own)
                energy = self._energies[param]
                seen = energy.look(grad, scale)
                energy.add(seen)
                looked.append(_Looked(param, energy, seen.where, energy.entries(own, seen.where)))
        self._looked[optimizer] = looked
        self._pay(optimizer, now)

    @torch.no_grad()
    def _after(self, optimizer: Optimizer, *_: Any) -> None:
        looked = self._looked.pop(optimizer, None)
        if looked is None:
            return
        now = time.perf_counter()
        for one in looked:
            one.energy.moved(one.before, one.energy.entries(here(one.param), one.where))
        self._pay(optimizer, now)

    def _pay(self, optimizer: Optimizer, since: float) -> None:
        """Stay away for as long as what was just done takes 1/BUDGET times over."""
        now = time.perf_counter()
        self._not_before[optimizer] = max(self._not_before[optimizer], since) + (now - since) / BUDGET

    def _mine(self, optimizer: Optimizer) -> Iterator[nn.Parameter]:
        return (p for group in optimizer.param_groups for p in group["params"] if p in self._names)

    # ---------------------------------------------------------------------------------------------------------- results

    @property
    def nbytes(self) -> int:
        """The memory that the probe takes, in bytes."""
        return sum(energy.nbytes for energy in self._energies.values())

    def report(self) -> Report:
        """What was seen so far. Where parameters are sharded, all machines must call it together."""
        portraits = []
        for one in self.optimizers:
            for param in self._mine(one):
                energy = self._energies.get(param) or Energy(here(param))
                portraits.append(portrait(self._names[param], param, energy, self._steps[one]))
        order = {name: i for i, name in enumerate(self._names.values())}
        return Report(tuple(sorted(portraits, key=lambda one: order[one.name])))


class _Looked:
    """A parameter that was looked at before a step, and its sampled values then."""

    def __init__(self, param: nn.Parameter, energy: Energy, where: Tensor | None, before: Tensor) -> None:
        self.param, self.energy, self.where, self.before = param, energy, where, before.clone()


@dataclass(frozen=True)
class Report:
    """A portrait of every parameter, by its name."""

    portraits: tuple[Portrait, ...]

    def __getitem__(self, name: str) -> Portrait:
        for one in self.portraits:
            if one.name == name:
                return one
        raise KeyError(f"no parameter {name!r}: there are {', '.join(one.name for one in self.portraits)}")

    def __iter__(self) -> Iterator[Portrait]:
        return iter(self.portraits)

    def __str__(self) -> str:
        return self.table()

    def table(self) -> str:
        """The numbers side by side, for a terminal."""
        header = ("parameter", "shape", "rows used", "columns", "entries", "one scale a row", "a column", "for all")
        rows = [
            (
                one.name,
                "×".join(map(str, one.shape)) or "scalar",
                *(f"{share:.0%}" for share in (one.rows.participation, one.columns.participation, one.entries)),
                *(f"{one.agreement[name]:.2f}" for name in ("row", "column", "whole")),
                f"{one.update:.1e}",
                _oddities(one),
            )
            for one in self.portraits
        ]
        return columns((*header, "update", ""), rows, left=(0, 1, 9))

    def to_dict(self) -> dict[str, Any]:
        """For JSON, with every number."""
        return {one.name: one.to_dict() for one in self.portraits}

    def to_json(self) -> str:
        """The text of a JSON file, with every number."""
        return json.dumps(self.to_dict(), indent=1)

    def write(self, writer: ScalarWriter, step: int | None = None) -> None:
        """Write the numbers as scalars: ``report.write(SummaryWriter(), step)`` for TensorBoard."""
        for one in self.portraits:
            for key, value in one.scalars().items():
                writer.add_scalar(f"{key}/{one.name}", value, step)


def _oddities(one: Portrait) -> str:
    """What deserves a look."""
    found = [f"{one.dead} dead rows"] * bool(one.dead) + [f"{one.exploding} exploding"] * bool(one.exploding)
    return ", ".join(found + [f"{one.broken} broken steps"] * bool(one.broken))


def _optimizers(given: Optimizer | Iterable[Optimizer]) -> list[Optimizer]:
    found = [given] if isinstance(given, Optimizer) else list(given) if isinstance(given, Iterable) else []
    if not found or not all(isinstance(one, Optimizer) for one in found):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer, or several, got {given!r}")
    return found
