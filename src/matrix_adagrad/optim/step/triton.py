"""The step on GPUs: a few launches of Triton kernels for a whole list of tensors.

`triton_tensors.py` describes the tensors. The kernels are in `triton_kernels.py` and `triton_sums.py`, which import
Triton: nothing does before a tensor on a GPU takes a step.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from matrix_adagrad.native.matrices import NotCoveredError
from matrix_adagrad.optim.step.backend import Backend, RepeatedUpdates
from matrix_adagrad.optim.step.config import Config, SteepestConfig
from matrix_adagrad.optim.step.reference import Reference
from matrix_adagrad.optim.step.reference_steepest import Steepest
from matrix_adagrad.optim.step.sparse import Sparse
from matrix_adagrad.optim.step.triton_tensors import (
    AXES,
    RUN,
    Description,
    Kind,
    describe,
    describe_move,
    freed,
    is_empty,
    power_of_2,
    up,
)
from matrix_adagrad.optim.step.update import NARROW, Update, count
from matrix_adagrad.torch_private import assert_async, sparse_indices, sparse_values

__all__ = ["Triton", "failure", "missing"]

OLDEST = (3, 5)  # the first release that we know to take tuples of numbers
DEVICES = ("cuda",)  # what torch calls NVIDIA's devices, and AMD's


@functools.cache
def missing() -> str:
    """Why there are no kernels; empty if there are. The reason is logged once."""
    try:
        version = importlib.import_module("triton").__version__
    except ImportError:
        return _logged("Triton is not installed")
    is_old = tuple(int(number) for number in version.split(".")[:2]) < OLDEST
    return _logged(f"Triton {version} is older than {'.'.join(map(str, OLDEST))}") if is_old else ""


@functools.cache
def failure(device: torch.device) -> str:
    """Why a kernel cannot run on a device; empty if one did. Triton needs a C compiler, and must know the device."""
    try:
        with _on(device):
            table = torch.zeros(len(_kernels().WORD_NAMES), dtype=torch.int64, device=device)
            _kernels().write_gradients[(1,)](table, 0, 1, 0, 0, 0, 0)
    except Exception as error:  # which may be of any kind
        return _logged(f"Triton does not work here ({type(error).__name__}: {error})")
    return ""


@functools.cache
def _logged(reason: str) -> str:
    logging.getLogger("matrix_adagrad").warning("%s: steps on a GPU run on torch's operators", reason)
    return reason


@functools.cache
def _kernels() -> Any:
    return importlib.import_module("matrix_adagrad.optim.step.triton_kernels")


@functools.cache
def _sums() -> Any:
    return importlib.import_module("matrix_adagrad.optim.step.triton_sums")


# ------------------------------------------------------------------------------------------------------------- the step


class _Repeated(RepeatedUpdates):
    def renew(self, config: Config, grads: Sequence[Tensor]) -> bool:  # noqa: ARG002
        for update, grad in zip(self, grads, strict=True):
            update.grad = grad
        return all(update.prepared is None or _takes(update.prepared, update.grad) for update in self)


class Triton(Backend):
    """The same computation as `Reference` and `Sparse`, up to rounding, in Triton kernels, for tensors on GPUs."""

    def runs_on(self, device: torch.device) -> bool:
        return device.type in DEVICES

    def repeated(self, updates: Sequence[Update]) -> _Repeated | None:
        return None if updates[0].grad.is_sparse else _Repeated(updates)

    def reason_against(self, update: Update, config: Config) -> str:
        if torch.compiler.is_compiling() or config.differentiable:
            return "torch.compile and autograd trace torch's own operators"
        if reason := missing() or failure(update.param.device):
            return reason
        if is_empty(update):
            update.prepared = None
            return ""
        try:
            described, kept = describe(update, config), update.prepared
        except NotCoveredError as reason:
            return str(reason)
        is_known = isinstance(kept, Description) and kept.is_like(described)
        update.prepared = kept if is_known else described  # with its table
        if not update.grad.is_sparse and not _takes(update.prepared, update.grad):
            update.prepared = None
            return "it shares memory with its gradient"
        return ""

    def step(self, updates: Sequence[Update], config: Config) -> None:
        full = [update for update in updates if update.prepared is not None]
        _check_capture(full)
        if len(full) < len(updates):
            _step_empty([update for update in updates if update.prepared is None], config)
        if full:
            self._step(full, config)

    def _step(self, updates: Sequence[Update], config: Config) -> None:
        count([update.step for update in updates])
        torch.autograd.graph.increment_version([own for update in updates for own in update.prepared.written])
        for kind, own in _by_kind(updates):
            with _on(kind.device):
                if kind.is_direction:
                    _descend(kind, own, config)
                    continue
                launches = _Launches(kind, own, config)
                if kind.has_blocks:
                    launches.run("step_tiles")
                else:
                    launches.run("read_tiles")
                    for name, block, together in kind.finished:
                        launches.finish(name, block, together)
                    launches.run("move_tiles")


def _step_empty(updates: list[Update], config: Config) -> None:
    """Count the step, and let averages of squares fade: there is nothing to move."""
    backend: Backend = Sparse() if updates[0].grad.is_sparse else Reference()
    (Steepest() if isinstance(config, SteepestConfig) else backend).step(updates, config)


def _takes(described: Description, g: Tensor) -> bool:
    """Note where a dense gradient is; false if it shares memory with its parameter."""
    described.g, x = g.data_ptr(), described.words["x"]
    if not (described.g and described.written[0].data_ptr()):
        raise freed(described.written[0])
    return described.g >= x + described.x_bytes or x >= described.g + described.g_bytes


def _by_kind(updates: Sequence[Update]) -> Iterator[tuple[Kind, list[Update]]]:
    """The updates that can be stepped together. Gradients need not be aligned as their parameters are."""
    kinds: defaultdict[Kind, list[Update]] = defaultdict(list)
    for update in updates:
        kind = update.prepared.kind
        kinds[kind if update.prepared.g % 16 == 0 else kind._replace(is_aligned=False)].append(update)
    yield from kinds.items()


@contextlib.contextmanager
def _on(device: torch.device) -> Iterator[None]:
    """Triton launches kernels on torch's current device."""
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        yield


def _stream(device: torch.device) -> int:
    """The stream that kernels are launched on."""
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


def _check_capture(updates: Sequence[Update]) -> None:
    """Refuse a step that a graph would replay wrongly."""
    if not (updates and _is_capturing(updates[0].param.device)):
        return
    if not all(update.prepared.kind.is_step_on_device for update in updates):
        raise RuntimeError("a step whose count is on the CPU cannot be captured: use capturable=True")
    if any(update.prepared.kind.is_sparse for update in updates):
        raise RuntimeError("a step with sparse gradients cannot be captured: their rows are others in each step")


def _descend(kind: Kind, updates: list[Update], config: Config) -> None:
    """Steepest descent in other norms than those of partitions: what surrounds torch's own operators."""
    assert isinstance(config, SteepestConfig)
    averaged = [torch.empty_like(update.param, dtype=torch.float32) for update in updates]
    for update, direction in zip(updates, averaged, strict=True):
        update.prepared.words["v"] = direction.data_ptr()
    _Launches(kind, updates, config).run("average_tiles")
    moves = []
    for update, direction in zip(updates, averaged, strict=True):
        step = update.geometry.steepest(direction, config.floor)
        moves.append(replace(update, grad=step, average=None))
        moves[-1].prepared = describe_move(moves[-1], config.size(update.geometry, step.shape), config)
    for kind_of_move, own in _by_kind(moves):
        _Launches(kind_of_move, own, config).run("move_along_tiles")


class _Launches:
    """The launches of a step for tensors of one kind."""

    def __init__(self, kind: Kind, updates: list[Update], config: Config) -> None:
        self._kernels, described = _kernels(), [update.prepared for update in updates]
        self._read = [_summed_by_row(update) for update in updates if kind.is_sparse]  # kept alive for the kernels
        for own, (index, g) in zip(described, self._read, strict=False):
            own.words["index"], own.g = index.data_ptr(), g.data_ptr()
        steps = _steps(updates, config, kind)
        now = max(steps, default=0)
        table = _table(described, [now - step for step in steps], kind.device)
        streams = _streams(updates, config, kind)
        room = sum(sum(own.room.values()) for own in described)
        self._room = torch.empty(max(1, room), dtype=torch.float32, device=kind.device)
        self._programs = {name: sum(own.programs[name] for own in described) for name in described[0].programs}
        lr_on_device = isinstance(config.lr, Tensor) and config.lr.device == kind.device
        self._arguments = (table, len(described), self._kernels.Numbers(**_numbers(config, lr_on_device)), now)
        self._streams = table if streams is None else streams  # which nothing reads then
        self._shared = {
            "KIND": kind.layout,
            "DIRECTION": 0 if not config.keeps_average else 2 if config.nesterov else 1,
            "AVERAGES": config.betas is not None,
            "BIAS_CORRECTION": config.bias_correction and config.betas is not None,
            "STEEPEST": isinstance(config, SteepestConfig),
            "COMBINE": kind.combine,
            "SPARSE": kind.is_sparse,
            "LR_ON_DEVICE": lr_on_device,
            "STEP_ON_DEVICE": kind.is_step_on_device,
            "enable_fp_fusion": False,  # other roundings than a CPU's
        }
        self._of_tiles = {
            "X_TYPE": self._type(kind.x),
            "G_TYPE": self._type(kind.g),
            "AVERAGE_TYPE": self._type(kind.average),
            "HAS_L2": config.l2 != 0,
            "RANDOM": streams is not None and config.stochastic_rounding and kind.x in NARROW,
            "RANDOM_AVERAGE": streams is not None and kind.average in NARROW,
            "ALIGNED": kind.is_aligned,
            "BLOCK_OUTER": kind.tile[0],
            "BLOCK_INNER": kind.tile[1],
            "num_warps": min(16, max(4, kind.tile[0] * kind.tile[1] // 1024)),
        }

    def _type(self, dtype: torch.dtype) -> Any:
        return getattr(self._kernels.tl, str(dtype).removeprefix("torch."))

    def run(self, name: str) -> None:
        """Launch a kernel with a program for each tile."""
        kernel = getattr(self._kernels, name)[(self._programs["tiles"],)]
        kernel(*self._arguments, self._streams, self._room, **self._shared, **self._of_tiles)

    def finish(self, name: str, block: int, together: int) -> None:
        """Add up the sums of one statistic, in blocks."""
        sizes = {"AXIS": AXES[name], "BLOCK": block, "BLOCK_SUMS": together}
        self._kernels.finish_sums[(self._programs[name],)](*self._arguments, self._room, **self._shared, **sizes)


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


def _steps(updates: list[Update], config: Config, kind: Kind) -> list[int]:
    """The step counts, where they are needed and are not on the device."""
    if kind.is_step_on_device or not (config.betas is not None and config.bias_correction):
        return []
    return [int(update.step.item()) for update in updates]


def _streams(updates: list[Update], config: Config, kind: Kind) -> Tensor | None:
    """The numbers that rounding at random is seeded with; None if nothing rounds so."""
    is_random = (config.stochastic_rounding and kind.x in NARROW) or kind.average in NARROW
    if not is_random:
        return None
    if all(update.stream for update in updates):
        return _upload([update.stream for update in updates], kind.device)
    return torch.randint(1, 1 << 62, (len(updates),), device=kind.device)  # in a captured graph: torch's generator


# ------------------------------------------------------------------------------------------------------------ the table


def _table(described: list[Description], behind: list[int], device: torch.device) -> Tensor:
    """The table of a launch. It stays on the device, and what has changed since the last step is written again."""
    first = described[0]
    kept: _Launch | None = first.launch
    stream = _stream(device)
    launch = kept if kept is not None and kept.described == described and kept.stream == stream else None
    changing = [own.g for own in described] + [own.words.get("v", 0) for own in described] + behind
    if _is_capturing(device):
        if kept is None or kept.described != described:
            raise RuntimeError("a step cannot be captured before the same tensors have taken one: take a step first")
        return _captured(kept, changing[: len(described)])
    if launch is not None and launch.changing == changing and not first.kind.is_sparse:
        return launch.table
    first.launch = launch = _Launch(described, changing, stream, _upload(_rows(described, behind), device))
    return launch.table


@dataclass(eq=False)
class _Launch:
    """Tensors that were stepped together, and their table on the device."""

    described: list[Description]
    changing: list[int]  # the places and step counts in the table that other steps may have others of
    stream: int  # that the table was allocated on: its memory is given away when this one is done with it
    table: Tensor


def _rows(described: list[Description], behind: list[int]) -> list[list[int]]:
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
    kernels, g = _sums(), update.grad
    rows, values = sparse_indices(g)[0].contiguous(), sparse_values(g).flatten(1)
    entries, width = values.shape
    assert_async(((rows >= 0) & (rows < len(update.param))).all(), "a sparse gradient has a row that is out of range")
    if g.is_coalesced():
        sums = values.to(torch.float32).contiguous()
        return rows, sums if sums.data_ptr() % 16 == 0 else sums.clone()
    index, order = rows.sort(stable=True)
    ends = torch.searchsorted(index, index, right=True)
    runs = torch.empty(up(entries, RUN), width, dtype=torch.float32, device=values.device)
    sums = torch.empty(entries, width, dtype=torch.float32, device=values.device)
    block = min(power_of_2(width), 1024)
    columns = up(width, block)
    is_aligned = values.stride(1) == 1 and width % 16 == 0 and values.stride(0) % 16 == 0
    own = {"RUN": RUN, "BLOCK": block, "ALIGNED": is_aligned, "enable_fp_fusion": False}
    layout = (width, *values.stride())
    kernels.sum_runs[(len(runs), columns)](ends, order, values, runs, *layout, **own)
    kernels.sum_segments[(entries, columns)](index, ends, order, values, runs, sums, *layout, **own)
    return index, sums
