"""The Triton kernels. `triton.py` describes tensors to them, and says in which order they run.

A tensor is a batch of matrices, ``outer`` rows of ``inner`` entries, as in the C kernels. A launch steps a list of
them: each has a row of ``WORDS`` numbers in a table, and a program finds its own by bisection. Where a tile holds whole
blocks, `step_tiles` does everything in one pass. Elsewhere `read_tiles` leaves partial sums of squares, `finish_sums`
adds them up in a fixed order, updates the statistics and leaves factors of the scales, and `move_tiles` moves the
parameters. No sum uses atomics, so results have the same bits on every run. Those of sparse gradients are summed by row
before: see `triton_sums.py`.
"""

# mypy: ignore-errors

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

__all__ = [
    "Numbers",
    "average_tiles",
    "finish_sums",
    "move_along_tiles",
    "move_tiles",
    "read_tiles",
    "step_tiles",
    "write_gradients",
]


class Numbers(NamedTuple):
    """The numbers of a configuration. The learning rate may be a pointer."""

    lr: float
    eps: float
    sign: float  # -1 to maximize
    l2: float
    decay: float  # of decoupled weight decay
    beta1: float
    one_minus_beta1: float
    beta2: float
    one_minus_beta2: float
    log_beta1: float
    log_beta2: float
    steepest: float  # the size of a step of steepest descent at lr = 1


# ------------------------------------------------------------------------------------------------------------ the table

# The numbers of a row. Strides are in entries. Sums and factors are places in `room`, which is float32.
# fmt: off
(
    TILES_START, OUTER_START, INNER_START, WHOLE_START,  # the first program, in a launch over tiles or statistics
    X, X_BATCH, X_OUTER, X_INNER,  # where the parameter is, and its strides
    G, G_BATCH, G_OUTER, G_INNER,
    AVERAGE, AVERAGE_BATCH, AVERAGE_OUTER, AVERAGE_INNER,
    V, V_BATCH, V_OUTER, V_INNER,  # the statistic; that of the outer dimension, if there are several
    COLUMNS, COLUMNS_BATCH, WHOLE, WHOLE_BATCH,  # the others
    OUTER, INNER,  # the size of a matrix
    CHUNK, CHUNKS, TILES,  # rows of a program; programs down and across
    DIVISOR, COLUMNS_DIVISOR, WHOLE_DIVISOR,
    STEP,  # where the step count is; or how far it is behind that of the launch
    INDEX, ROWS,  # the sorted rows of a sparse gradient, and how many the table has
    SUMS_OUTER, SUMS_INNER, SUMS_WHOLE,
    FACTOR_OUTER, FACTOR_INNER, FACTOR_WHOLE,
) = (tl.constexpr(i) for i in range(41))
# fmt: on
WORD_NAMES = [name for name, value in vars().items() if name.isupper() and isinstance(value, tl.constexpr)]
WORDS = tl.constexpr(len(WORD_NAMES))

# Which entries share a scale: `native.matrices` has the same numbers.
PER_OUTER, PER_INNER, PER_ENTRY, PER_TENSOR, PER_BOTH = (tl.constexpr(i) for i in range(5))
PRODUCT, GEOMETRIC, MINIMUM = (tl.constexpr(i) for i in range(3))  # how rows and columns combine
NO_MOMENTUM, MOMENTUM, NESTEROV = (tl.constexpr(i) for i in range(3))  # what x moves along

_MAX = tl.constexpr(3.4028234663852886e38)
_STREAM_OF_AVERAGE = tl.constexpr(0x2545F4914F6CDD1D)  # a parameter and its average draw different numbers


@triton.jit(do_not_specialize=["start", "tensors"])
def write_gradients(table, start, tensors, g0: tl.int64, g1: tl.int64, g2: tl.int64, g3: tl.int64):
    """Write where the gradients of four tensors are. These are arguments of the launch: a captured graph keeps them."""
    row = table + start * WORDS + G
    tl.store(row, g0)
    tl.store(row + WORDS, g1, mask=start + 1 < tensors)
    tl.store(row + 2 * WORDS, g2, mask=start + 2 < tensors)
    tl.store(row + 3 * WORDS, g3, mask=start + 3 < tensors)


@triton.jit
def _row_of(table, tensors, start: tl.constexpr, program):
    """The row of the tensor that a program works on: the last one that starts no later."""
    low = 0
    high = tensors - 1
    while low < high:
        middle = (low + high + 1) // 2
        starts = tl.load(table + middle * WORDS + start) <= program
        low = tl.where(starts, middle, low)
        high = tl.where(starts, high, middle - 1)
    return low


@triton.jit
def _pointer(row, word: tl.constexpr, dtype: tl.constexpr, is_aligned: tl.constexpr):
    at = tl.load(row + word).to(tl.pointer_type(dtype))
    if is_aligned:
        at = tl.multiple_of(at, 16)
    return at


@triton.jit
def _stride(row, word: tl.constexpr, is_aligned: tl.constexpr):
    stride = tl.load(row + word)
    if is_aligned:
        stride = tl.multiple_of(stride, 16)
    return stride


@triton.jit
def _places(row, array: tl.constexpr, dtype: tl.constexpr, matrix, rows, columns, is_aligned: tl.constexpr):
    """Pointers to the entries of a tile."""
    at = _pointer(row, array, dtype, is_aligned) + matrix * _stride(row, array + 1, is_aligned)
    at += rows[:, None] * _stride(row, array + 2, is_aligned)
    if is_aligned:  # then entries of a row are contiguous
        at += columns[None, :]
    else:
        at += columns[None, :] * tl.load(row + array + 3)
    return at


@triton.jit
def _tile(row, BLOCK_INNER: tl.constexpr, is_aligned: tl.constexpr):
    """The matrix, the chunk and the tile of a program, its columns, and how many rows and columns there are."""
    program = tl.program_id(0) - tl.load(row + TILES_START)
    tiles = tl.load(row + TILES)
    chunks = tl.load(row + CHUNKS)
    above = program // tiles
    columns = (program % tiles) * BLOCK_INNER + tl.arange(0, BLOCK_INNER)
    return (
        above // chunks,
        above % chunks,
        program % tiles,
        columns,
        tl.load(row + OUTER),
        _stride(row, INNER, is_aligned),
    )


@triton.jit
def _touched(row, positions, is_inside):
    """The rows of a table that positions in a sorted index stand for, and which of them are the first of their run.

    A row that the table does not have is left out: not every device stops at the error that it is.
    """
    index = tl.load(row + INDEX).to(tl.pointer_type(tl.int64))
    rows = tl.load(index + positions, mask=is_inside, other=-1)
    before = tl.load(index + positions - 1, mask=is_inside & (positions > 0), other=-1)
    return rows, is_inside & (rows != before) & (rows >= 0) & (rows < tl.load(row + ROWS))


# ----------------------------------------------------------------------------------------------------------- the update


class _Settings(NamedTuple):
    lr: tl.tensor
    v_correction: tl.tensor
    nesterov_weight: tl.tensor
    shrinkage: tl.tensor


@triton.jit
def _settings(
    row, u, now, LR_ON_DEVICE: tl.constexpr, STEP_ON_DEVICE: tl.constexpr, BIAS_CORRECTION: tl.constexpr,
    DIRECTION: tl.constexpr, STEEPEST: tl.constexpr,
):  # fmt: skip
    """What depends on the step alone: the rate and the correction of V, and the weight of the average for Nesterov."""
    lr = tl.load(u.lr).to(tl.float32) if LR_ON_DEVICE else u.lr
    shrinkage = 1.0 - lr * u.decay
    v_correction = 1.0
    nesterov_weight = u.beta1
    if STEEPEST:
        lr = lr * u.steepest * tl.sqrt_rn(tl.load(row + DIVISOR).to(tl.float32))
    elif BIAS_CORRECTION:
        if STEP_ON_DEVICE:
            t = tl.load(tl.load(row + STEP).to(tl.pointer_type(tl.float32))).to(tl.float64)
        else:
            t = (now - tl.load(row + STEP)).to(tl.float64)
        correction1 = 1.0 - tl.exp(t * u.log_beta1)  # in float64: 1 - 0.999 has four digits in float32
        lr = (lr / correction1).to(tl.float32)
        v_correction = (1.0 / (1.0 - tl.exp(t * u.log_beta2))).to(tl.float32)
        if DIRECTION == NESTEROV:
            nesterov_weight = (u.beta1 * correction1 / (1.0 - tl.exp((t + 1.0) * u.log_beta1))).to(tl.float32)
    return lr, v_correction, nesterov_weight, shrinkage


@triton.jit
def _gradient(u, g, x, HAS_L2: tl.constexpr):
    """G_t: the gradient of what is minimized, with its penalty."""
    g = g.to(tl.float32) * u.sign
    if HAS_L2:
        g += u.l2 * x.to(tl.float32)
    return g


@triton.jit
def _joined(u, average, g):
    """D_t = β₁ D_{t-1} + (1 - β₁) G_t, as torch's lerp computes it."""
    average = average.to(tl.float32)
    difference = g - average
    return tl.where(u.beta1 > 0.5, average + u.one_minus_beta1 * difference, g - u.beta1 * difference)


@triton.jit
def _direction(u, average, g, nesterov_weight, DIRECTION: tl.constexpr):
    """What x moves along."""
    if DIRECTION == NESTEROV:
        direction = nesterov_weight * average + u.one_minus_beta1 * g
    elif DIRECTION == MOMENTUM:
        direction = average
    else:
        direction = g
    return direction


@triton.jit
def _accumulated(u, v, squares, divisor, AVERAGES: tl.constexpr):
    """V_t."""
    squares = tl.div_rn(squares, divisor.to(tl.float32) + tl.zeros_like(squares))
    return u.beta2 * v + u.one_minus_beta2 * squares if AVERAGES else v + squares


@triton.jit
def _quotient(lr, s):
    """Lr / s, with 0/0 = 0, and never infinite."""
    is_zero = s == 0
    scale = tl.div_rn(lr + tl.zeros_like(s), tl.where(is_zero, 1.0, s))
    return tl.where(is_zero, 0.0, tl.where(scale > _MAX, _MAX, scale))


@triton.jit
def _root(v):
    return tl.sqrt_rn(v)


@triton.jit
def _noise(stream, rows, columns):
    """32 bits for each entry, a hash of the stream, the row and the column: the C kernels draw the same ones."""
    seed = (stream.to(tl.uint64, bitcast=True) * 0x9E3779B97F4A7C15 + 1) | 1
    z = seed + rows.to(tl.uint64, bitcast=True)
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    u = (z >> 32).to(tl.uint32)[:, None] + columns.to(tl.uint32)[None, :]
    u = (u ^ (u >> 16)) * 0x7FEB352D
    return (u ^ (u >> 15)) * 0x846CA68B


@triton.jit
def _rounded(x, noise, dtype: tl.constexpr):
    """``x`` (float32) in a narrow dtype, up or down at random: see `round_stochastically` in update.py."""
    bits = x.to(tl.uint32, bitcast=True)
    if dtype == tl.bfloat16:
        is_finite = (bits & 0x7F800000) != 0x7F800000
        carried = tl.where(is_finite, bits + (noise >> 16), bits) >> 16
        carried = tl.where(x != x, 0x7FC0, carried)
    else:
        noise = noise >> 12
        sign = (bits >> 16) & 0x8000
        bits = bits & 0x7FFFFFFF
        is_small = bits < (113 << 23)
        normal = (bits - (112 << 23) + (noise >> 7)) >> 13
        units = tl.where(is_small, tl.abs(x), 0.0) * 17592186044416.0  # 2⁴⁴
        small = (units.to(tl.uint32) + noise) >> 20
        carried = tl.where(is_small, small, tl.where(normal > 0x7BFF, 0x7BFF, normal))
        carried = tl.where(bits >= (143 << 23), 0x7C00, carried)
        carried = tl.where(x != x, 0x7E00, carried) | sign
    return carried.to(tl.uint16).to(dtype, bitcast=True)


@triton.jit
def _narrowed(x, dtype: tl.constexpr, RANDOM: tl.constexpr, IS_AVERAGE: tl.constexpr, stream, rows, columns):
    """``x`` as it is kept, rounded once: to nearest, or at random."""
    if RANDOM:
        if IS_AVERAGE:
            stream ^= _STREAM_OF_AVERAGE
        kept = _rounded(x, _noise(stream, rows, columns), dtype)
    else:
        kept = x.to(dtype)
    return kept


# ---------------------------------------------------------------------------------------------------------- the kernels


@triton.jit(do_not_specialize=["tensors", "now"])
def step_tiles(
    table, tensors, u, now, streams, room,
    KIND: tl.constexpr, X_TYPE: tl.constexpr, G_TYPE: tl.constexpr, AVERAGE_TYPE: tl.constexpr,
    DIRECTION: tl.constexpr, AVERAGES: tl.constexpr, BIAS_CORRECTION: tl.constexpr, STEEPEST: tl.constexpr,
    HAS_L2: tl.constexpr, COMBINE: tl.constexpr, RANDOM: tl.constexpr, RANDOM_AVERAGE: tl.constexpr,
    SPARSE: tl.constexpr, LR_ON_DEVICE: tl.constexpr, STEP_ON_DEVICE: tl.constexpr, ALIGNED: tl.constexpr,
    BLOCK_OUTER: tl.constexpr, BLOCK_INNER: tl.constexpr,
):  # fmt: skip
    """A whole step, where tiles hold whole rows or each entry has a scale: g and x are read once, and x is written."""
    number = _row_of(table, tensors, TILES_START, tl.program_id(0))
    row = table + number.to(tl.int64) * WORDS
    matrix, chunk, _, columns, outer, inner = _tile(row, BLOCK_INNER, ALIGNED)
    positions = chunk * BLOCK_OUTER + tl.arange(0, BLOCK_OUTER)
    rows, is_row = positions, positions < outer
    if SPARSE:
        rows, is_row = _touched(row, positions, is_row)
    is_inside = is_row[:, None] & (columns < inner)[None, :]
    lr, v_correction, nesterov_weight, shrinkage = _settings(
        row, u, now, LR_ON_DEVICE, STEP_ON_DEVICE, BIAS_CORRECTION, DIRECTION, STEEPEST
    )
    stream = tl.load(streams + number) if RANDOM or RANDOM_AVERAGE else 0

    x_at = _places(row, X, X_TYPE, matrix, rows, columns, ALIGNED)
    g_at = _places(row, G, G_TYPE, matrix, positions, columns, ALIGNED)
    x = tl.load(x_at, mask=is_inside, other=0.0)
    g = _gradient(u, tl.load(g_at, mask=is_inside, other=0.0), x, HAS_L2)
    average = g
    if DIRECTION != NO_MOMENTUM:
        at = _places(row, AVERAGE, AVERAGE_TYPE, matrix, rows, columns, ALIGNED)
        average = _joined(u, tl.load(at, mask=is_inside, other=0.0), g)
        kept = _narrowed(average, AVERAGE_TYPE, RANDOM_AVERAGE, True, stream, rows, columns)
        tl.store(at, kept, mask=is_inside)
        average = kept.to(tl.float32)
    direction = _direction(u, average, g, nesterov_weight, DIRECTION)
    measured = direction if STEEPEST else g
    if KIND == PER_OUTER:
        v = tl.sum(measured * measured, 1)
        v_at = _pointer(row, V, tl.float32, False) + rows * tl.load(row + V_OUTER)
        is_block = is_row
    else:
        v = measured * measured
        v_at = _places(row, V, tl.float32, matrix, rows, columns, ALIGNED)
        is_block = is_inside
    if not STEEPEST:
        v = _accumulated(u, tl.load(v_at, mask=is_block, other=0.0), v, tl.load(row + DIVISOR), AVERAGES)
        tl.store(v_at, v, mask=is_block)
    s = _root(v * v_correction)
    scale = _quotient(lr, s if STEEPEST else s + u.eps)
    if KIND == PER_OUTER:
        scale = scale[:, None]
    moved = x.to(tl.float32) * shrinkage - scale * direction
    tl.store(x_at, _narrowed(moved, X_TYPE, RANDOM, False, stream, rows, columns), mask=is_inside)


@triton.jit(do_not_specialize=["tensors", "now"])
def read_tiles(
    table, tensors, u, now, streams, room,
    KIND: tl.constexpr, X_TYPE: tl.constexpr, G_TYPE: tl.constexpr, AVERAGE_TYPE: tl.constexpr,
    DIRECTION: tl.constexpr, AVERAGES: tl.constexpr, BIAS_CORRECTION: tl.constexpr, STEEPEST: tl.constexpr,
    HAS_L2: tl.constexpr, COMBINE: tl.constexpr, RANDOM: tl.constexpr, RANDOM_AVERAGE: tl.constexpr,
    SPARSE: tl.constexpr, LR_ON_DEVICE: tl.constexpr, STEP_ON_DEVICE: tl.constexpr, ALIGNED: tl.constexpr,
    BLOCK_OUTER: tl.constexpr, BLOCK_INNER: tl.constexpr,
):  # fmt: skip
    """Partial sums of squares over a tile: of its rows, its columns or all of it. g joins its average."""
    number = _row_of(table, tensors, TILES_START, tl.program_id(0))
    row = table + number.to(tl.int64) * WORDS
    matrix, chunk, tile, columns, outer, inner = _tile(row, BLOCK_INNER, ALIGNED)
    height = tl.load(row + CHUNK)
    tiles, chunks = tl.load(row + TILES), tl.load(row + CHUNKS)
    stream = tl.load(streams + number) if RANDOM_AVERAGE else 0
    _, _, nesterov_weight, _ = _settings(
        row, u, now, LR_ON_DEVICE, STEP_ON_DEVICE, BIAS_CORRECTION, DIRECTION, STEEPEST
    )
    squares = tl.zeros((BLOCK_OUTER, BLOCK_INNER), tl.float32)
    for start in range(0, height, BLOCK_OUTER):
        positions = chunk * height + start + tl.arange(0, BLOCK_OUTER)
        rows, is_row = positions, positions < outer
        if SPARSE:
            rows, is_row = _touched(row, positions, is_row)
        is_inside = is_row[:, None] & (columns < inner)[None, :]
        g = tl.load(_places(row, G, G_TYPE, matrix, positions, columns, ALIGNED), mask=is_inside, other=0.0)
        x = g
        if HAS_L2:
            x = tl.load(_places(row, X, X_TYPE, matrix, rows, columns, ALIGNED), mask=is_inside, other=0.0)
        g = _gradient(u, g, x, HAS_L2)
        measured = g
        if DIRECTION != NO_MOMENTUM:
            average_at = _places(row, AVERAGE, AVERAGE_TYPE, matrix, rows, columns, ALIGNED)
            average = _joined(u, tl.load(average_at, mask=is_inside, other=0.0), g)
            drawn = rows + matrix * outer
            kept = _narrowed(average, AVERAGE_TYPE, RANDOM_AVERAGE, True, stream, drawn, columns)
            tl.store(average_at, kept, mask=is_inside)
            if STEEPEST:
                measured = _direction(u, kept.to(tl.float32), g, nesterov_weight, DIRECTION)
        of_tile = measured * measured
        if KIND == PER_OUTER or KIND == PER_BOTH:
            sums_at = room + tl.load(row + SUMS_OUTER) + (matrix * outer + positions) * tiles + tile
            tl.store(sums_at, tl.sum(of_tile, 1), mask=positions < outer)
        squares += of_tile
    if KIND == PER_INNER or KIND == PER_BOTH:
        at = room + tl.load(row + SUMS_INNER) + (matrix * chunks + chunk) * inner + columns
        tl.store(at, tl.sum(squares, 0), mask=columns < inner)
    if KIND == PER_TENSOR or (KIND == PER_BOTH and COMBINE == PRODUCT):
        at = room + tl.load(row + SUMS_WHOLE) + (matrix * chunks + chunk) * tiles + tile
        tl.store(at, tl.sum(tl.sum(squares, 0), 0))


@triton.jit(do_not_specialize=["tensors", "now"])
def finish_sums(
    table, tensors, u, now, room, AXIS: tl.constexpr,
    KIND: tl.constexpr, DIRECTION: tl.constexpr, AVERAGES: tl.constexpr, BIAS_CORRECTION: tl.constexpr,
    STEEPEST: tl.constexpr, COMBINE: tl.constexpr, SPARSE: tl.constexpr,
    LR_ON_DEVICE: tl.constexpr, STEP_ON_DEVICE: tl.constexpr, BLOCK: tl.constexpr, BLOCK_SUMS: tl.constexpr,
):  # fmt: skip
    """Add up partial sums, update a statistic, and leave its factor of the scales. AXIS: outer, inner or whole."""
    START: tl.constexpr = OUTER_START if AXIS == 0 else (INNER_START if AXIS == 1 else WHOLE_START)
    SUMS: tl.constexpr = SUMS_OUTER if AXIS == 0 else (SUMS_INNER if AXIS == 1 else SUMS_WHOLE)
    FACTOR: tl.constexpr = FACTOR_OUTER if AXIS == 0 else (FACTOR_INNER if AXIS == 1 else FACTOR_WHOLE)
    program = tl.program_id(0)
    row = table + _row_of(table, tensors, START, program).to(tl.int64) * WORDS
    outer, inner = tl.load(row + OUTER), tl.load(row + INNER)
    tiles, chunks = tl.load(row + TILES), tl.load(row + CHUNKS)
    if AXIS == 0:
        size, count, along, between = outer, tiles, tiles, 1
    elif AXIS == 1:
        size, count, along, between = inner, chunks, 1, inner
    else:
        size, count, along, between = 1, chunks * tiles, 1, 1
    program -= tl.load(row + START)
    blocks = tl.cdiv(size, BLOCK)
    matrix = program // blocks
    positions = (program % blocks) * BLOCK + tl.arange(0, BLOCK)
    is_inside = positions < size
    sums = room + tl.load(row + SUMS) + matrix * size * count
    squares = tl.zeros((BLOCK, BLOCK_SUMS), tl.float32)
    for start in range(0, count, BLOCK_SUMS):
        parts = start + tl.arange(0, BLOCK_SUMS)
        at = sums + positions[:, None] * along + parts[None, :] * between
        squares += tl.load(at, mask=is_inside[:, None] & (parts < count)[None, :], other=0.0)
    v = tl.sum(squares, 1)

    if AXIS == 0 or KIND == PER_INNER or KIND == PER_TENSOR:
        v_at = _pointer(row, V, tl.float32, False) + matrix * tl.load(row + V_BATCH)
        divisor = tl.load(row + DIVISOR)
    elif AXIS == 1:
        v_at = _pointer(row, COLUMNS, tl.float32, False) + matrix * tl.load(row + COLUMNS_BATCH)
        divisor = tl.load(row + COLUMNS_DIVISOR)
    else:
        v_at = _pointer(row, WHOLE, tl.float32, False) + matrix * tl.load(row + WHOLE_BATCH)
        divisor = tl.load(row + WHOLE_DIVISOR)
    rows, is_block = positions, is_inside
    if SPARSE and AXIS == 0:
        rows, is_block = _touched(row, positions, is_inside)
    if not STEEPEST:
        v = _accumulated(u, tl.load(v_at + rows, mask=is_block, other=0.0), v, divisor, AVERAGES)
        tl.store(v_at + rows, v, mask=is_block)

    lr, v_correction, _, _ = _settings(row, u, now, LR_ON_DEVICE, STEP_ON_DEVICE, BIAS_CORRECTION, DIRECTION, STEEPEST)
    if KIND != PER_BOTH:
        s = _root(v * v_correction)
        factor = _quotient(lr, s if STEEPEST else s + u.eps)
    elif AXIS == 2:
        factor = v  # without its correction: those of rows and of the whole cancel
    elif COMBINE == GEOMETRIC:
        factor = _root(_root(v * v_correction))
    elif COMBINE == PRODUCT and AXIS == 0:
        whole = tl.load(room + tl.load(row + FACTOR_WHOLE) + matrix)
        whole = tl.where((whole == 0) | (whole == float("inf")), 1.0, whole)
        factor = _root(tl.div_rn(v, whole + tl.zeros_like(v)))
    else:
        factor = _root(v * v_correction)
    tl.store(room + tl.load(row + FACTOR) + matrix * size + positions, factor, mask=is_inside)


@triton.jit(do_not_specialize=["tensors", "now"])
def move_tiles(
    table, tensors, u, now, streams, room,
    KIND: tl.constexpr, X_TYPE: tl.constexpr, G_TYPE: tl.constexpr, AVERAGE_TYPE: tl.constexpr,
    DIRECTION: tl.constexpr, AVERAGES: tl.constexpr, BIAS_CORRECTION: tl.constexpr, STEEPEST: tl.constexpr,
    HAS_L2: tl.constexpr, COMBINE: tl.constexpr, RANDOM: tl.constexpr, RANDOM_AVERAGE: tl.constexpr,
    SPARSE: tl.constexpr, LR_ON_DEVICE: tl.constexpr, STEP_ON_DEVICE: tl.constexpr, ALIGNED: tl.constexpr,
    BLOCK_OUTER: tl.constexpr, BLOCK_INNER: tl.constexpr,
):  # fmt: skip
    """Move x along g, its average, or Nesterov's sum of both, by the factors of its rows and columns."""
    number = _row_of(table, tensors, TILES_START, tl.program_id(0))
    row = table + number.to(tl.int64) * WORDS
    matrix, chunk, _, columns, outer, inner = _tile(row, BLOCK_INNER, ALIGNED)
    height = tl.load(row + CHUNK)
    stream = tl.load(streams + number) if RANDOM else 0
    lr, _, nesterov_weight, shrinkage = _settings(
        row, u, now, LR_ON_DEVICE, STEP_ON_DEVICE, BIAS_CORRECTION, DIRECTION, STEEPEST
    )
    of_columns = tl.zeros((BLOCK_INNER,), tl.float32)
    if KIND == PER_INNER or KIND == PER_BOTH:
        factors_at = room + tl.load(row + FACTOR_INNER) + matrix * inner + columns
        of_columns = tl.load(factors_at, mask=columns < inner, other=0.0)
    for start in range(0, height, BLOCK_OUTER):
        positions = chunk * height + start + tl.arange(0, BLOCK_OUTER)
        rows, is_row = positions, positions < outer
        if SPARSE:
            rows, is_row = _touched(row, positions, is_row)
        is_inside = is_row[:, None] & (columns < inner)[None, :]
        if KIND == PER_OUTER or KIND == PER_BOTH:
            of_rows_at = room + tl.load(row + FACTOR_OUTER) + matrix * outer + positions
            of_rows = tl.load(of_rows_at, mask=is_row, other=0.0)[:, None]
        if KIND == PER_OUTER:
            scale = of_rows
        elif KIND == PER_INNER:
            scale = of_columns[None, :]
        elif KIND == PER_TENSOR:
            scale = tl.load(room + tl.load(row + FACTOR_WHOLE))
        elif COMBINE == MINIMUM:
            is_of_row = (of_rows < of_columns[None, :]) | (of_rows != of_rows)  # NaN, as in torch.minimum
            scale = _quotient(lr, tl.where(is_of_row, of_rows, of_columns[None, :]) + u.eps)
        else:
            scale = _quotient(lr, of_rows * of_columns[None, :] + u.eps)
        x_at = _places(row, X, X_TYPE, matrix, rows, columns, ALIGNED)
        x = tl.load(x_at, mask=is_inside, other=0.0)
        g = x
        average = x
        if DIRECTION != MOMENTUM:
            g = tl.load(_places(row, G, G_TYPE, matrix, positions, columns, ALIGNED), mask=is_inside, other=0.0)
            g = _gradient(u, g, x, HAS_L2)
        if DIRECTION != NO_MOMENTUM:
            average_at = _places(row, AVERAGE, AVERAGE_TYPE, matrix, rows, columns, ALIGNED)
            average = tl.load(average_at, mask=is_inside, other=0.0).to(tl.float32)
        direction = _direction(u, average, g, nesterov_weight, DIRECTION)
        moved = x.to(tl.float32) * shrinkage - scale * direction
        moved = _narrowed(moved, X_TYPE, RANDOM, False, stream, rows + matrix * outer, columns)
        tl.store(x_at, moved, mask=is_inside)


@triton.jit(do_not_specialize=["tensors", "now"])
def average_tiles(
    table, tensors, u, now, streams, room,
    KIND: tl.constexpr, X_TYPE: tl.constexpr, G_TYPE: tl.constexpr, AVERAGE_TYPE: tl.constexpr,
    DIRECTION: tl.constexpr, AVERAGES: tl.constexpr, BIAS_CORRECTION: tl.constexpr, STEEPEST: tl.constexpr,
    HAS_L2: tl.constexpr, COMBINE: tl.constexpr, RANDOM: tl.constexpr, RANDOM_AVERAGE: tl.constexpr,
    SPARSE: tl.constexpr, LR_ON_DEVICE: tl.constexpr, STEP_ON_DEVICE: tl.constexpr, ALIGNED: tl.constexpr,
    BLOCK_OUTER: tl.constexpr, BLOCK_INNER: tl.constexpr,
):  # fmt: skip
    """G joins its average, and what x will move along, or its direction will be taken of, is left where V would be."""
    number = _row_of(table, tensors, TILES_START, tl.program_id(0))
    row = table + number.to(tl.int64) * WORDS
    matrix, chunk, _, columns, outer, inner = _tile(row, BLOCK_INNER, ALIGNED)
    rows = chunk * BLOCK_OUTER + tl.arange(0, BLOCK_OUTER)
    is_inside = (rows < outer)[:, None] & (columns < inner)[None, :]
    stream = tl.load(streams + number) if RANDOM_AVERAGE else 0
    g = tl.load(_places(row, G, G_TYPE, matrix, rows, columns, ALIGNED), mask=is_inside, other=0.0)
    x = g
    if HAS_L2:
        x = tl.load(_places(row, X, X_TYPE, matrix, rows, columns, ALIGNED), mask=is_inside, other=0.0)
    g = _gradient(u, g, x, HAS_L2)
    average = g
    if DIRECTION != NO_MOMENTUM:
        at = _places(row, AVERAGE, AVERAGE_TYPE, matrix, rows, columns, ALIGNED)
        average = _joined(u, tl.load(at, mask=is_inside, other=0.0), g)
        kept = _narrowed(average, AVERAGE_TYPE, RANDOM_AVERAGE, True, stream, rows, columns)
        tl.store(at, kept, mask=is_inside)
        average = kept.to(tl.float32)
    direction = _direction(u, average, g, u.beta1, DIRECTION)
    tl.store(_places(row, V, tl.float32, matrix, rows, columns, ALIGNED), direction, mask=is_inside)


@triton.jit(do_not_specialize=["tensors", "now"])
def move_along_tiles(
    table, tensors, u, now, streams, room,
    KIND: tl.constexpr, X_TYPE: tl.constexpr, G_TYPE: tl.constexpr, AVERAGE_TYPE: tl.constexpr,
    DIRECTION: tl.constexpr, AVERAGES: tl.constexpr, BIAS_CORRECTION: tl.constexpr, STEEPEST: tl.constexpr,
    HAS_L2: tl.constexpr, COMBINE: tl.constexpr, RANDOM: tl.constexpr, RANDOM_AVERAGE: tl.constexpr,
    SPARSE: tl.constexpr, LR_ON_DEVICE: tl.constexpr, STEP_ON_DEVICE: tl.constexpr, ALIGNED: tl.constexpr,
    BLOCK_OUTER: tl.constexpr, BLOCK_INNER: tl.constexpr,
):  # fmt: skip
    """Move x along g, by the size that is kept as the divisor, in bits of float32."""
    number = _row_of(table, tensors, TILES_START, tl.program_id(0))
    row = table + number.to(tl.int64) * WORDS
    matrix, chunk, _, columns, outer, inner = _tile(row, BLOCK_INNER, ALIGNED)
    rows = chunk * BLOCK_OUTER + tl.arange(0, BLOCK_OUTER)
    is_inside = (rows < outer)[:, None] & (columns < inner)[None, :]
    stream = tl.load(streams + number) if RANDOM else 0
    lr = tl.load(u.lr).to(tl.float32) if LR_ON_DEVICE else u.lr
    size = tl.load(row + DIVISOR).to(tl.int32).to(tl.float32, bitcast=True)
    x_at = _places(row, X, X_TYPE, matrix, rows, columns, ALIGNED)
    x = tl.load(x_at, mask=is_inside, other=0.0).to(tl.float32)
    g = tl.load(_places(row, G, G_TYPE, matrix, rows, columns, ALIGNED), mask=is_inside, other=0.0).to(tl.float32)
    moved = x * (1.0 - lr * u.decay) - lr * size * g
    tl.store(x_at, _narrowed(moved, X_TYPE, RANDOM, False, stream, rows, columns), mask=is_inside)
