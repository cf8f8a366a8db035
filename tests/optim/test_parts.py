"""A step in parts is the step; and rows and columns are summed in an order of their own, whatever lies beside them."""

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from matrix_adagrad import native
from matrix_adagrad.geometry import Column, Row, Whole
from matrix_adagrad.optim.step.dispatch import FOREACH, NATIVE, REFERENCE
from tests.optim.batches import (
    PARTITIONS,
    a_config,
    assert_close,
    assert_equal,
    batches,
    copied,
    fused,
    reference,
    spread,
    state_of,
)

kernels = pytest.mark.skipif(bool(native.missing()), reason=f"no native kernels: {native.missing()}")


def native_if_it_can(batch, config):
    """The backend of steps in parts: the kernels, if they cover all of them."""
    for update in batch:
        update.sums, update.prepared = (torch.empty_like(update.statistics[0]),), None
    return FOREACH if any(NATIVE.reason_against(update, config) for update in batch) else NATIVE


ACCUMULATING = ("adagrad", "momentum")  # steepest descent has no statistic to add sums to


@given(batches(geometries=PARTITIONS, families=ACCUMULATING), st.sampled_from([REFERENCE, FOREACH, None]))
def test_reading_accumulating_and_moving_is_the_step(case, backend):
    batch, config = case
    other = copied(batch)
    for _ in range(2):
        parted = backend or native_if_it_can(batch, config)
        measured = parted.read(batch, config)
        parted.accumulate(batch, [(squares.clone(),) for (squares,) in measured], config)
        parted.move(batch, config)
        reference(other, config)
    assert_close(batch, other)


@given(batches(geometries=PARTITIONS, families=ACCUMULATING), st.integers(0, 1))
def test_sums_over_two_halves_of_a_tensor_are_those_over_the_whole(case, dim):
    batch, config = case
    dim = dim if dim < batch.params[0].dim() else 0
    assume(all(param.shape[dim] > 1 for param in batch.params))  # a single row of a block has no halves
    halves = [part_of(batch, dim, half) for half in range(2)]
    read = [native_if_it_can(half, config).read(half, config) for half in halves]
    for i, (squares,) in enumerate(FOREACH.read(copied(batch), config)):
        both = [sums[i][0].double() for sums in read]
        total = torch.cat(both, dim) if batch.statistics[i].shape[dim] > 1 else sum(both)
        torch.testing.assert_close(total, squares.double(), rtol=1e-5, atol=1e-6)


def part_of(batch, dim, half):
    def part(x):
        return x.chunk(2, dim)[half] if x.dim() and x.shape[dim] > 1 else x.clone()

    return batch.replaced(part)


SHAPES = [(3, 5), (8, 2), (70, 300), (130, 4100), (5000, 40), (9000, 33), (3, 70_000), (2, 300_000), (200, 9000)]


@kernels
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("betas", [None, (0.9, 0.99)])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("geometry", [Row(), Column()], ids=str)
def test_the_bits_of_a_row_or_column_do_not_depend_on_the_others(geometry, shape, betas, weight_decay):
    config = a_config(geometry, betas=betas, weight_decay=weight_decay)
    whole = state_of([spread(shape, 0, torch.float32)], [spread(shape, 1, torch.float32)], config)
    dim = 0 if geometry == Row() else 1
    for first, count in ((0, 1), (1, shape[dim] // 3), (shape[dim] // 2, shape[dim] - shape[dim] // 2)):
        if count == 0:
            continue
        shard = copied(whole).replaced(lambda x: x.narrow(dim, first, count).contiguous())  # noqa: B023
        shard[0].is_single_block = count == 1 < shape[dim]
        fused(shard, config)
        expected = copied(whole)
        fused(expected, config)
        assert_equal(shard, expected.replaced(lambda x: x.narrow(dim, first, count)))  # noqa: B023


@kernels
def test_a_block_that_lies_nowhere_here_has_no_part_in_it():
    config = a_config(Whole())
    batch = state_of([torch.ones(0, 4)], [torch.ones(0, 4)], config)
    assert native_if_it_can(batch, config).read(batch, config)[0][0].tolist() == [[0.0]]
