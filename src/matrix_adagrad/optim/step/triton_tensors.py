"""Tensors as the Triton kernels see them: rows of a table, cut into tiles."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from matrix_adagrad.geometry import Entry, Partition
from matrix_adagrad.native.matrices import (
    PER_BOTH,
    PER_ENTRY,
    PER_INNER,
    PER_OUTER,
    PER_TENSOR,
    NotCoveredError,
    StepKind,
)
from matrix_adagrad.optim.step.config import Config, SteepestConfig
from matrix_adagrad.optim.step.native import covers, measured_directions, statistics_layout
from matrix_adagrad.optim.step.update import NARROW, PLAIN, Update, are_plain
from matrix_adagrad.torch_private import is_zero_tensor, sparse_values

__all__ = ["AXES", "RUN", "Description", "Kind", "describe", "describe_move", "freed", "is_empty", "power_of_2", "up"]

# How tensors are cut into tiles. It follows from shapes alone, so sums have the same order in every run.
TILE = 4096  # entries of a tile that is read once
LONGEST = 16384  # entries of a row that still fits one tile
SUMMED_TILE, SUMMED_COLUMNS = 2048, 128  # entries and columns of a tile whose columns are summed
PROGRAMS, TALLEST = 4096, 16  # programs to aim for, and tiles that one of them takes at most
FINISHED = 1024  # partial sums that are added up together
RUN = 32  # entries of a sparse gradient that one program sums

_DTYPES = (torch.float32, *NARROW)
AXES = {"whole": 2, "outer": 0, "inner": 1}  # in the order in which statistics are finished
_SUMMED = {PER_OUTER: ("outer",), PER_INNER: ("inner",), PER_TENSOR: ("whole",)}


class _Tiles(NamedTuple):
    """How a matrix is cut. A program takes one tile, or several below each other."""

    outer: int  # rows of a tile
    inner: int  # columns of a tile
    height: int  # rows of a program
    chunks: int  # programs down
    across: int  # programs across
    has_blocks: bool  # whether a tile holds whole blocks: then one pass does everything

    @classmethod
    def of(cls, kind: int, outer: int, inner: int, *, is_sparse: bool) -> _Tiles:
        """The tiles for a matrix of this size, whose entries share scales in this way."""
        has_blocks = kind == PER_ENTRY or (kind == PER_OUTER and inner <= LONGEST)
        sums_columns = kind in (PER_INNER, PER_BOTH)
        entries = SUMMED_TILE if sums_columns else TILE
        widest = LONGEST if kind == PER_OUTER and has_blocks else SUMMED_COLUMNS if sums_columns else TILE
        is_flat = outer == 1 and kind in (PER_ENTRY, PER_TENSOR) and not is_sparse
        wide = widest if is_flat else min(power_of_2(inner), widest)
        high = max(1, entries // wide)  # also of a tensor with fewer rows: it is of one kind with larger ones
        across, height = up(inner, wide), high
        if sums_columns:
            height *= min(TALLEST, power_of_2(across * up(outer, high) // PROGRAMS))
        return cls(high, wide, height, up(outer, height), across, has_blocks)


def up(number: int, by: int) -> int:
    """A quotient, rounded up."""
    return -(-number // by)


def power_of_2(number: int) -> int:
    """The smallest power of 2 that is at least this number."""
    return 1 << max(0, number - 1).bit_length()


class Kind(NamedTuple):
    """What tensors have in common that are stepped together: kernels are compiled for it."""

    device: torch.device
    layout: int  # which entries share a scale
    x: torch.dtype
    g: torch.dtype
    average: torch.dtype
    combine: int
    is_aligned: bool  # rows lie at multiples of 16 bytes, without gaps
    is_sparse: bool
    is_step_on_device: bool
    tile: tuple[int, int]
    has_blocks: bool
    finished: tuple[tuple[str, int, int], ...]  # the statistics whose sums are added up later, and by which tiles
    is_direction: bool = False  # whether torch's operators go on with what x moves along


@dataclass(eq=False)
class Description:
    """A tensor as a row of the kernels' table."""

    kind: Kind
    words: dict[str, int]
    programs: dict[str, int]  # of a launch over tiles, and of one for each statistic
    room: dict[str, int]  # float32 numbers that are needed between launches
    written: list[Tensor]
    g: int  # where the gradient is, and the bytes of parameter and gradient
    x_bytes: int
    g_bytes: int
    launch: Any = None  # the last one that began with this tensor

    def is_like(self, other: Description) -> bool:
        """Whether another description says the same, wherever the gradient is."""
        return (self.kind, self.words, self.programs, self.room) == (
            other.kind,
            other.words,
            other.programs,
            other.room,
        )


def is_empty(update: Update) -> bool:
    """Whether a plain tensor, or its gradient, has no entries."""
    g = update.grad
    return are_plain((update.param, g)) and 0 in (
        update.param.numel(),
        (sparse_values(g) if g.is_sparse else g).numel(),
    )


def freed(x: Tensor) -> RuntimeError:
    """The error for a tensor without memory."""
    return RuntimeError(
        f"the memory of a parameter of shape {tuple(x.shape)}, its gradient or its state has been freed"
    )


def describe(update: Update, config: Config) -> Description:
    """Describe one tensor for the kernels. Raise an error if they do not support it."""
    if not isinstance(config, SteepestConfig):
        if not covers(update.geometry):
            raise NotCoveredError(f"{type(update.geometry).__name__} is not a partition, or has a scale of its own")
        return _described(update, list(update.statistics), config)
    partition = update.geometry
    if isinstance(partition, Partition) and type(partition).steepest is Partition.steepest and not config.floor:
        return _described(measured_directions(update, config), [], config)
    if config.rescale is not None or config.capturable or update.grad.is_sparse:
        raise NotCoveredError("rescale, and capturable or sparse steps in other norms, are for torch's operators")
    direction = torch.empty_like(update.param, dtype=torch.float32, device="meta")
    described = _described(replace(update, geometry=Entry(), statistics=(direction,), divisors=(1,)), [], config)
    described.kind = described.kind._replace(is_direction=True)
    return described


def describe_move(update: Update, size: float, config: Config) -> Description:
    """Describe a parameter that moves by so many times its gradient."""
    described = _described(replace(update, geometry=Entry(), statistics=(update.param,), divisors=(1,)), [], config)
    (described.words["divisor"],) = struct.unpack("=i", struct.pack("=f", size))
    described.g = update.grad.data_ptr()
    return described


def _described(update: Update, kept: list[Tensor], config: Config) -> Description:
    is_sparse = update.grad.is_sparse
    x, g, average = update.param, update.grad, [] if update.average is None else [update.average]
    values = sparse_values(g) if is_sparse else g
    if reason := _reason(x, values, average, kept, update.step):
        raise NotCoveredError(reason)
    if is_sparse and (config.domain is not None or update.lag is not None):
        raise NotCoveredError("a domain and lazy='exact' need a list of the rows that its sparse gradient touches")
    if values.shape[is_sparse:] != x.shape[is_sparse:] or any(own.shape != x.shape for own in average):
        raise NotCoveredError(f"it has shape {tuple(x.shape)}, and its gradient or its average has another")
    places = [own.data_ptr() for own in (x, values, *average, *[v for v in kept if not v.is_meta], update.step)]
    if not all(places):
        raise freed(x)
    if update.is_single_block:
        raise NotCoveredError("it is one block of a tensor that is sharded by blocks")
    # Sorted and summed by rows, values are contiguous.
    g_strides = torch.empty(values.shape, device="meta").stride() if is_sparse else g.stride()
    step = StepKind.SPARSE if is_sparse else StepKind.DENSE
    layout, v, divisors, combine = statistics_layout(update, g_strides, step)
    outer, inner = len(values) if is_sparse else layout.outer, layout.inner
    tiles = _Tiles.of(layout.kind, outer, inner, is_sparse=is_sparse)

    words = {"x": x.data_ptr(), "outer": outer, "inner": inner}
    words |= {"chunk": tiles.height, "chunks": tiles.chunks, "tiles": tiles.across}
    arrays = zip(("x", "g", "average", "v", "columns", "whole"), layout.strides, strict=False)
    words |= {f"{name}_{part}": stride for name, own in arrays for part, stride in zip(_PARTS, own, strict=True)}
    if outer == 1 and not is_sparse:  # no stride matters
        words |= {f"{name}_outer": 0 for name in ("x", "g", "average", "v")}
    words |= {name: own.data_ptr() for name, own in zip(("v", "columns", "whole"), kept and v, strict=False)}
    words |= dict(zip(("divisor", "columns_divisor", "whole_divisor"), divisors, strict=False))
    if is_sparse:
        words["rows"] = len(x)
    if average:
        words["average"] = average[0].data_ptr()
    if on_device := update.step.device == x.device and (config.capturable or not update.step.is_cpu):
        words["step"] = update.step.data_ptr()

    summed = () if tiles.has_blocks else _SUMMED.get(layout.kind, tuple(AXES)[len(v) < 3 :])
    sizes = {"whole": 1, "outer": outer, "inner": inner}
    parts = {"whole": tiles.chunks * tiles.across, "outer": tiles.across, "inner": tiles.chunks}
    finished, programs, room = [], {"tiles": layout.matrices * tiles.chunks * tiles.across}, {}
    for name in summed:
        together = FINISHED
        if sizes[name] > 1 or (is_sparse and name != "whole"):  # 1 or 16 or many: few kinds, whatever the batch
            together = min(1 << 4 * up((parts[name] - 1).bit_length(), 4), FINISHED // 8)
        block = FINISHED // together
        finished.append((name, block, together))
        programs[name] = layout.matrices * up(sizes[name], block)
        room[f"sums_{name}"] = layout.matrices * sizes[name] * parts[name]
        room[f"factor_{name}"] = layout.matrices * sizes[name]
    kind = Kind(
        device=x.device,
        layout=layout.kind,
        x=x.dtype,
        g=torch.float32 if is_sparse else g.dtype,
        average=average[0].dtype if average else torch.float32,
        combine=combine,
        is_aligned=_is_aligned(words, layout.kind),
        is_sparse=is_sparse,
        is_step_on_device=on_device,
        tile=(tiles.outer, tiles.inner),
        has_blocks=tiles.has_blocks,
        finished=tuple(finished),
    )
    spans = layout.x_span * x.itemsize, (0 if is_sparse else layout.g_span * g.itemsize)
    return Description(kind, words, programs, room, [x, *average, *kept, update.step], 0, *spans)


_PARTS = ("batch", "outer", "inner")


def _is_aligned(words: dict[str, int], kind: int) -> bool:
    """Whether all rows of the full-size tensors lie at multiples of 16, the gradient aside, and have no gaps."""
    names = ["x", "g", *(["average"] if "average" in words else []), *(["v"] if kind == PER_ENTRY else [])]
    strides = [words[f"{name}_{part}"] for name in names for part in _PARTS[:2]]
    places = [words[name] for name in names if name != "g" and name in words]
    return all(n % 16 == 0 for n in (words["inner"], *strides, *places)) and all(
        words[f"{name}_inner"] == 1 for name in names
    )


def _reason(x: Tensor, g: Tensor, average: list[Tensor], statistics: list[Tensor], step: Tensor) -> str:
    tensors = (x, g, *average, *statistics)
    if any(own.device != x.device for own in tensors) or not (step.is_cpu or step.device == x.device):
        return "its gradient or state is on another device"
    if not (are_plain((x, *average, *statistics, step)) and (type(g) in PLAIN or are_plain((g,)))):
        return "it, its gradient or its state is a subclass of tensors"
    if any(own.layout is not torch.strided or own.is_neg() or is_zero_tensor(own) for own in tensors):
        return "its gradient or state is no plain array"
    if x.dtype not in _DTYPES or g.dtype not in _DTYPES or any(v.dtype is not torch.float32 for v in statistics):
        return f"it is in {x.dtype}, and its gradient in {g.dtype}"
    if any(own.dtype not in (torch.float32, torch.bfloat16) for own in average) or step.dtype is not torch.float32:
        return f"its average or its step count has another dtype than {torch.float32}"
    return ""
