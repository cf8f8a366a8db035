"""Tensors as matrices: the kernels see two dimensions, whatever a tensor has.

Dimensions along which entries share a scale are merged into one, and the others into another. Where memory does not
allow it, the tensor is not for the kernels.
"""

from __future__ import annotations

import enum
import functools
import math
import sys
from typing import NamedTuple

__all__ = ["NotCoveredError", "StepKind", "matrix_layout"]

_PER_OUTER, _PER_INNER, _PER_ENTRY, _PER_TENSOR = range(4)  # enum kind of kernels.h: which entries share a scale


class StepKind(enum.Enum):
    """What a step asks of the layout."""

    DENSE = enum.auto()
    SPARSE = enum.auto()  # rows are the first dimension, whatever its stride
    IN_PARTS = enum.auto()  # sums are handed out between reading and moving
    SINGLE_BLOCK = enum.auto()  # one row, or column, of a matrix that has more: summed in the order that it has there


class NotCoveredError(Exception):
    """The kernels do not cover a tensor, for the reason given."""


class _Dim(NamedTuple):
    """A dimension: its size, its strides in x, g, average and statistic, and whether it lies inside a block."""

    size: int
    strides: tuple[int, ...]
    inside: bool


@functools.lru_cache(maxsize=1 << 14)
def matrix_layout(
    shape: tuple[int, ...], blocks: tuple[int, ...], strides: tuple[tuple[int, ...], ...], kind_of_step: StepKind
) -> tuple[tuple[int, ...], int, int]:
    """A tensor as a `_matrix`, and how many entries of memory it reaches over, and its gradient."""
    x_span, g_span = (
        1 + sum((size - 1) * stride for size, stride in zip(shape, own, strict=True)) for own in strides[:2]
    )
    if _overlaps(shape, strides[0]) or _overlaps(shape, strides[2]):
        raise NotCoveredError("it has entries that share their memory")
    return _matrix(shape, blocks, strides, kind_of_step), x_span, g_span


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
        raise NotCoveredError("it has entries that share their memory")
    if any(block not in (1, size) for size, block in zip(shape, blocks, strict=True)):
        raise NotCoveredError(f"it has shape {tuple(shape)}, and a statistic of shape {tuple(blocks)}")
    if 0 in shape:  # a matrix without rows: only its statistics fade
        count = math.prod(blocks)
        scales = _merge([dim._replace(strides=dim.strides[3:] * 4) for dim in dims if not dim.inside])
        if kind_of_step in (StepKind.SPARSE, StepKind.IN_PARTS) or (
            count > 1 and (len(scales) > 1 or scales[0].strides[0] != 1)
        ):
            raise NotCoveredError("it is empty")
        return (1,) * 8 + (0, count, _PER_INNER)
    if kind_of_step == StepKind.SPARSE:
        return _sparse_matrix(dims)
    inside, outside = (_merge([dim for dim in dims if dim.inside is flag]) for flag in (True, False))
    if (
        kind_of_step == StepKind.SINGLE_BLOCK and len(inside) == 1
    ):  # summed in the order in which it is summed among others
        row = _Dim(1, (1,) * 4, inside=False)
        return _as_fields([row, *inside], _PER_OUTER) if shape[0] == 1 else _as_fields([*inside, row], _PER_INNER)
    if kind_of_step == StepKind.IN_PARTS and not inside:  # one row of a matrix, or the one entry of a tensor
        inside = [_Dim(1, (sys.maxsize,) * 4, inside=True)]
    if not (inside and outside) and len(inside + outside) <= 2:
        return _as_fields(inside + outside, _PER_TENSOR if inside else _PER_ENTRY)
    if len(inside) > 1 or len(outside) > 1 or outside[0].strides[3] != 1:
        raise NotCoveredError("its blocks, or its strides, do not make a matrix")
    if inside[0].strides[0] <= outside[0].strides[0]:
        return _as_fields(outside + inside, _PER_OUTER)
    return _as_fields(inside + outside, _PER_INNER)


def _sparse_matrix(dims: list[_Dim]) -> tuple[int, ...]:
    """The same with the first dimension as the rows, whatever its stride."""
    rows, rest = dims[0], _merge(dims[1:])
    if len(rest) > 1 or len({dim.inside for dim in dims[1:]}) > 1:
        raise NotCoveredError("its rows are cut into blocks, or lie in more than one piece")
    row = rest[0] if rest else _Dim(1, (1,) * 4, inside=True)
    kind = ((_PER_ENTRY, _PER_OUTER), (_PER_INNER, _PER_TENSOR))[rows.inside][row.inside]
    if kind in (_PER_OUTER, _PER_INNER) and (rows if kind == _PER_OUTER else row).strides[3] != 1:
        raise NotCoveredError("its statistic has gaps")
    return _as_fields([rows, row], kind)


def _merge(dims: list[_Dim]) -> list[_Dim]:
    """As few dimensions as walk the same memory; the order of dimensions of a kind does not matter."""
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
