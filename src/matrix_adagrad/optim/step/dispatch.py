"""The plan of a step: which backend takes which tensors, what is all-reduced over ranks, and what is projected."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from matrix_adagrad.domains import Domain
from matrix_adagrad.geometry import Partition
from matrix_adagrad.optim.step.backend import Backend, PartedBackend, refusal
from matrix_adagrad.optim.step.config import Config
from matrix_adagrad.optim.step.foreach import Foreach
from matrix_adagrad.optim.step.native import Native
from matrix_adagrad.optim.step.project import project
from matrix_adagrad.optim.step.reference import Reference
from matrix_adagrad.optim.step.sparse import Sparse
from matrix_adagrad.optim.step.update import Update, is_sharded

if TYPE_CHECKING:
    from matrix_adagrad.optim.sharding import Divided

__all__ = ["FOREACH", "NATIVE", "REFERENCE", "SPARSE", "StepPlan"]

NATIVE, SPARSE, FOREACH, REFERENCE = Native(), Sparse(), Foreach(), Reference()


_B = TypeVar("_B", bound=Backend)


class _Work(NamedTuple, Generic[_B]):
    """Updates that a backend handles together."""

    backend: _B
    updates: list[Update]
    config: Config


class StepPlan:
    """A step for all groups. Anything that can be refused is refused while planning, before anything moves."""

    def __init__(self) -> None:
        self._local: list[_Work[Backend]] = []
        self._divided: list[tuple[Divided, Config]] = []
        self._pieces: list[_Work[PartedBackend]] = []  # of parameters whose blocks span ranks
        self._gathered: list[tuple[Update, Update]] = []
        self._projections: list[tuple[Update, Config, Domain]] = []

    def add(self, updates: list[Update], config: Config) -> None:
        """Add the updates of a group."""
        backends = _backends(config)
        if backends[0] is NATIVE:
            ready, updates = NATIVE.sort_out(updates)
            if ready:
                self._local.append(_Work(NATIVE, ready, config))
            if config.domain is not None:
                self._projections += [(update, config, config.domain) for update in ready]
        for update in updates:
            if update.grad.is_sparse and not isinstance(update.geometry, Partition):
                update = replace(update, grad=update.grad.to_dense())  # every row moves
            if config.domain is not None:
                self._projections.append((update, config, config.domain))
            if update.grad.is_sparse:
                self._add_local(update, config, backends)
            elif is_sharded(update.param):
                self._add_sharded(update, config, backends)
            else:
                viewed = update.viewed()
                self._add_local(viewed, config, backends)
                update.prepared = viewed.prepared  # for the next step

    def _add_local(self, update: Update, config: Config, backends: Sequence[Backend]) -> None:
        _append(self._local, _choose(update, config, backends), update, config)

    def _add_sharded(self, update: Update, config: Config, backends: Sequence[Backend]) -> None:
        from matrix_adagrad.optim import sharding

        if not isinstance(update.geometry, Partition):
            whole = sharding.gather(update)
            self._gathered.append((update, whole))
            self._add_local(whole, config, backends)
            return
        part = sharding.localize(update)
        if isinstance(part, Update):
            self._add_local(part, config, backends)
        else:
            self._divided.append((part, config))
            parted = [backend for backend in backends if isinstance(backend, PartedBackend)]
            for piece in part.pieces:
                _append(self._pieces, _choose(piece, config, parted), piece, config)

    def run(self) -> None:
        """Take the step. Other work overlaps with the all-reduces over ranks."""
        if self._divided:
            self._step_divided()
        else:
            self._step_local()
        for update, config, domain in self._projections:
            if is_sharded(update.param):
                from matrix_adagrad.optim.sharding import project_shards

                project_shards(update, config, domain)
            else:
                project(update, config, domain)

    def _step_local(self) -> None:
        for backend, updates, config in self._local:
            backend.step(updates, config)
        for update, whole in self._gathered:
            from matrix_adagrad.optim.sharding import scatter

            scatter(update, whole)

    def _step_divided(self) -> None:
        from matrix_adagrad.optim.sharding import add_up

        for backend, pieces, config in self._pieces:
            for piece, (sums,) in zip(pieces, backend.read(pieces, config), strict=True):
                piece.sums = sums
        for part, _ in self._divided:
            part.put_together()
        calls = add_up([part for part, _ in self._divided])
        next(calls, None)
        self._step_local()
        for _ in calls:
            pass
        for _, pairs in itertools.groupby(self._divided, key=lambda pair: id(pair[1])):
            some, configs = zip(*pairs, strict=True)
            config = configs[0]
            backend = REFERENCE if config.foreach is False else FOREACH
            backend.accumulate([part.update for part in some], [(part.sums,) for part in some], config)
        for backend, pieces, config in self._pieces:
            backend.move(pieces, config)


def _append(works: list[_Work[_B]], backend: _B, update: Update, config: Config) -> None:
    """Add an update to others of the same kind, if there are any."""
    for work in reversed(works):
        if work.config is not config:
            break
        if work.backend is backend and work.updates[0].grad.is_sparse == update.grad.is_sparse:
            work.updates.append(update)
            return
    works.append(_Work(backend, [update], config))


def _backends(config: Config) -> tuple[Backend, ...]:
    """The backends in the order they are tried: only the user's choice, or else the fastest first."""
    if config.fused:
        return (NATIVE,)
    if config.foreach:
        return SPARSE, FOREACH
    if config.foreach is False or config.differentiable:
        return SPARSE, REFERENCE
    return (NATIVE, SPARSE, FOREACH, REFERENCE) if config.fused is None else (SPARSE, FOREACH, REFERENCE)


def _choose(update: Update, config: Config, backends: Sequence[_B]) -> _B:
    """The first backend that supports the update."""
    reason = ""
    for backend in backends:
        reason = backend.reason_against(update, config)
        if not reason:
            return backend
    raise refusal("fused" if config.fused else "foreach", reason)
