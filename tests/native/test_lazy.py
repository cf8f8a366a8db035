"""The kernel for rows that catch up does what torch's operators do, in any number of threads."""

import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from matrix_adagrad import Blocks, Factored, native
from matrix_adagrad.geometry import Column, Entry, Row, Whole
from matrix_adagrad.optim.step import native_lazy
from matrix_adagrad.optim.step.config import MomentumConfig
from matrix_adagrad.optim.step.lazy import Lag
from tests.optim.training import assert_bitwise, assert_same

pytestmark = pytest.mark.skipif(bool(native.missing()), reason="there are no kernels")

ROWS, STEPS = 40, 9
GEOMETRIES = (Row(), Entry(), Column(), Whole(), Blocks(columns=2), Factored())
CONFIG = MomentumConfig(betas=(0.5, 0.9), lazy="exact", decoupled_weight_decay=True)
ids = st.lists(st.integers(0, ROWS - 1), max_size=100)


def make_lag(geometry, dtype, width=6, rows=ROWS, gap=0, seed=0):
    random = torch.Generator().manual_seed(seed)
    wide = torch.float64 if dtype is torch.float64 else torch.float32

    def some(*shape):
        return torch.rand(shape, generator=random, dtype=torch.float64).to(wide)

    x, average = some(rows, width + gap).to(dtype)[:, :width], some(rows, width + gap)[:, :width]
    statistics = tuple(some(*shape) for shape in geometry.statistic_shapes(x.shape))
    last = torch.randint(STEPS + 1, (rows,), generator=random, dtype=torch.int32)
    seen, total = some(rows), torch.tensor(1.0, dtype=torch.float64)
    return Lag(x, average, statistics, geometry, torch.tensor(float(STEPS)), last, seen, total)


def tensors(lag):
    return [lag.param, lag.average, *lag.statistics, lag.last_step, lag.last_decay]


def in_torch(call):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native_lazy, "covers", lambda *_: False)
        call()


@given(st.sampled_from(GEOMETRIES), st.sampled_from([*native.DTYPES]), st.sampled_from([0, 3]), st.none() | ids)
def test_the_kernel_does_what_torchs_operators_do(geometry, dtype, gap, rows):
    one, other = (make_lag(geometry, dtype, gap=gap) for _ in range(2))
    index = None if rows is None else torch.tensor(rows, dtype=torch.int64)
    assert native_lazy.covers(one, CONFIG)
    one.catch_up(CONFIG, index)
    in_torch(lambda: other.catch_up(CONFIG, index))
    eps = torch.finfo(dtype).eps
    assert_same(tensors(one), tensors(other), rtol=max(2 * eps, 1e-6 if dtype is not torch.float64 else 0), atol=0)
    assert_bitwise(tensors(one)[-2:], tensors(other)[-2:])


@pytest.mark.parametrize("dtype", native.DTYPES, ids=str)
def test_rows_are_the_same_for_any_number_of_threads_and_any_order_of_ids(dtype):
    random = torch.Generator().manual_seed(0)
    index = torch.randint(5000, (20_000,), generator=random)
    lags = [make_lag(Entry(), dtype, 70, 5000) for _ in range(3)]
    before = torch.get_num_threads()
    try:
        for lag, threads, own in zip(lags, (1, 2, 2), (index, index, index.flip(0)), strict=True):
            torch.set_num_threads(threads)
            lag.catch_up(CONFIG, own)
    finally:
        torch.set_num_threads(before)
    for lag in lags[1:]:
        assert_bitwise(tensors(lag), tensors(lags[0]))


def test_stochastic_rounding_depends_on_the_row_alone():
    config = MomentumConfig(betas=(0.5, 0.9), lazy="exact", decoupled_weight_decay=True, stochastic_rounding=True)
    index = torch.arange(ROWS)
    lags = [make_lag(Row(), torch.bfloat16, 600) for _ in range(3)]
    for lag, own, stream in zip(lags, (index, index.flip(0), index), (7, 7, 8), strict=True):
        lag.stream = stream
        lag.catch_up(config, own)
    assert_bitwise([lags[0].param], [lags[1].param])
    assert not torch.equal(lags[0].param, lags[2].param)


@pytest.mark.parametrize("wrong", [-1, ROWS, 1 << 40])
def test_an_id_out_of_range_is_refused_before_anything_is_written(wrong):
    lag, same = make_lag(Row(), torch.float32), make_lag(Row(), torch.float32)
    with pytest.raises(IndexError, match=f"the rows of a table with {ROWS} rows are out of range: none has caught up"):
        lag.catch_up(CONFIG, torch.tensor([3, wrong, 5]))
    assert_bitwise(tensors(lag), tensors(same))


@pytest.mark.parametrize("geometry", [Blocks(rows=4), Blocks(rows=4, columns=2)], ids=str)
def test_blocks_of_several_rows_are_left_to_torch(geometry):
    lag = make_lag(Row(), torch.float32)
    lag.geometry, lag.statistics = geometry, tuple(map(torch.ones, geometry.statistic_shapes(lag.param.shape)))
    assert not native_lazy.covers(lag, CONFIG)


def test_threads_of_python_that_read_the_same_rows_scale_each_once():
    expected, lag = (make_lag(Row(), torch.float64, 200, 5000) for _ in range(2))
    expected.catch_up(CONFIG)
    index = torch.arange(5000).repeat(4)
    readers = [threading.Thread(target=lag.catch_up, args=(CONFIG, index)) for _ in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert_bitwise(tensors(lag), tensors(expected))
