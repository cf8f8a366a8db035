"""The Triton kernels that sum the values of a sparse gradient by row.

The index is sorted, so the values of a row are a segment. A long one is cut into runs, which are summed side by side.
Each sum has a fixed order, without atomics.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["sum_runs", "sum_segments"]


@triton.jit(do_not_specialize=["width", "value_stride", "column_stride"])
def sum_runs(
    ends, order, values, partial, width: tl.int64, value_stride: tl.int64, column_stride: tl.int64,
    RUN: tl.constexpr, BLOCK: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """The values of every RUN entries of a sorted index that are in the middle of a longer segment, summed.

    Such runs start at multiples of RUN and end there, or with their segment.
    """
    run = tl.program_id(0)
    first = run * RUN
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    end = tl.minimum(tl.load(ends + first), first + RUN)
    total = _summed(order, values, first, end, columns, width, value_stride, column_stride, BLOCK, ALIGNED)
    tl.store(partial + run * width + columns, total, mask=columns < width)


@triton.jit(do_not_specialize=["width", "value_stride", "column_stride"])
def sum_segments(
    index, ends, order, values, partial, sums, width: tl.int64, value_stride: tl.int64, column_stride: tl.int64,
    RUN: tl.constexpr, BLOCK: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """The gradient of each row, at its first place in the sorted index: the sum of its values, in their order."""
    first = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    own = tl.load(index + first)
    before = tl.load(index + first - 1, mask=first > 0, other=-1)
    if own != before:
        end = tl.load(ends + first)
        next_run = tl.cdiv(first, RUN) * RUN
        total = _summed(
            order, values, first, tl.minimum(end, next_run), columns, width, value_stride, column_stride, BLOCK, ALIGNED
        )
        for start in range(next_run, end, RUN):
            at = partial + (start // RUN) * width + columns
            total += tl.load(at, mask=columns < width, other=0.0)
        tl.store(sums + first * width + columns, total, mask=columns < width)


@triton.jit
def _summed(
    order, values, first, end, columns, width, value_stride, column_stride, BLOCK: tl.constexpr, ALIGNED: tl.constexpr
):
    total = tl.zeros((BLOCK,), tl.float32)
    for entry in range(first, end):
        at = values + tl.load(order + entry) * value_stride
        if ALIGNED:
            at += columns
        else:
            at += columns * column_stride
        total += tl.load(at, mask=columns < width, other=0.0).to(tl.float32)
    return total
