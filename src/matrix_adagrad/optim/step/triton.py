"""The step on GPUs: a few launches of Triton kernels for a whole list of tensors.

The kernels are in `triton_kernels.py`, which imports Triton. Nothing does before a tensor on a GPU takes a step.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import logging
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from matrix_adagrad.native.matrices import (
    PER_BOTH,
    PER_ENTRY,
    PER_INNER,
    PER_OUTER,
    PER_TENSOR,
    NotCoveredError,
    StepKind,
)
from matrix_adagrad.optim.step.backend import Backend
from matrix_adagrad.optim.step.config import Config, SteepestConfig
from matrix_adagrad.optim.step.native import covers, measured_directions, statistics_layout
from matrix_adagrad.optim.step.update import NARROW, PLAIN, Update, are_plain, count
from matrix_adagrad.torch_private import assert_async, is_zero_tensor, sparse_indices, sparse_values

__all__ = ["Triton", "missing"]

OLDEST = (3, 5)  # the first release that we know to take tuples of numbers
DEVICES = ("cuda",)  # what torch calls NVIDIA's devices, and AMD's

# How tensors are cut into tiles. It follows from shapes alone, so sums have the same order in every run.
TILE = 4096  # entries of a tile that is read once
LONGEST = 16384  # entries of a row that still fits one tile
SUMMED_TILE, SUMMED_COLUMNS = 2048, 128  # entries and columns of a tile whose columns are summed
PROGRAMS, TALLEST = 4096, 16  # programs to aim for, and tiles that one of them takes at most
FINISHED = 1024  # partial sums that are added up together
RUN = 32  # entries of a sparse gradient that one program sums

_DTYPES = (torch.float32, *NARROW)
_AXES = {"whole": 2, "outer": 0, "inner": 1}  # in the order in which statistics are finished
_SUMMED = {PER_OUTER: ("outer",), PER_INNER: ("inner",), PER_TENSOR: ("whole",)}


@functools.cache
def missing() -> str:
    """Why there are no kernels; empty if there are. The reason is logged once."""
    try:
        version = importlib.metadata.version("triton")
        is_old = tuple(int(number) for number in version.split(".")[:2]) < OLDEST
        reason = f"Triton {version} is older than {'.'.join(map(str, OLDEST))}" if is_old else ""
    except importlib.metadata.PackageNotFoundError:
        reason = "Triton is not installed"
    if reason:
        logging.getLogger("matrix_adagrad").warning("%s: steps on a GPU run on torch's operators", reason)
    return reason


@functools.cache
def _kernels() -> Any:
    return importlib.import_module("matrix_adagrad.optim.step.triton_kernels")


# --------------------------------------------------------------------------------------------------------- descriptions


class _Tiles(NamedTuple):
    """How a matrix is cut. A program takes one tile, or several below each other."""

    outer: int  # rows of a tile
    inner: int  # columns of a tile
    height: int  # rows of a program
    chunks: int  # programs down
    across: int  # programs across
    has_blocks: bool  # whether a tile holds whole blocks: then one pass does everything

    @classmethod
    def of(cls, kind: int, outer: int, inner: int) -> _Tiles:
        """The tiles for a matrix of this size, whose entries share scales in this way."""
        has_blocks = kind == PER_ENTRY or (kind == PER_OUTER and inner <= LONGEST)
        sums_columns = kind in (PER_INNER, PER_BOTH)
        entries = SUMMED_TILE if sums_columns else TILE
        widest = LONGEST if kind == PER_OUTER and has_blocks else SUMMED_COLUMNS if sums_columns else TILE
        wide = min(_power_of_2(inner), widest)
        high = min(max(1, entries // wide), _power_of_2(outer))
        across, height = _up(inner, wide), high
        if sums_columns:
            height *= min(TALLEST, _power_of_2(across * _up(outer, high) // PROGRAMS))
        return cls(high, wide, height, _up(outer, height), across, has_blocks)


def _up(number: int, by: int) -> int:
    return -(-number // by)


def _power_of_2(number: int) -> int:
    """The smallest power of 2 that is at least this number."""
    return 1 << max(0, number - 1).bit_length()


class _Kind(NamedTuple):
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


@dataclass(eq=False)
class _Description:
    """A tensor as a row of the kernels' table."""

    kind: _Kind
    words: dict[str, int]
    programs: dict[str, int]  # of a launch over tiles, and of one for each statistic
    room: dict[str, int]  # float32 numbers that are needed between launches
    written: list[Tensor]
    g: int  # where the gradient is, and the bytes of parameter and gradient
    x_bytes: int
    g_bytes: int
    launch: _Launch | None = None  # the last one that began with this tensor


@dataclass(eq=False)
class _Launch:
    """Tensors of a kind, stepped together, and their table on the device."""

    described: list[_Description]
    changing: list[int]  # what was written into the table of gradients and step counts
    table: Tensor
    rows: list[list[int]]


def _describe(update: Update, config: Config) -> _Description:
    """Describe one tensor for the kernels. Raise an error if they do not support it."""
    is_sparse = update.grad.is_sparse
    if isinstance(config, SteepestConfig):
        if config.floor:
            raise NotCoveredError("a floor is for torch's operators")
        kept = []
        update = measured_directions(update, config)
    elif not covers(update.geometry):
        raise NotCoveredError(f"{type(update.geometry).__name__} is not a partition, or has a scale of its own")
    else:
        kept = list(update.statistics)
    x, g, average = update.param, update.grad, [] if update.average is None else [update.average]
    values = sparse_values(g) if is_sparse else g
    if reason := _reason(x, values, average, kept, update.step):
        raise NotCoveredError(reason)
    if is_sparse and (config.domain is not None or update.lag is not None):
        raise NotCoveredError("a domain and lazy='exact' need a list of the rows that its sparse gradient touches")
    if values.shape[is_sparse:] != x.shape[is_sparse:] or any(own.shape != x.shape for own in average):
        raise NotCoveredError(f"it has shape {tuple(x.shape)}, and its gradient or its average has another")
    if 0 in (x.numel(), values.numel()):
        raise NotCoveredError("it is empty, or its gradient is")
    if update.is_single_block:
        raise NotCoveredError("it is one block of a tensor that is sharded by blocks")
    # Sorted and summed by rows, values are contiguous.
    g_strides = torch.empty(values.shape, device="meta").stride() if is_sparse else g.stride()
    step = StepKind.SPARSE if is_sparse else StepKind.DENSE
    layout, v, divisors, combine = statistics_layout(update, g_strides, step)
    outer, inner = len(values) if is_sparse else layout.outer, layout.inner
    tiles = _Tiles.of(layout.kind, outer, inner)

    words = {"x": x.data_ptr(), "outer": outer, "inner": inner}
    words |= {"chunk": tiles.height, "chunks": tiles.chunks, "tiles": tiles.across}
    arrays = zip(("x", "g", "average", "v", "columns", "whole"), layout.strides, strict=False)
    words |= {f"{name}_{part}": stride for name, own in arrays for part, stride in zip(_PARTS, own, strict=True)}
    if outer == 1:  # no stride matters
        words |= {f"{name}_outer": 0 for name in ("x", "g", "average", "v")}
    words |= {name: own.data_ptr() for name, own in zip(("v", "columns", "whole"), kept and v, strict=False)}
    words |= dict(zip(("divisor", "columns_divisor", "whole_divisor"), divisors, strict=False))
    if average:
        words["average"] = average[0].data_ptr()
    if on_device := config.capturable or not update.step.is_cpu:
        words["step"] = update.step.data_ptr()

    summed = () if tiles.has_blocks else _SUMMED.get(layout.kind, tuple(_AXES)[len(v) < 3 :])
    sizes = {"whole": 1, "outer": outer, "inner": inner}
    parts = {"whole": tiles.chunks * tiles.across, "outer": tiles.across, "inner": tiles.chunks}
    finished, programs, room = [], {"tiles": layout.matrices * tiles.chunks * tiles.across}, {}
    for name in summed:
        together = min(_power_of_2(parts[name]), FINISHED if sizes[name] == 1 else FINISHED // 8)
        block = min(FINISHED // together, _power_of_2(sizes[name]))
        finished.append((name, block, together))
        programs[name] = layout.matrices * _up(sizes[name], block)
        room[f"sums_{name}"] = layout.matrices * sizes[name] * parts[name]
        room[f"factor_{name}"] = layout.matrices * sizes[name]
    kind = _Kind(
        device=x.device,
        layout=layout.kind,
        x=x.dtype,
        g=torch.float32 if is_sparse else g.dtype,
        average=average[0].dtype if average else torch.float32,
        combine=combine,
        is_aligned=_is_aligned(words, layout.kind, bool(kept)),
        is_sparse=is_sparse,
        is_step_on_device=on_device,
        tile=(tiles.outer, tiles.inner),
        has_blocks=tiles.has_blocks,
        finished=tuple(finished),
    )
    spans = layout.x_span * x.itemsize, (0 if is_sparse else layout.g_span * g.itemsize)
    return _Description(kind, words, programs, room, [x, *average, *kept, update.step], 0, *spans)


_PARTS = ("batch", "outer", "inner")


def _is_aligned(words: dict[str, int], kind: int, has_statistics: bool) -> bool:
    """Whether all rows of the full-size tensors lie at multiples of 16, the gradient aside, and have no gaps."""
    names = ["x", "g", *(["average"] if "average" in words else [])]
    names += ["v"] if kind == PER_ENTRY and has_statistics else []
    strides = [words[f"{name}_{part}"] for name in names for part in _PARTS[:2]]
    places = [words[name] for name in names if name != "g"]
    return all(n % 16 == 0 for n in (words["inner"], *strides, *places)) and all(
        words[f"{name}_inner"] == 1 for name in names
    )


def _reason(x: Tensor, g: Tensor, average: list[Tensor], statistics: list[Tensor], step: Tensor) -> str:
    tensors = (x, g, *average, *statistics)
    if any(own.device != x.device for own in tensors):
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


# ------------------------------------------------------------------------------------------------------------- the step


class Triton(Backend):
    """The same computation as `Reference` and `Sparse`, up to rounding, in Triton kernels, for tensors on GPUs."""

    def reuse(self, updates: list[Update]) -> tuple[list[Update], list[Update]]:
        ready, others = [], []
        for update in updates:
            described = update.prepared
            if type(described) is _Description and _takes(described, update.grad):
                ready.append(update)
            else:
                others.append(update)
        return ready, others

    def reason_against(self, update: Update, config: Config) -> str:
        if update.param.device.type not in DEVICES:
            return "Triton's kernels run on GPUs"
        if torch.compiler.is_compiling() or config.differentiable:
            return "torch.compile and autograd trace torch's own operators"
        if reason := missing():
            return reason
        try:
            update.prepared = _describe(update, config)
        except NotCoveredError as reason:
            return str(reason)
        if not update.grad.is_sparse and not _takes(update.prepared, update.grad):
            update.prepared = None
            return "it shares memory with its gradient"
        return ""

    def step(self, updates: Sequence[Update], config: Config) -> None:
        count([update.step for update in updates])
        torch.autograd.graph.increment_version([own for update in updates for own in update.prepared.written])
        kinds: defaultdict[tuple[_Kind, bool], list[Update]] = defaultdict(list)
        for update in updates:
            is_aligned = update.prepared.kind.is_aligned and update.prepared.g % 16 == 0
            kinds[update.prepared.kind, is_aligned].append(update)
        for (kind, is_aligned), own in kinds.items():
            with _on(kind.device):
                _step(kind._replace(is_aligned=is_aligned), own, config)


def _takes(described: _Description, g: Tensor) -> bool:
    """Note where a dense gradient is; false if it shares memory with its parameter."""
    described.g, x = g.data_ptr(), described.words["x"]
    return described.g >= x + described.x_bytes or x >= described.g + described.g_bytes


@contextlib.contextmanager
def _on(device: torch.device) -> Iterator[None]:
    """Triton launches kernels on torch's current device."""
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        yield


def _step(kind: _Kind, updates: list[Update], config: Config) -> None:
    """The step of tensors of one kind."""
    kernels, described = _kernels(), [update.prepared for update in updates]
    kept = []  # what the kernels read
    for update in updates:
        if kind.is_sparse:
            index, g = _summed_by_row(update)
            update.prepared.words["index"], update.prepared.g = index.data_ptr(), g.data_ptr()
            kept += [index, g]
    steps = _steps(updates, config, kind)
    now = max(steps, default=0)
    table = _table(described, [now - step for step in steps], kind.device)
    streams = _streams(updates, config, kind)
    room = torch.empty(sum(sum(own.room.values()) for own in described), dtype=torch.float32, device=kind.device)

    tl = kernels.tl
    types = {
        "X_TYPE": getattr(tl, str(kind.x).removeprefix("torch.")),
        "G_TYPE": getattr(tl, str(kind.g).removeprefix("torch.")),
        "AVERAGE_TYPE": getattr(tl, str(kind.average).removeprefix("torch.")),
    }
    lr_on_device = isinstance(config.lr, Tensor) and config.lr.device == kind.device
    shared = {
        "KIND": kind.layout,
        "DIRECTION": _direction(config),
        "AVERAGES": config.betas is not None,
        "BIAS_CORRECTION": config.bias_correction and config.betas is not None,
        "STEEPEST": isinstance(config, SteepestConfig),
        "COMBINE": kind.combine,
        "SPARSE": kind.is_sparse,
        "LR_ON_DEVICE": lr_on_device,
        "STEP_ON_DEVICE": kind.is_step_on_device,
        "enable_fp_fusion": False,
    }
    full = shared | types
    full |= {
        "HAS_L2": config.l2 != 0,
        "RANDOM": streams is not None and config.stochastic_rounding and kind.x in NARROW,
        "RANDOM_AVERAGE": streams is not None and kind.average in NARROW,
        "ALIGNED": kind.is_aligned,
        "BLOCK_OUTER": kind.tile[0],
        "BLOCK_INNER": kind.tile[1],
        "num_warps": min(16, max(4, kind.tile[0] * kind.tile[1] // 1024)),
    }
    numbers = kernels.Numbers(**_numbers(config, lr_on_device))
    programs = {name: sum(own.programs[name] for own in described) for name in described[0].programs}
    arguments = (table, len(described), numbers, now)
    streams = table if streams is None else streams  # which nothing reads then
    if kind.has_blocks:
        kernels.step_tiles[(programs["tiles"],)](*arguments, streams, **full)
        return
    kernels.read_tiles[(programs["tiles"],)](*arguments, streams, room, **full)
    for name, block, together in kind.finished:
        sizes = {"AXIS": _AXES[name], "BLOCK": block, "BLOCK_SUMS": together}
        kernels.finish_sums[(programs[name],)](*arguments, room, **shared, **sizes)
    kernels.move_tiles[(programs["tiles"],)](*arguments, streams, room, **full)


def _direction(config: Config) -> int:
    """What x moves along: the gradient, its average, or Nesterov's sum of both."""
    return 0 if not config.keeps_average else 2 if config.nesterov else 1


def _numbers(config: Config, lr_on_device: bool) -> dict[str, Any]:
    beta1, beta2 = config.betas or (0.0, 0.0)
    return {
        "lr": config.rate if lr_on_device else float(config.lr),
        "eps": float(config.eps),
        "sign": -1.0 if config.maximize else 1.0,
        "l2": float(config.l2),
        "decay": float(config.weight_decay) if config.decoupled_weight_decay else 0.0,
        "beta1": float(beta1),
        "one_minus_beta1": 1.0 - beta1,
        "beta2": float(beta2),
        "one_minus_beta2": 1.0 - beta2,
        "log_beta1": math.log(beta1) if beta1 else -math.inf,
        "log_beta2": math.log(beta2) if beta2 else -math.inf,
        "steepest": float(config.numbers["steepest"]),
    }


def _steps(updates: list[Update], config: Config, kind: _Kind) -> list[int]:
    """The step counts, where they are needed and are not on the device."""
    if kind.is_step_on_device or not (config.betas is not None and config.bias_correction):
        return []
    if _is_capturing(kind.device):
        raise RuntimeError("a step whose count is on the CPU cannot be captured: use capturable=True")
    return [int(update.step.item()) for update in updates]


def _streams(updates: list[Update], config: Config, kind: _Kind) -> Tensor | None:
    """The numbers that rounding at random is seeded with; None if nothing rounds so."""
    is_random = (config.stochastic_rounding and kind.x in NARROW) or kind.average in NARROW
    if not is_random:
        return None
    if all(update.stream for update in updates):
        return _upload([update.stream for update in updates], kind.device)
    return torch.randint(1, 1 << 62, (len(updates),), device=kind.device)  # in a captured graph: torch's generator


# ------------------------------------------------------------------------------------------------------------ the table


def _table(described: list[_Description], behind: list[int], device: torch.device) -> Tensor:
    """The table of a launch. It stays on the device, and what has changed since the last step is written again."""
    launch, first = described[0].launch, described[0]
    changing = [own.g for own in described] + behind
    if launch is None or launch.described != described:
        launch = None
    if _is_capturing(device):
        if launch is None:
            raise RuntimeError("a step cannot be captured before the same tensors have taken one: take a step first")
        return _captured(launch, changing[: len(described)])
    if launch is not None and launch.changing == changing and not first.kind.is_sparse:
        return launch.table
    rows = _rows(described, behind)
    first.launch = _Launch(described, changing, _upload(rows, device), rows)
    return first.launch.table


def _rows(described: list[_Description], behind: list[int]) -> list[list[int]]:
    kernels = _kernels()
    at = {name: getattr(kernels, name).value for name in kernels.WORD_NAMES}
    rows, room = [], 0
    starts = dict.fromkeys(described[0].programs, 0)
    for i, own in enumerate(described):
        row = [0] * len(at)
        for name, word in own.words.items():
            if name.upper() in at:
                row[at[name.upper()]] = word
        row[at["G"]] = own.g
        if behind:
            row[at["STEP"]] = behind[i]
        for name, programs in own.programs.items():
            row[at[f"{name.upper()}_START"]] = starts[name]
            starts[name] += programs
        for name, size in own.room.items():
            row[at[name.upper()]] = room
            room += size
        rows.append(row)
    return rows


def _upload(numbers: Any, device: torch.device) -> Tensor:
    """Numbers on a device, without waiting for it."""
    pinned = torch.tensor(numbers, dtype=torch.int64, device="cpu", pin_memory=device.type == "cuda")
    return pinned.to(device, non_blocking=True)


def _is_capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


_captured_tables: list[Tensor] = []  # which graphs copy from whenever they are replayed


def _captured(launch: _Launch, grads: list[int]) -> Tensor:
    """A table for a captured graph: a copy of that of the last step, with gradients that arguments say the place of.

    Nothing comes from the CPU's memory, whose contents a replay would read again, and later steps do not reach it.
    """
    kernels = _kernels()
    _captured_tables.append(launch.table)
    table = launch.table.clone()
    for start in range(0, len(grads), 4):
        own = grads[start : start + 4]
        kernels.write_gradients[(1,)](table, start, len(grads), *own, *[0] * (4 - len(own)))
    return table


# ----------------------------------------------------------------------------------------------------- sparse gradients


def _summed_by_row(update: Update) -> tuple[Tensor, Tensor]:
    """The rows of a sparse gradient, sorted, and next to the first of each the sum of its values. Nothing waits.

    An index out of range is found on the device, before anything is written, and is an error of the device as it is in
    `nn.Embedding`'s own kernels.
    """
    kernels, g = _kernels(), update.grad
    rows, values = sparse_indices(g)[0].contiguous(), sparse_values(g).flatten(1)
    entries, width = values.shape
    assert_async(((rows >= 0) & (rows < len(update.param))).all(), "a sparse gradient has a row that is out of range")
    if g.is_coalesced():
        sums = values.to(torch.float32).contiguous()
        return rows, sums if sums.data_ptr() % 16 == 0 else sums.clone()
    index, order = rows.sort(stable=True)
    ends = torch.searchsorted(index, index, right=True)
    runs = torch.empty(_up(entries, RUN), width, dtype=torch.float32, device=values.device)
    sums = torch.empty(entries, width, dtype=torch.float32, device=values.device)
    block = min(_power_of_2(width), 1024)
    columns = _up(width, block)
    is_aligned = values.stride(1) == 1 and width % 16 == 0 and values.stride(0) % 16 == 0
    own = {"RUN": RUN, "BLOCK": block, "ALIGNED": is_aligned, "enable_fp_fusion": False}
    layout = (width, *values.stride())
    kernels.sum_runs[(len(runs), columns)](ends, order, values, runs, *layout, **own)
    kernels.sum_segments[(entries, columns)](index, ends, order, values, runs, sums, *layout, **own)
    return index, sums
