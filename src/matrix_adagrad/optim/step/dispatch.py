"""The plan of a step: which backend takes which tensors, what is all-reduced over ranks, and what is projected."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Self, TypeVar

import torch
from torch import Tensor

from matrix_adagrad.domains import Domain
from matrix_adagrad.optim.step import compiled  # noqa: F401 – it registers an operator
from matrix_adagrad.optim.step.backend import Backend, PartedBackend, RepeatedUpdates, refusal
from matrix_adagrad.optim.step.config import Config, SteepestConfig
from matrix_adagrad.optim.step.foreach import Foreach
from matrix_adagrad.optim.step.lazy import Lag, decay_of
from matrix_adagrad.optim.step.native import Native
from matrix_adagrad.optim.step.project import project
from matrix_adagrad.optim.step.reference import Reference
from matrix_adagrad.optim.step.reference_steepest import Steepest
from matrix_adagrad.optim.step.sparse import Sparse
from matrix_adagrad.optim.step.triton import Triton
from matrix_adagrad.optim.step.update import Update, is_sharded, local
from matrix_adagrad.torch_private import sparse_indices

if TYPE_CHECKING:
    from matrix_adagrad.optim.sharding import SplitUpdate

__all__ = ["FOREACH", "NATIVE", "REFERENCE", "SPARSE", "STEEPEST", "TRITON", "GroupPlan", "run"]

NATIVE, TRITON, SPARSE, FOREACH, REFERENCE, STEEPEST = Native(), Triton(), Sparse(), Foreach(), Reference(), Steepest()
_B = TypeVar("_B", bound=Backend)


class GroupPlan:
    """The step of a parameter group. Anything that can be refused is refused while planning, before anything moves."""

    def __init__(self, updates: list[Update], config: Config) -> None:
        self.config, self._backends = config, _backends(config)
        self.steps: defaultdict[tuple[Backend, bool], list[Update]] = defaultdict(list)  # dense and sparse ones apart
        self.split: list[SplitUpdate] = []
        self.pieces: defaultdict[PartedBackend, list[Update]] = defaultdict(list)  # of split updates
        self.gathered: defaultdict[Backend, list[Update]] = defaultdict(list)  # that need whole matrices
        self.projected: list[Update] = []
        self.lags = [_lag_of(update, config) for update in updates if update.lag is not None]
        for update in updates:
            if isinstance(config, SteepestConfig):
                self._add_steepest(update, config)
            else:
                self._add(update)

    def repeated(self, updates: list[Update]) -> Self | None:
        """The plan, for later steps of its updates too, if one backend takes all of them and can repeat that."""
        if self.lags or len(self.steps) != 1:
            return None
        ((backend, is_sparse),) = self.steps
        if is_sparse != updates[0].grad.is_sparse:
            return None
        repeated = backend.repeated(updates)
        if repeated is None:
            return None
        self.steps[backend, is_sparse] = repeated
        return self

    def renew(self, config: Config, grads: Sequence[Tensor]) -> bool:
        """Whether the plan is one for a step of its updates with these gradients too."""
        (updates,), self.config = self.steps.values(), config
        if self._backends != _backends(config) or not isinstance(updates, RepeatedUpdates):
            return False
        return updates.renew(config, grads)

    def check(self) -> None:
        """Refuse what a plan that is valid again has not looked at yet."""
        for updates in self.steps.values():
            if isinstance(updates, RepeatedUpdates):
                updates.check()

    def _add_steepest(self, update: Update, config: SteepestConfig) -> None:
        if update.grad.is_sparse and not STEEPEST.takes_rows(update, config):
            update = replace(update, grad=update.grad.to_dense())  # every row moves
        if not is_sharded(update.param):
            self._add_local(update)
            return
        from matrix_adagrad.optim import sharding

        local = None if config.floor or config.rescale else sharding.with_whole_blocks(update)
        if local is not None:
            self._add_local(local)
        else:
            self.gathered[STEEPEST].append(sharding.redistributed(update))

    def _add(self, update: Update) -> None:
        if update.grad.is_sparse and not SPARSE.takes_rows(update):
            update = replace(update, grad=update.grad.to_dense())  # every row moves
        if update.grad.is_sparse:
            self._add_local(update)
        elif is_sharded(update.param):
            self._add_sharded(update)
        else:
            viewed = update.viewed()
            self._add_local(viewed)
            update.prepared = viewed.prepared  # for the next step
        self.projected.append(update)

    def _add_local(self, update: Update) -> None:
        self.steps[_choose(update, self.config, self._backends), update.grad.is_sparse].append(update)

    def _add_sharded(self, update: Update) -> None:
        from matrix_adagrad.optim import sharding

        is_by_shard = update.geometry.sharded_as(update.param.shape)
        shard = sharding.localize(update) if is_by_shard else sharding.with_whole_blocks(update)
        if shard is None:
            backend = _choose(update.mapped(local), self.config, self._backends)
            self.gathered[backend].append(sharding.redistributed(update))
        elif isinstance(shard, Update):
            self._add_local(shard)
        else:
            self.split.append(shard)
            for piece in shard.pieces:
                parted = [backend for backend in self._backends if isinstance(backend, PartedBackend)]
                self.pieces[_choose(piece, self.config, parted)].append(piece)


def run(plans: Sequence[GroupPlan]) -> None:
    """Take the step of all groups. Other work overlaps with the all-reduces over ranks."""
    if len(plans) > 1:
        for plan in plans:
            plan.check()
    for plan in plans:
        for lag, rows in plan.lags:
            lag.catch_up(plan.config, rows)
    for plan in plans:
        for backend, pieces in plan.pieces.items():
            for piece, measured in zip(pieces, backend.read(pieces, plan.config), strict=True):
                piece.sums = measured
    reduced: Iterator[None] = iter(())
    if split := [split for plan in plans for split in plan.split]:
        from matrix_adagrad.optim.sharding import all_reduce

        reduced = all_reduce(split)
        next(reduced, None)
    for plan in plans:
        for (chosen, _), updates in plan.steps.items():
            chosen.step(updates, plan.config)
    for _ in reduced:
        pass
    for plan in plans:
        for chosen, updates in plan.gathered.items():
            from matrix_adagrad.optim.whole_matrices import step_whole

            step_whole(updates, chosen, plan.config)
    for plan in plans:
        if plan.split:
            backend = REFERENCE if plan.config.foreach is False else FOREACH
            sums = [part.sums for part in plan.split]
            backend.accumulate([part.update for part in plan.split], sums, plan.config)
        for backend, pieces in plan.pieces.items():
            backend.move(pieces, plan.config)
        if plan.config.domain is not None:
            for update in plan.projected:
                _project(update, plan.config, plan.config.domain)
        for lag, rows in plan.lags:
            lag.finish_step(plan.config, rows)


def _project(update: Update, config: Config, domain: Domain) -> None:
    if is_sharded(update.param):
        from matrix_adagrad.optim.sharding import project_shards

        project_shards(update, config, domain)
    else:
        project(update, config, domain)


def _lag_of(update: Update, config: Config) -> tuple[Lag, Tensor | None]:
    """The counters of a parameter's rows, and the rows that take this step; None: all."""
    if torch.compiler.is_compiling():
        raise RuntimeError("lazy='exact' reads counters back, which torch.compile cannot trace: use lazy='touched'")
    if config.keeps_decays:
        decay_of(config)  # refuses one that cannot be caught up
    lag: Lag = update.lag
    lag.stream = update.stream
    is_by_row = update.grad.is_sparse and SPARSE.takes_rows(update)
    return lag, sparse_indices(update.grad)[0] if is_by_row else None


def _backends(config: Config) -> tuple[Backend, ...]:
    """The backends in the order they are tried: only the user's choice, or else the fastest first."""
    if config.fused:
        return NATIVE, TRITON
    if isinstance(config, SteepestConfig):
        return (STEEPEST,) if config.fused is False or config.differentiable else (NATIVE, TRITON, STEEPEST)
    if config.foreach:
        return SPARSE, FOREACH
    if config.foreach is False or config.differentiable:
        return SPARSE, REFERENCE
    return (NATIVE, TRITON, SPARSE, FOREACH, REFERENCE) if config.fused is None else (SPARSE, FOREACH, REFERENCE)


def _choose(update: Update, config: Config, backends: Sequence[_B]) -> _B:
    """The first backend that supports the update."""
    reason, device = "", update.param.device
    for backend in [own for own in backends if own.runs_on(device)]:
        reason = backend.reason_against(update, config)
        if not reason:
            return backend
    raise refusal("fused" if config.fused else "foreach", reason)
