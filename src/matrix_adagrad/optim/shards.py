"""Parameters that are sharded over many machines: PyTorch's DTensors.

A statistic takes its parameter's own placements. A dimension that lies outside of the blocks is sharded as the
parameter's is: scales live with their rows. Where a dimension inside of the blocks is sharded, the statistic is
replicated, and the sums of squares are added up over exactly those dimensions of the mesh. Everything else is the
ordinary step on what lies here, and all decisions come from the whole parameter's shape.

`torch.distributed.tensor` takes a second to import: this module is for those who have it already.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from matrix_adagrad.domains import Domain
from matrix_adagrad.geometry import Geometry
from matrix_adagrad.optim.step import Batch, Parts, Rule, confine, way_in_parts
from matrix_adagrad.optim.streams import mixed

__all__ = [
    "Divided",
    "added_up",
    "confine_shards",
    "empty_statistic",
    "here",
    "localize",
    "part_of_domain",
    "put",
    "shard_number",
    "sharded_dim",
    "statistic_layout",
    "step_together",
    "taken_over",
    "total",
]


class Layout(NamedTuple):
    """How a statistic is laid over a mesh, and the mesh's dimensions that its blocks are divided over."""

    placements: tuple[Placement, ...]
    divided: tuple[int, ...]


@functools.lru_cache(maxsize=1 << 14)
def statistic_layout(geometry: Geometry, shape: torch.Size, placements: tuple[Placement, ...]) -> Layout:
    """The layout of the statistic of a parameter of this (whole) shape with these placements."""
    inside, parts = geometry.dims(shape), geometry.parts(shape)
    own: list[Placement] = []
    for placement in placements:
        dim = sharded_dim(placement)
        at = [] if dim is None else parts[dim]
        # A dimension that is cut into blocks may be sharded anywhere: its few scales are everywhere.
        own.append(_moved(placement, at[0]) if len(at) == 1 and at[0] not in inside else Replicate())
    pairs = enumerate(zip(placements, own, strict=True))
    divided = [i for i, (theirs, mine) in pairs if mine.is_replicate() and not theirs.is_replicate()]
    return Layout(tuple(own), tuple(divided))


def sharded_dim(placement: Placement) -> int | None:
    """The dimension that a placement divides, if it does."""
    return placement.dim if isinstance(placement, Shard | _StridedShard) else None


def _moved(placement: Placement, dim: int) -> Placement:
    """The same placement along another dimension."""
    if isinstance(placement, _StridedShard):
        return _StridedShard(dim, split_factor=placement.split_factor)
    return Shard(dim)


# --------------------------------------------------------------------------------------------------- what lies here


def here(x: Tensor) -> Tensor:
    """The part of a tensor that lies on this machine."""
    if not isinstance(x, DTensor):
        return x
    local = x.to_local()
    return local.wait() if hasattr(local, "wait") else local  # it may still be on its way


@functools.lru_cache(maxsize=1 << 10)
def _place(mesh: DeviceMesh, rank: int) -> tuple[int, ...]:
    """Where in a mesh a rank is.

    What depends on the own rank must ask for it: meshes compare equal on all ranks, and after a restart with other
    ranks torch's caches still hand out the old ones, which know the old place.
    """
    found = (mesh.mesh == rank).nonzero().tolist()
    return tuple(found[0]) if found else (0,) * mesh.ndim  # a rank outside of it holds nothing


def shard_number(param: DTensor) -> int:
    """A number for what lies here of a parameter: its replicas have the same, its other shards have others."""
    number = 0
    mesh = param.device_mesh
    for size, k, placement in zip(mesh.shape, _place(mesh, dist.get_rank()), param.placements, strict=True):
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
    """Which of this many slices along a dimension lie here, on this rank, in their order."""
    mesh = DeviceMesh(mesh.device_type, mesh.mesh, _init_backend=False)  # see `_place`
    own = [_moved(placement, 0) if sharded_dim(placement) == dim else Replicate() for placement in placements]
    everything = torch.arange(size, device=mesh.device_type)
    numbers = here(distribute_tensor(everything, mesh, own, src_data_rank=None)).cpu()
    if not len(numbers):
        return ()
    starts = [0, *(numbers.diff() != 1).nonzero()[:, 0].add(1).tolist(), len(numbers)]
    return tuple(range(int(numbers[a]), int(numbers[a]) + b - a) for a, b in itertools.pairwise(starts))


class _Piece(NamedTuple):
    """What lies here of a parameter, or a part of it that the kernels can take: where, in which shape, and its V."""

    where: tuple[slice, ...]
    shape: tuple[int, ...]
    scales: tuple[slice, ...]


_ALL = slice(None)


@functools.lru_cache(maxsize=1 << 14)
def _pieces(
    geometry: Geometry,
    shape: torch.Size,
    local: torch.Size,
    mesh: DeviceMesh,
    placements: tuple[Placement, ...],
    rank: int,
) -> tuple[_Piece, ...]:
    """One piece, unless a dimension is both cut into blocks and sharded: then one for each block that is met."""
    cut, inside, along = geometry.cut(shape), geometry.dims(shape), []
    for d, parts in enumerate(geometry.parts(shape)):
        sizes = [cut[part] for part in parts]
        if len(parts) == 1 or d not in map(sharded_dim, placements):
            along.append([_Piece((_ALL,), (local[d],) if len(parts) == 1 else tuple(sizes), (_ALL,) * len(parts))])
            continue
        along.append([])
        for start, numbers in _cut(_ranges(shape[d], d, mesh, placements, rank), sizes[-1]):
            end = start + len(numbers)
            extent = (*[1] * (len(parts) - 1), len(numbers))
            first = [int(k) for k in torch.unravel_index(torch.tensor(numbers.start), sizes)]
            scales = [slice(k, k + size) for k, size in zip(first, extent, strict=True)]
            scales = [_ALL if part in inside else own for part, own in zip(parts, scales, strict=True)]
            along[-1].append(_Piece((slice(start, end),), extent, tuple(scales)))
    joined = (zip(*pieces, strict=True) if pieces else ((), (), ()) for pieces in itertools.product(*along))
    return tuple(_Piece(*(tuple(itertools.chain(*field)) for field in fields)) for fields in joined)


def _cut(ranges: Iterable[range], length: int) -> Iterator[tuple[int, range]]:
    """Ranges, cut at the multiples of a length; each with its place among all of their numbers."""
    place = 0
    for whole in ranges:
        start = whole.start
        while start < whole.stop:
            end = min(whole.stop, (start // length + 1) * length)
            yield place, range(start, end)
            place, start = place + end - start, end


def _pieces_of(param: DTensor, geometry: Geometry) -> tuple[_Piece, ...]:
    return _pieces(geometry, param.shape, here(param).shape, param.device_mesh, param.placements, dist.get_rank())


def localize(batch: Batch, geometry: Geometry) -> tuple[Batch, Batch]:
    """What lies here of the parameters whose blocks do so as a whole, as plain tensors; and the other parameters."""
    whole, divided = Batch.empty(), []
    for i, param in enumerate(batch.params):
        if isinstance(param, DTensor) and statistic_layout(geometry, param.shape, param.placements).divided:
            divided.append(i)
            continue
        (piece,) = _pieces_of(param, geometry) if isinstance(param, DTensor) else [None]
        shape = geometry.cut(param.shape) if piece is None else piece.shape
        _append(whole, batch, i, [here(x).view(shape) for x in _full_size(batch, i)], here(batch.statistics[i]))
    return whole, batch.some(divided)


def _full_size(batch: Batch, i: int) -> list[Tensor]:
    """A parameter, its gradient, and the average of its gradients."""
    param, grad = batch.params[i], batch.grads[i]
    if isinstance(param, DTensor):
        if not isinstance(grad, DTensor):
            raise RuntimeError(
                f"a parameter of shape {tuple(param.shape)} is sharded over {param.placements}, and its gradient is a "
                "plain tensor: give a DTensor, such as distribute_tensor(grad, param.device_mesh, param.placements)"
            )
        if grad.placements != param.placements:  # a sum over the mesh, perhaps, that is not taken yet
            grad = grad.redistribute(param.device_mesh, param.placements)
    return [param, grad, *batch.averages[i : i + 1]]


def _append(to: Batch, batch: Batch, i: int, full_size: list[Tensor], statistic: Tensor, piece: int = 0) -> None:
    for values, x in zip(to[:3], full_size, strict=False):
        values.append(x)
    to.statistics.append(statistic)
    to.steps.append(batch.steps[i])
    to.members.append(batch.members[i])
    to.lone.append(statistic.numel() == 1 < batch.statistics[i].numel())
    to.numbers.append(mixed(batch.numbers[i], piece) if piece else batch.numbers[i])


# ------------------------------------------------------------------------------------------- blocks on many machines


class _Group(NamedTuple):
    """Machines that add up, and the kind of device on which they can: parameters may be offloaded from it."""

    processes: dist.ProcessGroup
    device_type: str


class Divided:
    """The step of parameters whose blocks are divided over a mesh: `read`, then add up the sums, then `finish`."""

    def __init__(self, batch: Batch, rule: Rule, group: Mapping[str, Any]) -> None:
        self._rule = rule
        self._statistics = batch._replace(statistics=[here(statistic) for statistic in batch.statistics])
        self._pieces, self._places = Batch.empty(), []
        self.groups: list[list[_Group]] = []  # of each parameter: those that its sums are added up over
        for i, param in enumerate(batch.params):
            assert isinstance(param, DTensor)
            layout = statistic_layout(rule.geometry, param.shape, param.placements)
            mesh = param.device_mesh
            over = [dim for dim in layout.divided if mesh.size(dim) > 1]
            self.groups.append([_Group(mesh.get_group(dim), mesh.device_type) for dim in over])
            full_size, statistic = [here(x) for x in _full_size(batch, i)], self._statistics.statistics[i]
            for number, piece in enumerate(_pieces_of(param, rule.geometry)):
                parts = [x[piece.where].view(piece.shape) for x in full_size]
                if parts[0].numel():
                    _append(self._pieces, batch, i, parts, statistic[piece.scales], number)
                    self._places.append((i, piece.scales))
        self._way: Parts = way_in_parts(self._pieces, group)
        self.sums: list[Tensor] = []

    def read(self) -> None:
        """The squares of what lies here."""
        sums: dict[int, Tensor] = {}
        squares = self._way.read(self._pieces, self._rule) if self._places else []
        for (i, scales), own in zip(self._places, squares, strict=True):
            statistic = self._statistics.statistics[i]
            if i not in sums and own.shape == statistic.shape:
                sums[i] = own
            else:
                sums.setdefault(i, torch.zeros_like(statistic))[scales] += own
        self.sums = [sums[i] if i in sums else torch.zeros_like(v) for i, v in enumerate(self._statistics.statistics)]

    def finish(self) -> None:
        """The rest of the step, with sums that are complete."""
        self._way.accumulate(self._statistics, self.sums, self._rule)
        if self._places:
            self._way.move(self._pieces, self._rule)


def step_together(divided: list[Divided], work: list[Callable[[], None]]) -> None:
    """Take the steps of divided parameters, and do other work while their sums are on the way."""
    calls = _add_up(divided)
    next(calls, None)
    for run in work:
        run()
    for _ in calls:
        pass
    for step in divided:
        step.finish()


def _add_up(steps: list[Divided]) -> Iterator[None]:
    """Read all gradients, and add up their sums with one call for each dimension of a mesh.

    Pauses while a call is on its way, for work that does not need the sums.
    """
    for step in steps:
        step.read()
    pairs = [pair for step in steps for pair in zip(step.sums, step.groups, strict=True)]
    for group in dict.fromkeys(itertools.chain.from_iterable(groups for _, groups in pairs)):
        sums = [own for own, groups in pairs if group in groups]
        flat = torch.cat([own.flatten().to(group.device_type) for own in sums])
        call = dist.all_reduce(flat, group=group.processes, async_op=True)
        yield
        call.wait()
        for own, total in zip(sums, flat.split([own.numel() for own in sums]), strict=True):
            own.copy_(total.view(own.shape))


# ------------------------------------------------------------------------------------------------------------- state


def empty_statistic(
    param: DTensor,
    geometry: Geometry,
    empty_like: Callable[[Tensor, tuple[int, ...], torch.dtype], Tensor],
    dtype: torch.dtype,
) -> Tensor:
    """A statistic of the parameter's, in its own layout; ``empty_like`` makes a plain one."""
    shape = geometry.statistic_shape(param.shape)
    layout = statistic_layout(geometry, param.shape, param.placements)
    sizes = list(shape)
    for theirs, mine in zip(map(sharded_dim, param.placements), map(sharded_dim, layout.placements), strict=True):
        if theirs is not None and mine is not None:
            sizes[mine] = here(param).shape[theirs]
    local = empty_like(here(param), tuple(sizes), dtype)
    strides = empty_like(torch.empty_strided(param.shape, param.stride(), device="meta"), shape, dtype).stride()
    statistic: Tensor = DTensor.from_local(
        local, param.device_mesh, layout.placements, run_check=False, shape=torch.Size(shape), stride=strides
    )
    return statistic.to(local.device)  # the parameter may be offloaded from the mesh's devices


def taken_over(value: Tensor, like: Tensor) -> Tensor:
    """A saved value, whole or in shards, as the part of it that belongs where ``like`` lies."""
    if not isinstance(like, DTensor):
        return value.full_tensor() if isinstance(value, DTensor) else value
    if isinstance(value, DTensor):
        return here(value.redistribute(like.device_mesh, like.placements))
    return here(distribute_tensor(value.detach(), like.device_mesh, like.placements, src_data_rank=None))


# ----------------------------------------------------------------------------------------------------------- domains


def part_of_domain(param: DTensor, domain: Domain) -> tuple[Tensor, Domain, bool]:
    """The rows that lie here and their domain, if they have one of their own; else the whole parameter, gathered.

    And whether it is the rows: all ranks agree on that, also one that happens to hold all of them.
    """
    if domain.is_separable_by_rows(param.shape) and {*map(sharded_dim, param.placements)} <= {0, None}:
        ranges = _ranges(param.shape[0], 0, param.device_mesh, param.placements, dist.get_rank())
        rows = [torch.arange(own.start, own.stop, device=here(param).device) for own in ranges]
        empty = torch.empty(0, dtype=torch.int64, device=here(param).device)
        return here(param), domain.of_rows(torch.cat([empty, *rows]), param.shape), True
    return param.full_tensor(), domain, False


def put(param: DTensor, whole: Tensor) -> None:
    """Write what lies here of a parameter that was gathered."""
    here(param).copy_(taken_over(whole, param))


def confine_shards(batch: Batch, rule: Rule, domain: Domain) -> None:
    """`confine` for parameters some of which are sharded."""
    for i, param in enumerate(batch.params):
        one = batch.some([i])
        if not isinstance(param, DTensor):
            confine(one, rule, domain)
            continue
        statistic = batch.statistics[i]
        assert isinstance(statistic, DTensor)
        x, own, is_part = part_of_domain(param, domain)
        if is_part and own.depends_on_metric and statistic.dim() != param.dim():  # scales of blocks that rows share
            x, own, is_part = param.full_tensor(), domain, False
        scales = here(statistic) if is_part or not own.depends_on_metric else statistic.full_tensor()
        confine(one._replace(params=[x], grads=[x], statistics=[scales]), rule, own)
        if not is_part:
            put(param, x)


def total(value: float, param: DTensor, how: str = "sum") -> float:
    """The sum (or ``"max"``) of a number over the machines that the parameter is divided over."""
    placements = [Replicate() if placement.is_replicate() else Partial(how) for placement in param.placements]
    number = torch.tensor(value, device=param.device_mesh.device_type)
    return float(DTensor.from_local(number, param.device_mesh, placements, run_check=False).full_tensor())


def added_up(own: Tensor, param: DTensor, geometry: Geometry) -> Tensor:
    """The whole statistic of a parameter, of which each machine has what its own part adds."""
    shape, layout = geometry.statistic_shape(param.shape), statistic_layout(geometry, param.shape, param.placements)
    placements = [Partial() if i in layout.divided else placement for i, placement in enumerate(layout.placements)]
    stride = torch.empty(shape, device="meta").stride()
    parts = DTensor.from_local(
        own, param.device_mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride
    )
    return parts.full_tensor()
