"""The native step: one call of a C kernel for a whole list of tensors.

A kernel sees a tensor as a matrix. It need not know the geometry: where a statistic has size 1, entries share a scale.
"""

from __future__ import annotations

import array
import functools
import math
import struct
import sys
import threading
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from matrix_adagrad import native
from matrix_adagrad.bags.gradient import BagGradient
from matrix_adagrad.geometry import Entry, wide_dtype
from matrix_adagrad.optim.step.rule import PLAIN, Batch, Rule, are_plain

# The dtypes of a parameter, its gradient, its statistic and its running average.
_COVERED = {(dtype, dtype, wide_dtype(dtype), wide_dtype(dtype)): i for dtype, i in native.DTYPES.items()}
_SIZES = [dtype.itemsize for dtype in native.DTYPES]
_PER_OUTER, _PER_INNER, _PER_ENTRY, _PER_TENSOR = range(4)
_DENSE, _SPARSE, _IN_PARTS, _LONE = range(4)


class NotCoveredError(Exception):
    """The kernels do not cover a tensor, for the reason given."""

    def refusal(self) -> RuntimeError:
        """The error for who asked for the kernels."""
        return RuntimeError(f"fused=True is not possible here: {self}; leave fused=None")


class _Dim(NamedTuple):
    """A dimension: its size, its strides in x, g, average and statistic, and whether it lies inside a block."""

    size: int
    strides: tuple[int, ...]
    inside: bool


# ----------------------------------------------------------------------------------------------- tensors as matrices


@functools.lru_cache(maxsize=1 << 14)
def _layout(
    shape: tuple[int, ...], blocks: tuple[int, ...], strides: tuple[tuple[int, ...], ...], how: int
) -> tuple[tuple[int, ...], int, int]:
    """A tensor as a `_matrix`, and how many entries of memory it reaches over, and its gradient."""
    x_span, g_span = (
        1 + sum((size - 1) * stride for size, stride in zip(shape, own, strict=True)) for own in strides[:2]
    )
    if _overlaps(shape, strides[0]) or _overlaps(shape, strides[2]):
        raise NotCoveredError("it has entries that share their memory")
    return _matrix(shape, blocks, strides, how), x_span, g_span


def _overlaps(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether entries may share their memory: a stride does not reach beyond the dimensions inside of it."""
    reach = 0
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += (size - 1) * stride
    return False


def _matrix(
    shape: tuple[int, ...], blocks: tuple[int, ...], strides: tuple[tuple[int, ...], ...], how: int
) -> tuple[int, ...]:
    """The layout of a tensor as a matrix: outer and inner strides of its four arrays, outer, inner and the kind.

    ``blocks`` is the statistic's shape: a dimension lies inside a block where it has size 1.
    """
    dims = [
        _Dim(size, (*(stride[d] for stride in strides[:3]), 0 if block == 1 else strides[3][d]), block == 1)
        for d, (size, block) in enumerate(zip(shape, blocks, strict=True))
        if size != 1 or (how == _SPARSE and d == 0)
    ]
    if any(dim.size > 1 and not (dim.inside or dim.strides[3]) for dim in dims):
        raise NotCoveredError("it has entries that share their memory")
    if any(block not in (1, size) for size, block in zip(shape, blocks, strict=True)):
        raise NotCoveredError(f"it has shape {tuple(shape)}, and a statistic of shape {tuple(blocks)}")
    if 0 in shape:  # a matrix without rows: only its statistics fade
        count = math.prod(blocks)
        scales = _merge([dim._replace(strides=dim.strides[3:] * 4) for dim in dims if not dim.inside])
        if how in (_SPARSE, _IN_PARTS) or (count > 1 and (len(scales) > 1 or scales[0].strides[0] != 1)):
            raise NotCoveredError("it is empty")
        return (1,) * 8 + (0, count, _PER_INNER)
    if how == _SPARSE:
        return _sparse_matrix(dims)
    inside, outside = (_merge([dim for dim in dims if dim.inside is flag]) for flag in (True, False))
    if how == _LONE and len(inside) == 1:  # summed in the order in which it is summed among others
        row = _Dim(1, (1,) * 4, inside=False)
        return _packed([row, *inside], _PER_OUTER) if shape[0] == 1 else _packed([*inside, row], _PER_INNER)
    if how == _IN_PARTS and not inside:  # one row of a matrix, or the one entry of a tensor
        inside = [_Dim(1, (sys.maxsize,) * 4, inside=True)]
    if not (inside and outside) and len(inside + outside) <= 2:
        return _packed(inside + outside, _PER_TENSOR if inside else _PER_ENTRY)
    if len(inside) > 1 or len(outside) > 1 or outside[0].strides[3] != 1:
        raise NotCoveredError("its blocks, or its strides, do not make a matrix")
    if inside[0].strides[0] <= outside[0].strides[0]:
        return _packed(outside + inside, _PER_OUTER)
    return _packed(inside + outside, _PER_INNER)


def _sparse_matrix(dims: list[_Dim]) -> tuple[int, ...]:
    """The same with the first dimension as the rows, whatever its stride."""
    rows, rest = dims[0], _merge(dims[1:])
    if len(rest) > 1 or len({dim.inside for dim in dims[1:]}) > 1:
        raise NotCoveredError("its rows are cut into blocks, or lie in more than one piece")
    row = rest[0] if rest else _Dim(1, (1,) * 4, inside=True)
    kind = ((_PER_ENTRY, _PER_OUTER), (_PER_INNER, _PER_TENSOR))[rows.inside][row.inside]
    if kind in (_PER_OUTER, _PER_INNER) and (rows if kind == _PER_OUTER else row).strides[3] != 1:
        raise NotCoveredError("its statistic has gaps")
    return _packed([rows, row], kind)


def _merge(dims: list[_Dim]) -> list[_Dim]:
    """As few dimensions as walk the same memory; the order of dimensions of a kind does not matter."""
    merged: list[_Dim] = []
    for dim in sorted(dims, key=lambda dim: dim.strides, reverse=True):
        if merged and all(a == dim.size * b for a, b in zip(merged[-1].strides, dim.strides, strict=True)):
            merged[-1] = dim._replace(size=merged[-1].size * dim.size)
        else:
            merged.append(dim)
    return merged


def _packed(matrix: list[_Dim], kind: int) -> tuple[int, ...]:
    outer, inner = [_Dim(1, (1,) * 4, inside=True)] * (2 - len(matrix)) + matrix
    strides = [stride for pair in zip(outer.strides, inner.strides, strict=True) for stride in pair]
    return (*strides, outer.size, inner.size, kind)


# ----------------------------------------------------------------------------------------------- what C is handed


_pack = struct.Struct(f"{native.TENSOR_FIELDS}q").pack  # a third of the time that an array takes to be extended


def describe(batch: Batch, i: int, sums: Tensor | None = None) -> bytes:
    """One tensor as a ``struct tensor`` of kernels.h; an error if it is beyond the kernels.

    With ``sums``, which are laid out like the statistic, a step can be taken in parts.
    """
    x, g, statistic, step = batch.params[i], batch.grads[i], batch.statistics[i], batch.steps[i]
    average = batch.averages[i] if batch.averages else statistic
    dtype = _COVERED.get((x.dtype, g.dtype, statistic.dtype, average.dtype))
    if dtype is None or native.missing() or not _are_arrays(x, g, statistic, average, step):
        raise NotCoveredError(_reason(x, g, statistic, average, step))
    is_sparse = g.layout is torch.sparse_coo
    if g.shape != x.shape or (batch.averages and average.shape != x.shape):
        raise NotCoveredError(f"it has shape {tuple(x.shape)}, and its gradient or state has another")
    index = touched = offsets = bags = 0
    if is_sparse:
        rows, starts, g = g.entries() if isinstance(g, BagGradient) else (g._indices()[0], None, g._values())
        index, touched = rows.data_ptr(), rows.numel()
        if starts is not None:
            offsets, bags = starts.data_ptr(), len(starts) - 1
        if max(x.shape[0], touched, bags) >= native.MOST_ROWS:
            raise NotCoveredError("there are too many rows in its sparse gradient")
        if not (rows.is_contiguous() and (starts is None or starts.is_contiguous())):
            raise NotCoveredError("the indices of its sparse gradient have gaps in memory")
    strides, g_strides = x.stride(), g.stride()
    average_strides = average.stride() if batch.averages else strides
    shape, blocks = x.shape, statistic.shape
    if len(blocks) != len(shape):
        raise NotCoveredError("the rows of its sparse gradient share scales in groups")
    how = _SPARSE if is_sparse else _IN_PARTS if sums is not None else _LONE if batch.lone[i] else _DENSE
    layout, x_span, g_span = _layout(shape, blocks, (strides, g_strides, average_strides, statistic.stride()), how)
    x_outer, x_inner, g_outer, g_inner, average_outer, average_inner, v_outer, v_inner, outer, inner, kind = layout
    x_at, g_at, statistic_at, step_at = x.data_ptr(), g.data_ptr(), statistic.data_ptr(), step.data_ptr()
    average_at = average.data_ptr() if batch.averages else statistic_at
    if not (x_at and g_at and average_at and statistic_at and step_at) and min(x.numel(), g.numel(), statistic.numel()):
        raise RuntimeError(f"a parameter of shape {tuple(shape)} has lost its memory, or its gradient or state has")
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
            "give the gradient memory of its own, as grad.clone() does"
        )
    return _pack(
        *(x_at, x_outer, x_inner),
        *(g_at, g_outer, g_inner),
        *(average_at if batch.averages else 0, average_outer, average_inner),
        *(statistic_at, v_outer, v_inner),
        *(outer, inner, kind, dtype),
        *(step_at, step.dtype is torch.float64, index, touched),
        *(batch.members[i], 0 if sums is None else sums.data_ptr(), batch.numbers[i], offsets, bags),
    )


def _are_arrays(x: Tensor, g: Tensor, statistic: Tensor, average: Tensor, step: Tensor) -> bool:
    """Whether the numbers of all of them lie in this machine's memory as they are; what is sparse has no strides."""
    return (
        (x.is_cpu and g.is_cpu and statistic.is_cpu and average.is_cpu and step.is_cpu)
        and (type(g) in PLAIN or type(g) is BagGradient or are_plain((g,)))
        and (
            (type(x) in PLAIN and type(statistic) in PLAIN and type(average) in PLAIN and type(step) in PLAIN)
            or are_plain((x, statistic, average, step))
        )
        and (g.layout is torch.strided or g.layout is torch.sparse_coo)
        and not (x.is_neg() or g.is_neg() or g._is_zerotensor())
        and (step.dtype is torch.float32 or step.dtype is torch.float64)
        and step.numel() == 1
    )


def _reason(x: Tensor, g: Tensor, statistic: Tensor, average: Tensor, step: Tensor) -> str:
    if native.missing():
        return native.missing()
    tensors = {"it": x, "its gradient": g, "its statistic": statistic, "its average": average, "its step count": step}
    where = ", ".join(f"{name} {_described(tensor)}" for name, tensor in tensors.items())
    return f"{where}: they work on plain arrays of a CPU, of one dtype"


def _described(x: Tensor) -> str:
    kind = "" if are_plain((x,)) else f"{type(x).__name__} "
    return f"is a {kind}of {x.dtype} on {x.device}, {x.layout}"


def _rule(rule: Rule, random: bool) -> bytes:
    """The fields of ``struct rule``."""
    beta1, beta2 = rule.betas or (0.0, 0.0)
    return struct.pack(
        native.RULE,
        float(rule.lr),
        rule.eps,
        rule.weight_decay,
        beta1,
        beta2,
        rule.betas is not None,
        rule.bias_correction,
        rule.decoupled_weight_decay,
        rule.maximize,
        (rule.seed or int(torch.randint(1, 1 << 62, (), device="cpu"))) if random else 0,
    )


# ------------------------------------------------------------------------------------------------------------ the step


def fused(batch: Batch, rule: Rule) -> None:
    """One step for every parameter: what `reference` does, up to rounding; for sparse gradients, what `sparse` does."""
    fields = array.array("q")
    for i in range(len(batch.params)):
        fields.frombytes(describe(batch, i))
    run(fields, batch, rule)


def run(fields: array.array[int], batch: Batch, rule: Rule, what: int = native.READ | native.MOVE) -> None:
    """The step, or a part of it, of tensors that are described already."""
    library = native.load()
    at, _ = fields.buffer_info()
    random = rule.stochastic_rounding and any(param.dtype is torch.bfloat16 for param in batch.params)
    torch.autograd.graph.increment_version([*batch.params, *batch.averages, *batch.statistics, *batch.steps])
    arguments = at, len(batch.params), _rule(rule, random), native.threads()
    if batch.grads[0].is_sparse:
        refused = _with_room(library.matrix_adagrad_sparse_step, *arguments)
        if refused:
            raise IndexError(_what_is_missing(batch, -1 - refused))
    else:
        _with_room(library.matrix_adagrad_step, *arguments, what)


class _Kept(threading.local):
    room = torch.empty(0, dtype=torch.uint8, device="cpu")


_kept, _KEPT_BYTES = _Kept(), 1 << 24


def _with_room(kernel: Callable[..., int], *arguments: object) -> int:
    """Run a kernel with some bytes to work in. If they are too few it does nothing, and returns how many it needs.

    A few are kept for the next time, since new ones from the system take long to arrive.
    """
    room = _kept.room
    while (answer := kernel(*arguments, room.data_ptr(), room.numel())) > 0:
        try:
            room = torch.empty(answer, dtype=torch.uint8, device="cpu")  # whatever the default device is
        except RuntimeError:
            raise MemoryError(f"no step was taken: it needs {answer} bytes to work in, and there are fewer") from None
        if answer <= _KEPT_BYTES:
            _kept.room = room
    return answer


def _what_is_missing(batch: Batch, i: int) -> str:
    rows = batch.params[i].shape[0]
    return (
        f"the sparse gradient of a table with {rows} rows has an index out of range, or bags that do not cover its "
        "indices: were they written to during the step? No step was taken"
    )


def compiled(batch: Batch, rule: Rule) -> None:
    """The same as one operator, which torch.compile and fake tensors know."""
    beta1, beta2 = rule.betas or (0.0, 0.0)
    torch.ops.matrix_adagrad.step(
        *batch,
        rule.lr if isinstance(rule.lr, Tensor) else torch.tensor(rule.lr, dtype=torch.float64, device="cpu"),
        [rule.eps, rule.weight_decay, beta1, beta2],
        [
            rule.betas is not None,
            rule.bias_correction,
            rule.decoupled_weight_decay,
            rule.maximize,
            rule.stochastic_rounding,
        ],
    )


@torch.library.custom_op("matrix_adagrad::step", mutates_args=("params", "averages", "statistics", "steps"))
def _step(
    params: list[Tensor],
    grads: list[Tensor],
    averages: list[Tensor],
    statistics: list[Tensor],
    steps: list[Tensor],
    members: list[int],
    lone: list[bool],
    numbers: list[int],
    lr: Tensor,
    reals: list[float],
    flags: list[bool],
) -> None:
    eps, weight_decay, beta1, beta2 = reals
    momentum, bias_correction, decoupled, maximize, stochastic_rounding = flags
    rule = Rule(
        geometry=Entry(),  # of this and of the next the batch knows what it needs
        reduction="sum",
        lr=lr,
        eps=eps,
        betas=(beta1, beta2) if momentum else None,
        bias_correction=bias_correction,
        weight_decay=weight_decay,
        decoupled_weight_decay=decoupled,
        maximize=maximize,
        stochastic_rounding=stochastic_rounding,
        capturable=False,
    )
    try:
        fused(Batch(params, grads, averages, statistics, steps, members, lone, numbers), rule)
    except NotCoveredError as reason:
        raise reason.refusal() from None


@_step.register_fake
def _(*_: object) -> None:
    return
