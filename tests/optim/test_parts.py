"""A step in parts is the step; and rows and columns are summed in an order of their own, whatever lies beside them."""

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from matrix_adagrad import native
from matrix_adagrad.geometry import Column, Row, Whole
from matrix_adagrad.optim.step import foreach, fused, reference, way_in_parts
from tests.optim.batches import a_rule, assert_close, assert_equal, batches, copied, spread, state_of

kernels = pytest.mark.skipif(bool(native.missing()), reason=f"no native kernels: {native.missing()}")
NATIVE = {"fused": None, "foreach": None, "differentiable": False}


@given(batches(), st.sampled_from([reference, foreach, None]))
def test_reading_accumulating_and_moving_is_the_step(case, way):
    batch, rule = case
    other = copied(batch)
    for _ in range(2):
        parts = way or way_in_parts(batch, NATIVE)
        squares = parts.read(batch, rule)
        parts.accumulate(batch, [square.clone() for square in squares], rule)
        parts.move(batch, rule)
        reference(other, rule)
    assert_close(batch, other)


@given(batches(), st.integers(0, 1))
def test_sums_over_two_halves_of_a_tensor_are_those_over_the_whole(case, dim):
    batch, rule = case
    dim = dim if dim < batch.params[0].dim() else 0
    assume(all(param.shape[dim] > 1 for param in batch.params))  # a single row of a block has no halves
    halves = [part_of(batch, dim, half) for half in range(2)]
    ways = [way_in_parts(half, NATIVE) for half in halves]
    read = [way.read(half, rule) for way, half in zip(ways, halves, strict=True)]
    for i, squares in enumerate(foreach.read(copied(batch), rule)):
        both = [sums[i].double() for sums in read]
        total = torch.cat(both, dim) if batch.statistics[i].shape[dim] > 1 else sum(both)
        torch.testing.assert_close(total, squares.double(), rtol=1e-5, atol=1e-6)


def part_of(batch, dim, half):
    def part(x):
        return x.chunk(2, dim)[half] if x.dim() and x.shape[dim] > 1 else x.clone()

    return batch._replace(
        params=[part(x) for x in batch.params],
        grads=[part(x) for x in batch.grads],
        averages=[part(x) for x in batch.averages],
        statistics=[part(x) for x in batch.statistics],
    )


SHAPES = [(3, 5), (8, 2), (70, 300), (130, 4100), (5000, 40), (9000, 33), (3, 70_000), (2, 300_000), (200, 9000)]


@kernels
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("betas", [None, (0.9, 0.99)])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("geometry", [Row(), Column()], ids=str)
def test_the_bits_of_a_row_or_column_do_not_depend_on_the_others(geometry, shape, betas, weight_decay):
    rule = a_rule(geometry, betas=betas, weight_decay=weight_decay)
    whole = state_of([spread(shape, 0, torch.float32)], [spread(shape, 1, torch.float32)], rule)
    dim = 0 if geometry == Row() else 1
    for first, count in ((0, 1), (1, shape[dim] // 3), (shape[dim] // 2, shape[dim] - shape[dim] // 2)):
        if count == 0:
            continue
        some = copied(whole)
        cut = [[x.narrow(dim, first, count).contiguous() for x in tensors] for tensors in some[:4]]
        shard = some._replace(
            params=cut[0], grads=cut[1], averages=cut[2], statistics=cut[3], lone=[count == 1 < shape[dim]]
        )
        fused(shard, rule)
        expected = copied(whole)
        fused(expected, rule)
        rows = [[x.narrow(dim, first, count) for x in tensors] for tensors in expected[:4]]
        assert_equal(shard, expected._replace(params=rows[0], grads=rows[1], averages=rows[2], statistics=rows[3]))


@kernels
def test_a_block_that_lies_nowhere_here_has_no_part_in_it():
    rule = a_rule(Whole())
    batch = state_of([torch.ones(0, 4)], [torch.ones(0, 4)], rule)
    assert way_in_parts(batch, NATIVE).read(batch, rule)[0].tolist() == [[0.0]]
