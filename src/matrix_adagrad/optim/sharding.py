"""Parameters sharded over many ranks: PyTorch's DTensors.

A statistic follows its parameter's placements. A dimension outside the blocks is sharded like the parameter's: scales
live with their rows. If a dimension inside the blocks is sharded, the statistic is replicated, and the sums of squares
are all-reduced over exactly those mesh dimensions. A geometry with several statistics has a layout for each: the one of
its partition. Everything else is the ordinary step on the local shard. All decisions depend on the full parameter's
shape. Geometries that need the full gradient are in whole_matrices.py.

`torch.distributed.tensor` takes a second to import, so this module is imported at the first DTensor.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import Placement

from matrix_adagrad.domains import Domain
from matrix_adagrad.geometry import Geometry, Partition
from matrix_adagrad.optim.step.config import Config
from matrix_adagrad.optim.step.project import project
from matrix_adagrad.optim.step.update import Update, empty_like, local, mixed
from matrix_adagrad.torch_private import StridedShard, mesh_without_groups

__all__ = [
    "SplitUpdate",
    "all_reduce",
    "coordinate",
    "domain_of_shard",
    "empty_statistics",
    "localize",
    "project_shards",
    "redistributed",
    "shard_number",
    "sharded_dim",
    "shards_of",
    "statistic_layout",
    "statistic_layouts",
    "sum_over_shards",
    "whole",
    "whole_statistic",
    "with_whole_blocks",
]


class StatisticLayout(NamedTuple):
    """How a statistic is laid out over a mesh, and the mesh dimensions that its blocks are split over."""

    placements: tuple[Placement, ...]
    divided: tuple[int, ...]


@functools.lru_cache(maxsize=1 << 14)
def statistic_layouts(
    geometry: Geometry, shape: torch.Size, placements: tuple[Placement, ...]
) -> tuple[StatisticLayout, ...]:
    """The layout of each statistic for a parameter with this full shape and these placements."""
    kept = (*geometry.statistics, *geometry.derived)
    partitions = geometry.sharded_as(shape) or (geometry.independent_blocks(shape),) * len(kept)
    return tuple([statistic_layout(partition, shape, placements) for partition in partitions])


@functools.lru_cache(maxsize=1 << 14)
def statistic_layout(partition: Partition, shape: torch.Size, placements: tuple[Placement, ...]) -> StatisticLayout:
    """The layout of a partition's statistic."""
    along = partition.sharded_dims(shape)
    kept: list[Placement] = []
    divided = []
    for i, placement in enumerate(placements):
        dim = sharded_dim(placement)
        kept.append(Replicate() if dim is None or dim not in along else _moved(placement, along[dim]))
        if kept[-1].is_replicate() and not placement.is_replicate():
            divided.append(i)
    return StatisticLayout(tuple(kept), tuple(divided))


def sharded_dim(placement: Placement) -> int | None:
    """The dimension that a placement shards, if any."""
    return placement.dim if isinstance(placement, Shard | StridedShard) else None


def _moved(placement: Placement, dim: int) -> Placement:
    """The same placement along another dimension."""
    if isinstance(placement, StridedShard):
        return StridedShard(dim, split_factor=placement.split_factor)
    return Shard(dim)


# ---------------------------------------------------------------------------------------------------- the local shard


@functools.lru_cache(maxsize=1 << 10)
def coordinate(mesh: DeviceMesh, rank: int) -> tuple[int, ...]:
    """A rank's coordinate in a mesh.

    Code that depends on the current rank must ask for it here. Meshes compare equal on all ranks, and after a restart
    with other ranks, torch's caches still return the old meshes, with the old coordinate.
    """
    found = (mesh.mesh == rank).nonzero().tolist()
    return tuple(found[0]) if found else (0,) * mesh.ndim  # a rank outside the mesh holds nothing


def shard_number(param: Tensor) -> int:
    """A number that identifies the local shard: the same on its replicas, different for other shards."""
    assert isinstance(param, DTensor)
    number, mesh = 0, param.device_mesh
    for size, k, placement in zip(mesh.shape, coordinate(mesh, dist.get_rank()), param.placements, strict=True):
        number = number if placement.is_replicate() else number * size + k
    return number


@functools.lru_cache(maxsize=1 << 10)
def _ranges(
    size: int,
    dim: int,
    mesh: DeviceMesh,
    placements: tuple[Placement, ...],
    rank: int,  # noqa: ARG001
) -> tuple[range, ...]:
    """Which of this many slices along a dimension this rank holds, in order."""
    mesh = mesh_without_groups(mesh.device_type, mesh.mesh)  # see `coordinate`
    own = [_moved(placement, 0) if sharded_dim(placement) == dim else Replicate() for placement in placements]
    everything = torch.arange(size, device=mesh.device_type)
    numbers = local(distribute_tensor(everything, mesh, own, src_data_rank=None)).cpu()
    if not len(numbers):
        return ()
    starts = [0, *(numbers.diff() != 1).nonzero()[:, 0].add(1).tolist(), len(numbers)]
    return tuple(range(int(numbers[a]), int(numbers[a]) + b - a) for a, b in itertools.pairwise(starts))


class _Piece(NamedTuple):
    """A local shard, or a part of it whose blocks form a matrix: its location, its shape, and its statistics'."""

    where: tuple[slice, ...]
    shape: tuple[int, ...]
    scales: tuple[slice, ...]  # in every statistic: there is only one where a shard has several pieces


_ALL = slice(None)


@functools.lru_cache(maxsize=1 << 14)
def _pieces(
    geometry: Geometry,
    shape: torch.Size,
    local_shape: torch.Size,
    mesh: DeviceMesh,
    placements: tuple[Placement, ...],
    rank: int,
) -> tuple[_Piece, ...]:
    """One piece, unless a dimension is both cut into blocks and sharded. Then there is one per block on this rank."""
    cut, along = geometry.cut(shape), []
    if len(cut) == len(shape):
        return (_Piece((), local_shape, ()),)
    (partition,) = geometry.partitions  # no other geometry is cut
    inside = partition.dims(shape)
    for d, parts in enumerate(partition.parts(shape)):
        sizes = tuple(cut[part] for part in parts)
        if len(parts) == 1:
            along.append([_Piece((_ALL,), (local_shape[d],), (_ALL,))])
        elif d not in map(sharded_dim, placements):
            along.append([_Piece((_ALL,), sizes, (_ALL,) * len(parts))])
        else:
            ranges = _ranges(shape[d], d, mesh, placements, rank)
            along.append([*_pieces_along(ranges, sizes, [part in inside for part in parts])])
    joined = (zip(_Piece((), (), ()), *pieces, strict=True) for pieces in itertools.product(*along))
    return tuple(_Piece(*(tuple(itertools.chain(*field)) for field in fields)) for fields in joined)


def _pieces_along(ranges: Iterable[range], sizes: tuple[int, ...], is_inside: Sequence[bool]) -> Iterator[_Piece]:
    """Ranges of a dimension that is viewed in these sizes, cut where the last of them ends."""
    offset = 0
    for numbers in ranges:
        start = numbers.start
        while start < numbers.stop:
            length = min(numbers.stop - start, sizes[-1] - start % sizes[-1])
            shape = (*[1] * (len(sizes) - 1), length)
            first = map(int, torch.unravel_index(torch.tensor(start), sizes))
            scales = [_ALL if inside else slice(k, k + n) for k, n, inside in zip(first, shape, is_inside, strict=True)]
            yield _Piece((slice(offset, offset + length),), shape, tuple(scales))
            offset, start = offset + length, start + length


def localize(update: Update) -> Update | SplitUpdate:
    """Turn the step of a DTensor that need not be gathered into a step of plain tensors on this rank."""
    param, geometry, shard = update.param, update.geometry, redistributed(update).mapped(local)
    assert isinstance(param, DTensor)
    mesh, placements, statistics = param.device_mesh, param.placements, tuple(map(local, update.statistics))
    pieces = _pieces(geometry, param.shape, shard.param.shape, mesh, placements, dist.get_rank())
    layouts = statistic_layouts(geometry, param.shape, placements)
    parts = [
        replace(
            shard.mapped(lambda x: x[piece.where].view(piece.shape)),  # noqa: B023
            statistics=tuple([statistic[piece.scales] for statistic in statistics]),
            stream=mixed(update.stream, number) if number and update.stream else update.stream,
        )
        for number, piece in enumerate(pieces)
    ]
    for part in parts:
        part.is_single_block = part.statistics[0].numel() == 1 < update.statistics[0].numel()
    if not any(layout.divided for layout in layouts):
        return parts[0]
    groups = [
        [_Group(mesh.get_group(dim), mesh.device_type) for dim in layout.divided if mesh.size(dim) > 1]
        for layout in layouts
    ]
    split = SplitUpdate(replace(update, statistics=statistics), groups)
    for part, piece in zip(parts, pieces, strict=True):
        if part.param.numel():
            part.sums = tuple(map(torch.empty_like, part.statistics))
            split.pieces.append(part)
            split.places.append(piece.scales)
    return split


def redistributed(update: Update) -> Update:
    """The update with a gradient that has the parameter's placements."""
    param, grad = update.param, update.grad
    assert isinstance(param, DTensor)
    if not isinstance(grad, DTensor):
        raise RuntimeError(
            f"a parameter of shape {tuple(param.shape)} is sharded over {param.placements}, and its gradient is a "
            "plain tensor: give a DTensor, such as distribute_tensor(grad, param.device_mesh, param.placements)"
        )
    if grad.placements == param.placements:
        return update
    return replace(update, grad=grad.redistribute(param.device_mesh, param.placements))  # perhaps a pending sum


def with_whole_blocks(update: Update) -> Update | None:
    """The local part of a DTensor, if none of the blocks that its geometry treats on their own is split over ranks."""
    param, geometry = update.param, update.geometry
    assert isinstance(param, DTensor)
    if statistic_layout(geometry.independent_blocks(param.shape), param.shape, param.placements).divided:
        return None
    shard, own = redistributed(update).mapped(local), geometry.viewed(param.shape)
    if own is not geometry:
        place = geometry, param.shape, shard.param.shape, param.device_mesh, param.placements
        (piece,) = _pieces(*place, dist.get_rank())
        shard = shard.mapped(lambda x: x.view(piece.shape))
    is_single_block = own.scales(shard.param.shape) == 1 < geometry.scales(param.shape)
    statistics = tuple(map(local, update.statistics))
    return replace(shard, statistics=statistics, geometry=own, is_single_block=is_single_block)


def whole(x: Tensor) -> Tensor:
    """The full tensor of a DTensor, gathered, or the tensor itself if it is not a DTensor."""
    return x.full_tensor() if isinstance(x, DTensor) else x


# ----------------------------------------------------------------------------------------------- blocks on many ranks


class _Group(NamedTuple):
    """Ranks that all-reduce together, and the device type they can do it on: parameters may be offloaded from it."""

    processes: dist.ProcessGroup
    device_type: str


@dataclass
class SplitUpdate:
    """A parameter whose blocks span several ranks: sums are read, all-reduced over groups of ranks, then it moves."""

    update: Update  # with the local shards of the statistics
    groups: list[list[_Group]]  # that all-reduce the sums of each statistic, if any
    pieces: list[Update] = field(default_factory=list)
    places: list[tuple[slice, ...]] = field(default_factory=list)  # where each piece's scales are in the statistics
    sums: tuple[Tensor, ...] = field(init=False)  # over the blocks of each statistic

    def add_up(self) -> None:
        """Add up what was read from the pieces."""
        self.sums = tuple(map(torch.zeros_like, self.update.statistics))
        for place, piece in zip(self.places, self.pieces, strict=True):
            for total, part in zip(self.sums, piece.sums, strict=True):
                total[place] += part


def all_reduce(parameters: Sequence[SplitUpdate]) -> Iterator[None]:
    """All-reduce all sums, with one call per mesh dimension.

    Yields while a call is in flight, for work that does not need the sums.
    """
    for parameter in parameters:
        parameter.add_up()
    pairs = [pair for parameter in parameters for pair in zip(parameter.sums, parameter.groups, strict=True)]
    for group in dict.fromkeys(itertools.chain.from_iterable(groups for _, groups in pairs)):
        sums = [part for part, groups in pairs if group in groups]
        flat = torch.cat([part.flatten().to(group.device_type) for part in sums])
        call = dist.all_reduce(flat, group=group.processes, async_op=True)
        yield
        call.wait()
        for part, total in zip(sums, flat.split([part.numel() for part in sums]), strict=True):
            part.copy_(total.view(part.shape))


# ------------------------------------------------------------------------------------------------------------- state


def empty_statistics(param: Tensor, geometry: Geometry, dtype: torch.dtype) -> list[Tensor]:
    """A parameter's statistics, laid out as the geometry says."""
    assert isinstance(param, DTensor)
    mesh, statistics = param.device_mesh, []
    layouts = statistic_layouts(geometry, param.shape, param.placements)
    shapes = (*geometry.statistic_shapes(param.shape), *geometry.derived_shapes(param.shape))
    for (placements, _), shape in zip(layouts, map(torch.Size, shapes), strict=True):
        sizes = list(shape)
        for param_dim, dim in zip(map(sharded_dim, param.placements), map(sharded_dim, placements), strict=True):
            if param_dim is not None and dim is not None:
                sizes[dim] = local(param).shape[param_dim]
        shard = empty_like(local(param), tuple(sizes), dtype)
        strides = empty_like(torch.empty_strided(param.shape, param.stride(), device="meta"), shape, dtype).stride()
        statistic = DTensor.from_local(shard, mesh, placements, run_check=False, shape=shape, stride=strides)
        statistics.append(statistic.to(shard.device))  # the parameter may be offloaded from the mesh's devices
    return statistics


def shards_of(value: Tensor, like: Tensor) -> Tensor:
    """A full or differently sharded value, resharded like ``like``."""
    if not isinstance(like, DTensor):
        return whole(value)
    if isinstance(value, DTensor):
        return local(value.redistribute(like.device_mesh, like.placements))
    return local(distribute_tensor(value.detach(), like.device_mesh, like.placements, src_data_rank=None))


# ----------------------------------------------------------------------------------------------------------- domains


def domain_of_shard(param: DTensor, domain: Domain) -> tuple[Tensor, Domain, bool]:
    """The local rows and their domain, if the domain is separable by rows. Otherwise the full parameter, gathered.

    The last value says whether it is the rows. All ranks agree on it, even a rank that happens to hold all rows.
    """
    if domain.is_separable_by_rows(param.shape) and {*map(sharded_dim, param.placements)} <= {0, None}:
        ranges = _ranges(param.shape[0], 0, param.device_mesh, param.placements, dist.get_rank())
        rows = [torch.arange(some.start, some.stop, device=local(param).device) for some in (range(0), *ranges)]
        return local(param), domain.of_rows(torch.cat(rows), param.shape), True
    return param.full_tensor(), domain, False


def project_shards(update: Update, config: Config, domain: Domain) -> None:
    """`project` for a sharded parameter."""
    param = update.param
    assert isinstance(param, DTensor)
    x, own_domain, is_rows = domain_of_shard(param, domain)
    # The statistics may be those of the full parameter, or of blocks that rows share in groups.
    are_local = bool(update.geometry.sharded_as(param.shape))
    rows_have_scales = are_local and len(update.geometry.cut(param.shape)) == param.dim()
    if is_rows and domain.depends_on_metric and not rows_have_scales:
        x, own_domain, is_rows = param.full_tensor(), domain, False
    as_needed = local if is_rows or not domain.depends_on_metric else whole
    statistics = tuple(map(as_needed, update.statistics))
    project(replace(update, param=x, grad=x, statistics=statistics), config, own_domain)
    if not is_rows:
        local(param).copy_(shards_of(x, param))


def sum_over_shards(value: float, param: DTensor, how: str = "sum") -> float:
    """The sum (or ``"max"``) of a number over the ranks that the parameter is sharded over."""
    placements = [Replicate() if placement.is_replicate() else Partial(how) for placement in param.placements]
    number = torch.tensor(value, device=param.device_mesh.device_type)
    return float(DTensor.from_local(number, param.device_mesh, placements, run_check=False).full_tensor())


def whole_statistic(shard: Tensor, param: DTensor, geometry: Partition) -> Tensor:
    """A parameter's full statistic, summed from each rank's shard."""
    shape, layout = geometry.statistic_shape(param.shape), statistic_layout(geometry, param.shape, param.placements)
    placements = [Partial() if i in layout.divided else placement for i, placement in enumerate(layout.placements)]
    stride = torch.empty(shape, device="meta").stride()
    mesh, size = param.device_mesh, torch.Size(shape)
    return DTensor.from_local(shard, mesh, placements, run_check=False, shape=size, stride=stride).full_tensor()
