"""Tensors as matrices: the kernels see two dimensions, whatever a tensor has.

Dimensions along which entries share a scale are merged into one, and the others into another. If the memory layout does
not allow this, the kernels do not cover the tensor. Scales from rows and columns are for batches of matrices: the last
two dimensions stay, and those before are merged.
"""

from __future__ import annotations

import enum
import functools
import math
import sys
from typing import NamedTuple

__all__ = ["PER_ENTRY", "MatrixLayout", "NotCoveredError", "StepKind", "factored_layout", "matrix_layout"]

# enum kind of kernels.h: which entries share a scale
PER_OUTER, PER_INNER, PER_ENTRY, PER_TENSOR, PER_BOTH = range(5)


class StepKind(enum.Enum):
    """What a step asks of the layout."""

    DENSE = enum.auto()
    SPARSE = enum.auto()  # rows are the first dimension, whatever its stride
    IN_PARTS = enum.auto()  # sums are returned between reading and moving
    SINGLE_BLOCK = enum.auto()  # one row or column of a larger matrix, summed in the same order as there


class NotCoveredError(Exception):
    """The kernels do not cover a tensor, for the reason given."""


class MatrixLayout(NamedTuple):
    """A tensor as a matrix, or as a batch of matrices."""

    strides: tuple[tuple[int, ...], ...]  # from matrix to matrix, outer and inner: of x, g, average and statistics
    outer: int
    inner: int
    kind: int
    x_span: int  # how many entries of memory it reaches over, and its gradient
    g_span: int
    matrices: int = 1
    is_transposed: bool = False  # its rows are the inner dimension


class _Dim(NamedTuple):
    """A dimension: its size, its strides in x, g, average and statistic, and whether it lies inside a block."""

    size: int
    strides: tuple[int, ...]
    inside: bool


@functools.lru_cache(maxsize=1 << 14)
def matrix_layout(
    shape: tuple[int, ...], blocks: tuple[int, ...], strides: tuple[tuple[int, ...], ...], kind_of_step: StepKind
) -> MatrixLayout:
    """A tensor as a `_matrix`. The strides are those of x, g, average and statistic."""
    spans = _spans(shape, strides)
    *numbers, outer, inner, kind = _matrix(shape, blocks, strides, kind_of_step)
    pairs = zip(numbers[::2], numbers[1::2], strict=True)
    return MatrixLayout(tuple((0, *pair) for pair in pairs), outer, inner, kind, *spans)


@functools.lru_cache(maxsize=1 << 14)
def factored_layout(
    shape: tuple[int, ...], strides: tuple[tuple[int, ...], ...], kind_of_step: StepKind
) -> MatrixLayout:
    """A batch of matrices with statistics of rows, columns and perhaps wholes, whose strides come last."""
    spans, (m, n) = _spans(shape, strides), shape[-2:]
    x, row, column = strides[0], *strides[3:5]
    is_sparse = kind_of_step == StepKind.SPARSE  # then g has rows of its own, more or fewer than m
    if kind_of_step == StepKind.IN_PARTS or (is_sparse and len(shape) > 2):
        raise NotCoveredError("its rows and columns lie in more than one part")
    if is_sparse and 0 in shape:
        raise NotCoveredError("it is empty")
    batch = _merge(
        [_Dim(size, tuple(own[d] for own in strides), inside=False) for d, size in enumerate(shape[:-2]) if size != 1]
    )
    if len(batch) > 1 or (m > 1 and row[-2] != 1) or (n > 1 and column[-1] != 1):
        raise NotCoveredError("its matrices, or their statistics, have gaps in memory")
    # Where there are no columns, the statistics of rows fade all the same: they are those of the inner dimension.
    is_transposed = not is_sparse and (n == 0 or (m > 1 and (n == 1 or x[-2] < x[-1])))
    matrices, apart = (batch[0].size, batch[0].strides) if batch else (1, (0,) * len(strides))
    sizes, dims = (m, n), (-2, -1)
    if is_transposed:
        sizes, dims = (n, m), (-1, -2)
    own = [
        (between, *(stride[d] if size > 1 or is_sparse else 1 for d, size in zip(dims, sizes, strict=True)))
        for between, stride in zip(apart, strides, strict=True)
    ]
    if is_transposed:  # the statistic of the outer dimension comes first
        own[3], own[4] = own[4], own[3]
    return MatrixLayout(tuple(own), *sizes, PER_BOTH, *spans, matrices, is_transposed)


def _spans(shape: tuple[int, ...], strides: tuple[tuple[int, ...], ...]) -> tuple[int, int]:
    """How many entries of memory a tensor and its gradient span."""
    if _overlaps(shape, strides[0]) or _overlaps(shape, strides[2]):
        raise NotCoveredError("some of its entries share memory")
    x_span, g_span = (
        1 + sum((size - 1) * stride for size, stride in zip(shape, own, strict=True)) for own in strides[:2]
    )
    return x_span, g_span


def _overlaps(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether entries may share memory: a stride is no larger than the span of the dimensions inside it."""
    span = 0  # from the first entry to the last one of these dimensions
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size > 1:
            if stride <= span:
                return True
            span += (size - 1) * stride
    return False


def _matrix(
    shape: tuple[int, ...], blocks: tuple[int, ...], strides: tuple[tuple[int, ...], ...], kind_of_step: StepKind
) -> tuple[int, ...]:
    """The layout of a tensor as a matrix: outer and inner strides of its four arrays, outer, inner and the kind.

    ``blocks`` is the statistic's shape: a dimension lies inside a block where it has size 1.
    """
    dims = [
        _Dim(size, (*(stride[d] for stride in strides[:3]), 0 if block == 1 else strides[3][d]), block == 1)
        for d, (size, block) in enumerate(zip(shape, blocks, strict=True))
        if size != 1 or (kind_of_step == StepKind.SPARSE and d == 0)
    ]
    if any(dim.size > 1 and not (dim.inside or dim.strides[3]) for dim in dims):
        raise NotCoveredError("some of its entries share memory")
    if any(block not in (1, size) for size, block in zip(shape, blocks, strict=True)):
        raise NotCoveredError(f"it has shape {tuple(shape)}, and a statistic of shape {tuple(blocks)}")
    if 0 in shape:  # a matrix without rows: only its statistics fade
        count = math.prod(blocks)
        scales = _merge([dim._replace(strides=dim.strides[3:] * 4) for dim in dims if not dim.inside])
        if kind_of_step in (StepKind.SPARSE, StepKind.IN_PARTS) or (
            count > 1 and (len(scales) > 1 or scales[0].strides[0] != 1)
        ):
            raise NotCoveredError("it is empty")
        return (1,) * 8 + (0, count, PER_INNER)
    if kind_of_step == StepKind.SPARSE:
        return _sparse_matrix(dims)
    inside, outside = (_merge([dim for dim in dims if dim.inside is flag]) for flag in (True, False))
    if kind_of_step == StepKind.SINGLE_BLOCK and len(inside) == 1:  # in the same order as among other blocks
        row = _Dim(1, (1,) * 4, inside=False)
        return _as_fields([row, *inside], PER_OUTER) if shape[0] == 1 else _as_fields([*inside, row], PER_INNER)
    if kind_of_step == StepKind.IN_PARTS and not inside:  # one row of a matrix, or the one entry of a tensor
        inside = [_Dim(1, (sys.maxsize,) * 4, inside=True)]
    if not (inside and outside) and len(inside + outside) <= 2:
        return _as_fields(inside + outside, PER_TENSOR if inside else PER_ENTRY)
    if len(inside) > 1 or len(outside) > 1 or outside[0].strides[3] != 1:
        raise NotCoveredError("its blocks or strides do not form a matrix")
    if inside[0].strides[0] <= outside[0].strides[0]:
        return _as_fields(outside + inside, PER_OUTER)
    return _as_fields(inside + outside, PER_INNER)


def _sparse_matrix(dims: list[_Dim]) -> tuple[int, ...]:
    """The same, with the first dimension as rows, whatever its stride."""
    rows, rest = dims[0], _merge(dims[1:])
    if len(rest) > 1 or len({dim.inside for dim in dims[1:]}) > 1:
        raise NotCoveredError("its rows are cut into blocks or are not contiguous")
    row = rest[0] if rest else _Dim(1, (1,) * 4, inside=True)
    kind = ((PER_ENTRY, PER_OUTER), (PER_INNER, PER_TENSOR))[rows.inside][row.inside]
    if kind in (PER_OUTER, PER_INNER) and (rows if kind == PER_OUTER else row).strides[3] != 1:
        raise NotCoveredError("its statistic has gaps")
    return _as_fields([rows, row], kind)


def _merge(dims: list[_Dim]) -> list[_Dim]:
    """The fewest dimensions that cover the same memory. The order of dimensions of one kind does not matter."""
    merged: list[_Dim] = []
    for dim in sorted(dims, key=lambda dim: dim.strides, reverse=True):
        if merged and all(a == dim.size * b for a, b in zip(merged[-1].strides, dim.strides, strict=True)):
            merged[-1] = dim._replace(size=merged[-1].size * dim.size)
        else:
            merged.append(dim)
    return merged


def _as_fields(matrix: list[_Dim], kind: int) -> tuple[int, ...]:
    outer, inner = [_Dim(1, (1,) * 4, inside=True)] * (2 - len(matrix)) + matrix
    strides = [stride for pair in zip(outer.strides, inner.strides, strict=True) for stride in pair]
    return (*strides, outer.size, inner.size, kind)
