"""The native step: one call of a C kernel for a whole list of tensors.

A kernel sees a tensor as a matrix. It need not know the partition: entries share a scale where a statistic has size 1.
In the `Factored` geometry they have a scale each, from statistics of rows and of columns.
"""

from __future__ import annotations

import array
import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from matrix_adagrad import native
from matrix_adagrad.bags.batch import BagBatch
from matrix_adagrad.bags.gradient import BagGradient
from matrix_adagrad.geometry import Factored, Geometry, Partition, wide_dtype
from matrix_adagrad.geometry.partitions import floored
from matrix_adagrad.native.matrices import (
    PER_ENTRY,
    MatrixLayout,
    NotCoveredError,
    StepKind,
    factored_layout,
    matrix_layout,
)
from matrix_adagrad.optim.step.backend import Measured, RepeatedUpdates
from matrix_adagrad.optim.step.config import Config, SteepestConfig
from matrix_adagrad.optim.step.foreach import Foreach
from matrix_adagrad.optim.step.update import (
    NARROW,
    PLAIN,
    Update,
    are_plain,
    count,
    empty_like,
    rounds_at_random,
)
from matrix_adagrad.torch_private import is_zero_tensor, sparse_indices, sparse_values

__all__ = [
    "COMBINE",
    "Batch",
    "Native",
    "NotCoveredError",
    "covers",
    "measured_directions",
    "statistics_layout",
]

# The dtypes of a parameter, its gradient, its statistic and its running average.
_COVERED = {(dtype, dtype, wide_dtype(dtype), wide_dtype(dtype)): i for dtype, i in native.DTYPES.items()}
_SIZES = [dtype.itemsize for dtype in native.DTYPES]
_READ_AND_MOVE = native.READ | native.MOVE
COMBINE = {"product": 0, "geometric": 1, "minimum": 2}  # enum combine of update.h


# ----------------------------------------------------------------------------------------------- what C is handed


class _Description(NamedTuple):
    """A tensor as a ``struct tensor`` of kernels.h, and what to check another gradient of the same layout against."""

    fields: array.array[int]
    overlaps: tuple[int, int]  # a gradient that starts between these addresses overlaps the parameter
    written: list[Tensor]  # by a step
    touched: Tensor | None  # takes the number of rows that a sparse gradient touches, and then the rows
    lent: int  # numbers in the statistic that have memory during a step alone


_FIELDS = len(native.TENSOR)
_G_DATA, _STREAM, _SQUARES, _SUMS = map([*native.TENSOR].index, ("g.data", "stream", "statistic.data", "sums"))


def _describe(
    update: Update, *, lists_rows: bool = False, in_parts: bool = False, is_lent: bool = False
) -> _Description:
    """Describe one tensor for the kernels. Raise an error if they do not support it.

    They list the rows that a sparse gradient touches if asked to. A statistic that is lent has no memory: see `_lend`.
    """
    x, g, (statistic, *_), step, sums = update.param, update.grad, update.statistics, update.step, update.sums
    average = statistic if update.average is None else update.average
    dtype = _COVERED.get((x.dtype, g.dtype, statistic.dtype, average.dtype))
    state = [own for own in update.written()[1:] if not (is_lent and own is statistic)]
    if dtype is None or native.missing() or not _are_arrays(x, g, *state):
        raise NotCoveredError(_reason(x, g, None if is_lent else statistic, update.average, step))
    is_sparse = g.layout is torch.sparse_coo
    if g.shape != x.shape or (update.average is not None and average.shape != x.shape):
        raise NotCoveredError(f"it has shape {tuple(x.shape)}, and its gradient or state has another")
    index = nnz = offsets = bags = weights_at = 0
    touched = None
    if is_sparse:
        rows, starts, weights, g = (
            g.entries() if isinstance(g, BagGradient) else (sparse_indices(g)[0], None, None, sparse_values(g))
        )
        index, nnz = rows.data_ptr(), rows.numel()
        if starts is not None:
            offsets, bags = starts.data_ptr(), len(starts) - 1
        if weights is not None:
            weights_at = weights.data_ptr()
        if max(x.shape[0], nnz, bags) >= native.MOST_ROWS:
            raise NotCoveredError("there are too many rows in its sparse gradient")
        if not (rows.is_contiguous() and (starts is None or starts.is_contiguous())):
            raise NotCoveredError("the indices of its sparse gradient have gaps in memory")
        if lists_rows:
            touched = torch.empty(1 + nnz, dtype=torch.int64, device="cpu")
    shape, strides, g_strides = x.shape, x.stride(), g.stride()
    if is_sparse:
        kind_of_step = StepKind.SPARSE
    elif in_parts or sums:
        kind_of_step = StepKind.IN_PARTS
    else:
        kind_of_step = StepKind.SINGLE_BLOCK if update.is_single_block else StepKind.DENSE
    layout, v, divisors, combine = statistics_layout(update, g_strides, kind_of_step)
    x_span, g_span = layout.x_span, layout.g_span
    x_strides, grad_strides, average_strides, v_strides, *v_others = layout.strides
    x_at, g_at, step_at = x.data_ptr(), g.data_ptr(), step.data_ptr()
    if not (x_at and g_at and all(map(Tensor.data_ptr, state))) and min(x.numel(), g.numel(), statistic.numel()):
        raise RuntimeError(
            f"the memory of a parameter of shape {tuple(shape)}, its gradient or its state has been freed"
        )
    size, g_span = _SIZES[dtype], g.numel() if is_sparse else g_span
    if (
        x_at < g_at + size * g_span
        and g_at < x_at + size * x_span
        and (is_sparse or x_at != g_at or strides != g_strides)
    ):
        if (x_span, g_span) != (x.numel(), g.numel()):
            raise NotCoveredError("it lies between the entries of its gradient")
        raise RuntimeError(
            f"a parameter of shape {tuple(shape)} shares memory with its gradient, in another order: "
            "give the gradient its own memory, as grad.clone() does"
        )
    fields = (
        *(x_at, *x_strides),
        *(g_at, *grad_strides),
        *(0 if update.average is None else average.data_ptr(), *average_strides),
        *(0 if is_lent else v[0].data_ptr(), *v_strides),
        *(layout.outer, layout.inner, layout.kind, dtype),
        *(step_at, step.dtype is torch.float64, index, nnz),
        *(divisors[0], sums[0].data_ptr() if sums else 0, update.stream, offsets, bags, 0, weights_at),
        *(0 if touched is None else touched.data_ptr(), layout.matrices),
        *itertools.chain.from_iterable((own.data_ptr(), *apart) for own, apart in zip(v[1:], v_others, strict=True)),
        *(0,) * (4 * (3 - len(v))),
        *(*divisors[1:], *(1,) * (3 - len(v)), combine),
    )
    overlaps = x_at - size * g_span, x_at + size * x_span
    lent = statistic.numel() if is_lent and not is_sparse and layout.kind != PER_ENTRY else 0
    return _Description(array.array("q", fields), overlaps, [x, *state], touched, lent)


class Batch(RepeatedUpdates):
    """Updates that the kernels take in one call, described once. Later steps only change where the gradients are."""

    def __init__(self, updates: Sequence[Update]) -> None:
        super().__init__(updates)
        described: list[_Description] = [update.prepared for update in updates]
        self.fields = array.array("q", b"".join([own.fields for own in described]))
        self.written = [*itertools.chain.from_iterable([own.written for own in described])]
        self.is_sparse = updates[0].grad.is_sparse
        self.is_narrow = any(update.param.dtype in NARROW for update in updates)
        self._overlaps = [own.overlaps for own in described]
        self._without_memory = self._gradients().count(0)  # the empty ones

    def _gradients(self) -> array.array[int]:
        return self.fields[_G_DATA::_FIELDS]

    def renew(self, config: Config, grads: Sequence[Tensor]) -> bool:  # noqa: ARG002
        addresses = [*map(Tensor.data_ptr, grads)]
        if addresses.count(0) != self._without_memory:
            return False
        for at, (low, high) in zip(addresses, self._overlaps, strict=True):
            if low < at < high:
                return False
        self.fields[_G_DATA::_FIELDS] = array.array("q", addresses)
        return True


def statistics_layout(
    update: Update, g_strides: tuple[int, ...], kind_of_step: StepKind
) -> tuple[MatrixLayout, tuple[Tensor, ...], tuple[int, ...], int]:
    """The layout, the statistics, that of the outer dimension first, their divisors, and how they combine."""
    shape, strides, v, divisors = update.param.shape, update.param.stride(), update.statistics, update.divisors
    average_strides = strides if update.average is None else update.average.stride()
    all_strides = (strides, g_strides, average_strides, *[own.stride() for own in v])
    if not isinstance(update.geometry, Factored):
        if v[0].dim() != len(shape):
            raise NotCoveredError("the rows of its sparse gradient share scales in groups")
        return matrix_layout(shape, v[0].shape, all_strides[:4], kind_of_step), v[:1], divisors[:1], 0
    if [own.shape for own in v] != [*map(torch.Size, update.geometry.statistic_shapes(shape))]:
        raise NotCoveredError(f"it has shape {tuple(shape)}, and its statistics are those of another")
    if len({own.dtype for own in v}) > 1:
        raise NotCoveredError("its statistics are of more than one dtype")
    layout = factored_layout(shape, all_strides, kind_of_step)
    if layout.is_transposed:
        v, divisors = (v[1], v[0], *v[2:]), (divisors[1], divisors[0], *divisors[2:])
    return layout, v, divisors, COMBINE[update.geometry.combine]


def covers(geometry: Geometry) -> bool:
    """Whether the kernels know how a scale follows from the statistics."""
    return geometry.has_root_scale or (isinstance(geometry, Factored) and type(geometry).scale is Factored.scale)


def _are_arrays(x: Tensor, g: Tensor, *state: Tensor) -> bool:
    """Whether all tensors are plain strided arrays in CPU memory. Sparse tensors have no strides."""
    step = state[-1]
    return (
        (x.is_cpu and g.is_cpu and all(own.is_cpu for own in state))
        and (type(g) in PLAIN or type(g) is BagGradient or are_plain((g,)))
        and are_plain((x, *state))
        and (g.layout is torch.strided or g.layout is torch.sparse_coo)
        and not (x.is_neg() or g.is_neg() or is_zero_tensor(g))
        and (step.dtype is torch.float32 or step.dtype is torch.float64)
        and step.numel() == 1
    )


def _reason(x: Tensor, g: Tensor, statistic: Tensor | None, average: Tensor | None, step: Tensor) -> str:
    if native.missing():
        return native.missing()
    tensors = {"it": x, "its gradient": g, "its statistic": statistic, "its average": average, "its step count": step}
    where = ", ".join(f"{name} {_described(tensor)}" for name, tensor in tensors.items() if tensor is not None)
    return f"{where}: they work on plain arrays of a CPU, of one dtype"


def _described(x: Tensor) -> str:
    kind = "" if are_plain((x,)) else f"{type(x).__name__} "
    return f"is a {kind}of {x.dtype} on {x.device}, {x.layout}"


def _packed(config: Config, is_random: bool) -> bytes:
    """The configuration as a ``struct config`` of update.h."""
    packed = config.memo.get(is_random)
    if packed is None:
        # Each tensor has its own random stream. The seed only says that there is one.
        packed = native.pack_config({**config.numbers, "lr": float(config.lr), "seed": is_random})
        if not isinstance(config.lr, Tensor):  # whose value may change
            config.memo[is_random] = packed
    return packed


# ------------------------------------------------------------------------------------------------------------ the step


class Native(Foreach):
    """The same computation as `Reference` and `Sparse`, up to rounding, in C, for arrays in CPU memory."""

    def repeated(self, updates: Sequence[Update]) -> RepeatedUpdates | None:
        if updates[0].grad.is_sparse:
            lists_rows = any(update.prepared is None or update.prepared.touched is not None for update in updates)
            return None if lists_rows else BagUpdates(updates)
        return Batch(updates)

    def reason_against(self, update: Update, config: Config) -> str:
        if torch.compiler.is_compiling() or not are_plain((update.param,)):
            # The operator below checks it when it runs. It takes one statistic.
            is_for_operator = config.fused and update.geometry.has_root_scale and not isinstance(config, SteepestConfig)
            return "" if is_for_operator else "torch.compile traces torch's own operators, and subclasses override them"
        try:
            if config.momentum_dtype is not None and update.average is not None:
                raise NotCoveredError(f"an average in {config.momentum_dtype} is for torch's operators")
            if not covers(update.geometry):
                raise NotCoveredError(f"{type(update.geometry).__name__} is not a partition, or has a scale of its own")
            if isinstance(config, SteepestConfig):
                update.prepared = _describe_steepest(update, config)
            else:
                update.prepared = _describe(update, lists_rows=config.domain is not None)
        except NotCoveredError as reason:
            return str(reason)
        return ""

    def step(self, updates: Sequence[Update], config: Config) -> None:
        if isinstance(updates, BagUpdates):
            updates.step(updates.batch, config)
        elif not isinstance(updates, Batch) and None in [update.prepared for update in updates]:
            _step_as_operator(updates, config)
        elif isinstance(config, SteepestConfig):
            _descend(_batch(updates), config)
        else:
            _run(updates, config)

    def read(self, updates: Sequence[Update], config: Config) -> list[Measured]:
        _run(updates, config, native.READ)
        return [update.sums for update in updates]

    def move(self, updates: Sequence[Update], config: Config) -> None:
        _run(updates, config, native.MOVE)


def _batch(updates: Sequence[Update]) -> Batch:
    return updates if isinstance(updates, Batch) else Batch(updates)


def _run(updates: Sequence[Update], config: Config, what: int = _READ_AND_MOVE) -> None:
    """The step, or a part of it, of tensors that are described already."""
    batch = _batch(updates)
    is_random = config.stochastic_rounding and batch.is_narrow
    if is_random:
        batch.fields[_STREAM::_FIELDS] = array.array("q", [update.stream for update in batch])
    _call(batch, _packed(config, is_random), what)


def _call(batch: Batch, packed: bytes, what: int = _READ_AND_MOVE) -> None:
    torch.autograd.graph.increment_version(batch.written)
    arguments = batch.fields.tobytes(), len(batch), packed, native.threads()
    library = native.load()
    if batch.is_sparse:
        refused = _with_room(library.matrix_adagrad_sparse_step, *arguments)
        if refused:
            raise IndexError(_what_is_missing(batch[-1 - refused]))
        for update in batch:
            touched = update.prepared.touched
            if touched is not None:
                update.rows = touched[1 : 1 + int(touched[0])]
    else:
        _with_room(library.matrix_adagrad_step, *arguments, what)


# ------------------------------------------------------------------------------------------------------- bags of tables


_describing = threading.Lock()  # the kernel completes the descriptions: two threads must not do so at once


class BagUpdates(RepeatedUpdates):
    """Tables whose gradients come from one batch of bags, described once. Later batches only change where those are."""

    def __init__(self, updates: Sequence[Update]) -> None:
        super().__init__(updates)
        described: list[_Description] = [update.prepared for update in updates]
        self._fields = torch.tensor([own.fields.tolist() for own in described], device="cpu")
        self._written = [tensor for own in described for tensor in own.written]
        grads: list[Any] = [update.grad for update in updates]
        self._features = torch.tensor([(grad.part.number, grad.part.column) for grad in grads], device="cpu")
        self._memory = [(own.fields[0], own.overlaps[1]) for own in described]  # of the tables

    @property
    def batch(self) -> BagBatch:
        """The batch that the gradients are from."""
        grad: Any = self[0].grad
        batch: BagBatch = grad.part.batch
        return batch

    def renew(self, config: Config, grads: Sequence[Tensor]) -> bool:
        for update, grad in zip(self, grads, strict=True):
            update.grad = grad
        batch = self.batch
        batch.check_versions()
        start = batch.values.data_ptr()
        end = start + batch.values.nbytes
        for first, last in self._memory:
            if start < last and first < end:
                return False
        return config.domain is None  # projections ask for the rows that a step touches

    def check(self) -> None:
        self.batch.check()

    def step(self, batch: BagBatch, config: Config) -> bool:
        """One step, or false if the gradients lie in the tables' own memory."""
        index, offsets, weights, values = batch.index, batch.offsets, batch.weights, batch.values
        if config.is_random:
            self._fields[:, _STREAM] = torch.tensor([update.stream for update in self])
        torch.autograd.graph.increment_version(self._written)
        with _describing:
            refused = _with_room(
                native.load().matrix_adagrad_bags_step,
                *(self._fields.data_ptr(), len(self), self._features.data_ptr(), index.data_ptr(), len(index)),
                *(offsets.data_ptr(), batch.bags, 0 if weights is None else weights.data_ptr()),
                *(values.data_ptr(), values.stride(0), _packed(config, rounds_at_random(values, config))),
                native.threads(),
            )
        if refused == -1 - len(self):
            return False
        if refused:
            raise IndexError(_what_is_missing(self[-1 - refused]))
        return True


# ---------------------------------------------------------------------------------------------------- steepest descent


def _describe_steepest(update: Update, config: SteepestConfig) -> _Description:
    """Describe a tensor whose scales come from the direction of this step. They are no state, and have no memory."""
    if update.grad.is_sparse and config.floor:
        raise NotCoveredError("the rows of its sparse gradient depend on each other")
    return _describe(measured_directions(update, config), in_parts=config.floor > 0, is_lent=True)


def measured_directions(update: Update, config: SteepestConfig) -> Update:
    """The update with a statistic that has a shape and no memory: the squared length of each block of the direction."""
    if config.rescale is not None:
        raise NotCoveredError("rescale is for torch's operators")
    partition, shape = update.geometry, update.param.shape
    if not isinstance(partition, Partition) or type(partition).steepest is not Partition.steepest:
        raise NotCoveredError(f"{type(partition).__name__} has a direction of steepest descent of its own")
    if update.grad.is_sparse and not partition.separates_rows(shape):
        raise NotCoveredError("the rows of its sparse gradient depend on each other")
    viewed = update if update.grad.is_sparse else update.viewed()
    squares = empty_like(viewed.param.to("meta"), partition.statistic_shape(shape), wide_dtype(update.param.dtype))
    divisor = 1 if config.scale is None else max(1, partition.members(shape))
    return replace(viewed, statistics=(squares,), divisors=(divisor,))


def _descend(batch: Batch, config: SteepestConfig) -> None:
    lent = _lend(batch)
    if not config.floor:
        _run(batch, config)
        return
    _run(batch, config, native.READ)
    count([update.step for update in batch])
    for update, room in zip(batch, lent.split([update.prepared.lent for update in batch]), strict=True):
        squares = room.view(wide_dtype(update.param.dtype))[: len(room)]
        squares.copy_(floored(squares, config.floor))
    _run(batch, config, native.MOVE)


def _lend(batch: Batch) -> Tensor:
    """Give the squares of all blocks memory for one step, 8 bytes each."""
    numbers = [update.prepared.lent for update in batch]
    room = torch.empty(sum(numbers), dtype=torch.float64, device="cpu")
    at = room.data_ptr()
    for first, number in zip(range(0, len(batch.fields), _FIELDS), numbers, strict=True):
        if number:
            batch.fields[first + _SQUARES] = batch.fields[first + _SUMS] = at
            at += 8 * number
    return room


# ----------------------------------------------------------------------------------------------------------- workspaces


class _Workspace(threading.local):
    room = torch.empty(0, dtype=torch.uint8, device="cpu")


_workspace, _KEPT_BYTES = _Workspace(), 1 << 24


def _with_room(kernel: Callable[..., int], *arguments: object) -> int:
    """Run a kernel with a workspace. If it is too small, the kernel does nothing and returns the bytes it needs.

    A small workspace is kept for the next call, since allocating new memory from the system is slow.
    """
    room = _workspace.room
    while (answer := kernel(*arguments, room.data_ptr(), room.numel())) > 0:
        try:
            room = torch.empty(answer, dtype=torch.uint8, device="cpu")  # whatever the default device is
        except RuntimeError:
            raise MemoryError(
                f"no step was taken: it needs {answer} bytes of memory, which could not be allocated"
            ) from None
        if answer <= _KEPT_BYTES:
            _workspace.room = room
    return answer


def _what_is_missing(update: Update) -> str:
    return (
        f"the sparse gradient of a table with {update.param.shape[0]} rows has an index out of range, or bags that do "
        "not cover its indices: were they written to during the step? No step was taken"
    )


# ------------------------------------------------------------------------------------------------------- as an operator


def _step_as_operator(updates: Sequence[Update], config: Config) -> None:
    """The step as one operator that torch.compile and fake tensors know: see `compiled.py`."""
    lr = (
        config.rate if isinstance(config.rate, Tensor) else torch.tensor(config.rate, dtype=torch.float64, device="cpu")
    )
    torch.ops.matrix_adagrad.step(
        [update.param for update in updates],
        [update.grad for update in updates],
        [update.average for update in updates if update.average is not None],
        [update.statistics[0] for update in updates],
        [update.step for update in updates],
        [update.divisors[0] for update in updates],
        lr,
        [float(number) for name, number in config.numbers.items() if name != "lr"],
        config.stochastic_rounding,
    )
