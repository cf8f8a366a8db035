"""Steps that need whole matrices, when these are sharded over ranks.

In steepest descent, only the direction is gathered. The ranks that hold the shards of a matrix share the work, as many
matrices at a time as there are ranks: each takes the steepest direction of one of them, such as its polar factor, and
sends it to the others. Everything else happens on the local shards.

Other geometries keep statistics of the full gradient on every rank: each gathers the parameter and takes the full step.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from matrix_adagrad.geometry import wide_dtype
from matrix_adagrad.optim.sharding import coordinate, shards_of, whole
from matrix_adagrad.optim.step.backend import Backend
from matrix_adagrad.optim.step.config import Config, SteepestConfig
from matrix_adagrad.optim.step.reference_steepest import averaged, change, move
from matrix_adagrad.optim.step.update import Update, count, local

__all__ = ["step_whole"]


def step_whole(updates: Sequence[Update], backend: Backend, config: Config) -> None:
    """Take the step of sharded parameters that need the whole of each."""
    if isinstance(config, SteepestConfig):
        _step_steepest(updates, config)
    else:
        for update in updates:  # one after the other, since each takes memory
            _step_on_every_rank(update, backend, config)


def _step_on_every_rank(update: Update, backend: Backend, config: Config) -> None:
    """Gather a parameter, its gradient and its state, take the full step, and keep the shard of this rank."""
    gathered = replace(update.mapped(whole), statistics=tuple(map(whole, update.statistics)))
    backend.step([gathered], config)
    for shard, full in zip(update.written()[:-1], gathered.written()[:-1], strict=True):  # all but the count
        local(shard).copy_(shards_of(full, shard))


class _Team(NamedTuple):
    """The ranks that hold the shards of a matrix. Its replicas, if there are any, have other teams."""

    mesh: DeviceMesh
    dims: tuple[int, ...]  # of the mesh, that shard it

    @classmethod
    def of(cls, param: Tensor) -> _Team:
        assert isinstance(param, DTensor)
        return cls(param.device_mesh, tuple(i for i, p in enumerate(param.placements) if not p.is_replicate()))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.mesh.size(dim) for dim in self.dims)

    @property
    def position(self) -> tuple[int, ...]:
        """This rank's position in the team."""
        own = coordinate(self.mesh, dist.get_rank())
        return tuple(own[dim] for dim in self.dims)

    def members(self) -> list[tuple[int, ...]]:
        return list(itertools.product(*map(range, self.shape)))

    def send(self, x: Tensor, source: tuple[int, ...]) -> None:
        """Send a tensor from the member at this position to all: along one dimension of the mesh after the other."""
        for i, dim in enumerate(self.dims):
            if self.position[i + 1 :] == source[i + 1 :]:
                dist.broadcast(x, group=self.mesh.get_group(dim), group_src=source[i])


def _step_steepest(updates: Sequence[Update], config: SteepestConfig) -> None:
    count([update.step for update in updates])
    teams: defaultdict[_Team, list[Update]] = defaultdict(list)
    for update in sorted(updates, key=lambda update: math.prod(update.param.shape), reverse=True):  # alike together
        teams[_Team.of(update.param)].append(update)
    for team, own in teams.items():
        members = team.members()
        for start in range(0, len(own), len(members)):
            _step_together(dict(zip(members, own[start : start + len(members)], strict=False)), team, config)


def _step_together(turn: dict[tuple[int, ...], Update], team: _Team, config: SteepestConfig) -> None:
    """One matrix for each member of the team."""
    sent: dict[tuple[int, ...], tuple[Tensor, ...]] = {}
    for member, update in turn.items():
        direction = _gathered(averaged(update.mapped(local), config), update.param)
        statistics = tuple([whole(v).contiguous() for v in update.statistics])
        if member == team.position:
            sent[member] = (change(replace(update, statistics=statistics), direction, config).contiguous(), *statistics)
    for member, update in turn.items():
        values = sent[member] if member in sent else _room(update)
        for value in values:
            team.send(value, member)
        shard = update.mapped(local)
        move(shard, shards_of(values[0], update.param).to(shard.param.device), config)  # it may be offloaded
        for kept, new in zip(update.statistics, values[1:], strict=True):
            local(kept).copy_(shards_of(new, kept))


def _gathered(shard: Tensor, param: Tensor) -> Tensor:
    """The full tensor of a shard that is laid out like the parameter's."""
    assert isinstance(param, DTensor)
    mesh, placements = param.device_mesh, param.placements
    full = DTensor.from_local(shard, mesh, placements, run_check=False, shape=param.shape, stride=param.stride())
    return full.full_tensor()


def _room(update: Update) -> tuple[Tensor, ...]:
    """Room for what another member sends."""
    param = update.param
    assert isinstance(param, DTensor)
    like = ((param, wide_dtype(param.dtype)), *((v, v.dtype) for v in update.statistics))
    return tuple(torch.empty(x.shape, dtype=dtype, device=param.device_mesh.device_type) for x, dtype in like)
