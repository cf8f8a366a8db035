"""Kernels check indices where they read them, whoever looked at them before: none that is out of range is followed."""

import itertools

import pytest
import torch

from matrix_adagrad import EmbeddingBag, RowAdaGrad, native
from matrix_adagrad.bags import BagGradient
from matrix_adagrad.bags.batch import Feature
from matrix_adagrad.bags.lookup import Lookup
from tests.optim.batches import KINDS, a_config, assert_equal, copied, fused, spread, state_of

pytestmark = pytest.mark.skipif(bool(native.missing()), reason=f"no native kernels: {native.missing()}")

ROWS, WIDTH, COUNT = 700, 60, 2000
LOOKUP = Lookup([Feature("", 0, 0, WIDTH)])
BAD_ROWS = [-1, ROWS, 2**31, 2**32 + 5, 2**62, -(2**63)]
BAD_OFFSETS = {
    "they fall": [0, 1500, 1000, COUNT],
    "they begin too late": [1, 1000, COUNT],
    "they begin too early": [-1, 1000, COUNT],
    "they end too soon": [0, 1000, COUNT - 1],
    "they end too late": [0, 1000, COUNT + 1],
    "they go far beyond": [0, 2**40, COUNT],
    "there are no bags": [0],
}


@pytest.fixture(autouse=True, params=[1, 2])
def _threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def rows(bad=None, at=COUNT // 2):
    index = torch.arange(COUNT) * 7919 % ROWS
    if bad is not None:
        index[at] = bad
    return index


def by_rows(index):
    values = spread((COUNT, WIDTH), 1, torch.float32)
    return torch.sparse_coo_tensor(index[None], values, (ROWS, WIDTH), check_invariants=False)


def by_bags(index, offsets=(0, 500, 500, COUNT)):
    offsets = torch.tensor(offsets)
    return BagGradient(index, offsets, spread((len(offsets) - 1, WIDTH), 1, torch.float32), (ROWS, WIDTH), check=False)


def assert_refused(grad, geometry):
    """Nothing moves, in this table or in others."""
    config = a_config(geometry, betas=(0.9, 0.99))
    tables = [spread((ROWS, WIDTH), seed, torch.float32) for seed in range(3)]
    batch = state_of(tables, [by_rows(rows()), grad, by_bags(rows())], config)
    before = copied(state_of(tables, [by_rows(rows())] * 3, config))
    with pytest.raises(IndexError, match=f"a table with {ROWS} rows has an index out of range, .* No step was taken"):
        fused(batch, config)
    assert_equal(batch, before)


@pytest.mark.parametrize("geometry", KINDS, ids=str)
@pytest.mark.parametrize("row", BAD_ROWS)
@pytest.mark.parametrize("at", [0, COUNT // 2, COUNT - 1])
def test_a_step_to_a_row_that_a_table_has_not_is_refused(geometry, row, at):
    assert_refused(by_rows(rows(row, at)), geometry)
    assert_refused(by_bags(rows(row, at)), geometry)


@pytest.mark.parametrize("offsets", BAD_OFFSETS.values(), ids=list(BAD_OFFSETS))
def test_a_step_with_bags_that_do_not_go_through_their_rows_is_refused(offsets):
    assert_refused(by_bags(rows(), offsets), KINDS[0])


def test_an_optimizer_that_did_not_look_refuses_too(monkeypatch):
    monkeypatch.setattr(RowAdaGrad, "_check_sparse", lambda *_: None)
    table = torch.nn.Parameter(torch.ones(ROWS, WIDTH))
    table.grad = by_rows(rows(ROWS))
    with pytest.raises(IndexError, match="were they written to during the step"):
        RowAdaGrad([table], fused=True).step()
    assert table.eq(1).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("row", BAD_ROWS)
@pytest.mark.parametrize("at", [0, COUNT // 2, COUNT - 1])
@pytest.mark.parametrize("lengths", [[20] * 100, [COUNT]], ids=["short bags", "a long bag"])
def test_bags_with_a_row_that_the_table_has_not_are_not_summed(dtype, row, at, lengths):
    table, offsets = torch.ones(ROWS, WIDTH, dtype=dtype), torch.tensor([0, *lengths]).cumsum(0)
    with pytest.raises(IndexError, match=f"the table has {ROWS} rows, and its bags have rows"):
        LOOKUP([table], rows(row, at), offsets)


@pytest.mark.parametrize("why", ["they fall", "they begin too early", "they end too late", "they go far beyond"])
def test_bags_that_are_not_in_the_list_are_not_summed(why):
    with pytest.raises(ValueError, match="offsets must never decrease and not exceed the 2000 indices"):
        LOOKUP([torch.ones(ROWS, WIDTH)], rows(), torch.tensor(BAD_OFFSETS[why]))


def test_bags_of_any_length_are_summed_in_their_order():
    """Long ones and short ones side by side, and some that are empty."""
    lengths = torch.tensor([0, 3, 0, 511, 1, 512, 0, 513, 40, 420, 0])
    table, index = torch.randn(ROWS, WIDTH), rows()
    offsets = lengths.cumsum(0)
    bag = EmbeddingBag.from_pretrained(table, mode="sum", sparse=True, include_last_offset=True)
    expected = torch.zeros(len(lengths) - 1, WIDTH)
    for b, (start, end) in enumerate(itertools.pairwise(offsets)):
        for row in index[start:end]:
            expected[b] += table[row]
    assert torch.equal(bag(index, offsets), expected)
