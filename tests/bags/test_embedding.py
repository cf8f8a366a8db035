"""Rows by id: what comes out, the gradient and the steps are those of torch's Embedding."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from matrix_adagrad import Embedding, RowAdaGrad, native
from matrix_adagrad.bags import BagGradient
from tests.optim.table import TABLE
from tests.optim.training import assert_bitwise

pytestmark = pytest.mark.skipif(bool(native.missing()), reason=f"no native kernels: {native.missing()}")

ROWS = 50


def pair(rows=ROWS, width=8, **options):
    """Ours and torch's, with the same rows."""
    ours = Embedding(rows, width, **{"sparse": True, **options})
    theirs = nn.Embedding(rows, width, **{"sparse": True, **options})
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


@given(
    shape=st.lists(st.integers(0, 5), max_size=4),
    width=st.sampled_from([1, 8, 65]),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
    padding=st.sampled_from([None, 0, 7, -1]),
    index_dtype=st.sampled_from([torch.int64, torch.int32]),
)
def test_rows_and_gradients_are_those_of_torch_for_ids_of_any_shape(shape, width, dtype, padding, index_dtype):
    if not shape and padding is not None:
        return  # torch's gradient fails: see below
    index, outs, grads = torch.randint(ROWS // 2, shape, dtype=index_dtype), [], []
    index = index.where(index != 3, ROWS - 1)
    for table in pair(width=width, padding_idx=padding, dtype=dtype):
        outs.append(table(index))
        outs[-1].backward(torch.linspace(-1, 1, outs[-1].numel(), dtype=dtype).view_as(outs[-1]))
        grads.append(table.weight.grad)
    assert isinstance(grads[0], BagGradient)
    assert_bitwise([outs[0], grads[0].to_dense()], [outs[1], grads[1].to_dense()])
    assert grads[0]._nnz() == grads[1]._nnz()


def test_a_single_id_may_be_the_padding():
    table = Embedding(ROWS, 8, padding_idx=2, sparse=True)
    for row, entries in ((2, 0), (3, 1)):
        table.weight.grad = None
        table(torch.tensor(row)).sum().backward()
        assert table.weight.grad._nnz() == entries
        assert table.weight.grad.to_dense().sum() == 8 * entries


def test_neither_ids_nor_values_are_copied():
    table, kept = Embedding(ROWS, 8, padding_idx=0, sparse=True), []
    index = torch.tensor([[1, 2], [2, 3]])
    out = table(index)
    hook = out.register_hook(lambda grad: kept.append(grad.data_ptr()))
    (out * 2).sum().backward()
    hook.remove()
    rows, offsets, *_, values = table.weight.grad.entries()
    assert offsets is None
    assert rows.data_ptr() == index.data_ptr()
    assert values.data_ptr() == kept[0]


def test_what_was_given_to_backward_may_be_used_again():
    table, upstream = Embedding(ROWS, 8, sparse=True), torch.ones(3, 8)
    table(torch.tensor([1, 2, 1])).backward(upstream)
    upstream.fill_(7)
    assert table.weight.grad.to_dense().max() == 2
    table.weight.grad.mul_(2)
    assert upstream.eq(7).all()


@pytest.mark.parametrize("entrant", TABLE, ids=str)
def test_every_optimizer_takes_the_steps_that_it_takes_with_torchs_module_to_the_bit(entrant):
    ends = []
    for table in pair(width=20, padding_idx=3):
        optimizer = entrant(table.parameters())
        random = torch.Generator().manual_seed(0)
        for _ in range(4):
            optimizer.zero_grad()
            index = torch.randint(ROWS, (30, 6), generator=random)
            table(index).backward(torch.randn(30, 6, 20, generator=random))
            optimizer.step()
        ends.append([table.weight, *optimizer.state[table.weight].values()])
    assert_bitwise(*ends)


def test_gradients_accumulate_over_backward_passes_and_within_one():
    ends = []
    for table in pair(dtype=torch.float64):
        optimizer = RowAdaGrad(table.parameters(), lr=0.1)
        for t in range(3):
            (table(torch.tensor([t, 1])).square().sum() + table(torch.tensor(2)).square().sum()).backward()
        optimizer.step()
        ends.append(table.weight)
    torch.testing.assert_close(*ends, rtol=1e-12, atol=1e-12)


def test_ids_that_were_written_to_are_found_out():
    table, index = Embedding(ROWS, 8, sparse=True), torch.tensor([1, 2])
    loss = table(index).sum()
    index.fill_(3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    table(index).sum().backward()
    index.fill_(4)
    with pytest.raises(RuntimeError, match="were changed in place after the backward pass"):
        RowAdaGrad(table.parameters()).step()


def test_rows_of_a_larger_table_are_read_where_they_lie():
    memory = torch.randn(ROWS, 24)
    table = Embedding(ROWS, 8, sparse=True, _weight=memory[:, 8:16])
    index = torch.randint(ROWS, (6, 5))
    assert torch.equal(table(index), memory[index, 8:16])
    table(index).sum().backward()
    RowAdaGrad(table.parameters()).step()
    assert memory[:, 8:16].data_ptr() == table.weight.data_ptr()


def test_it_can_be_made_from_rows_that_are_there_and_frozen():
    rows = torch.randn(ROWS, 8)
    table = Embedding.from_pretrained(rows, freeze=False, sparse=True)
    table(torch.tensor(3)).sum().backward()
    assert isinstance(table.weight.grad, BagGradient)
    frozen = Embedding.from_pretrained(rows, sparse=True)
    assert not frozen(torch.tensor([3, 4])).requires_grad


# ---------------------------------------------------------------------------------------------- what is torch's own


@pytest.mark.parametrize(
    "options", [{"sparse": False}, {"max_norm": 0.1}, {"scale_grad_by_freq": True, "sparse": False}]
)
def test_what_is_not_covered_is_torchs(options):
    ours, theirs = pair(**options)
    index, outs = torch.randint(ROWS, (6, 5)), []
    for table in (ours, theirs):
        outs.append(table(index))
        outs[-1].sum().backward()
    assert_bitwise(*[[out] for out in outs])
    assert type(ours.weight.grad) is torch.Tensor


def test_without_kernels_it_is_torchs_module(monkeypatch):
    monkeypatch.setattr(native, "missing", lambda: "taken away")
    ours, theirs = pair()
    index = torch.randint(ROWS, (6, 5))
    assert_bitwise([ours(index)], [theirs(index)])
    ours(index).sum().backward()
    assert type(ours.weight.grad) is torch.Tensor


def test_transforms_of_functions_are_torchs():
    index, tangent = torch.randint(ROWS, (6, 5)), torch.randn(ROWS, 8)
    values = [
        torch.func.vmap(lambda w, table=table: torch.func.functional_call(table, {"weight": w}, (index,)))(
            torch.stack([tangent, tangent])
        )
        for table in pair()
    ]
    assert_bitwise(*[[value] for value in values])


def test_other_devices_are_torchs():
    table = Embedding(ROWS, 8, sparse=True, device="meta")
    assert table(torch.zeros(3, 2, dtype=torch.long, device="meta")).shape == (3, 2, 8)


@pytest.mark.parametrize("wrong", [-1, ROWS, 2**40])
def test_an_id_that_the_table_does_not_have_is_refused(wrong):
    with pytest.raises(IndexError, match=rf"the table has {ROWS} rows, and its ids are {min(wrong, 3)} to"):
        Embedding(ROWS, 8, sparse=True)(torch.tensor([[3, wrong], [3, 4]]))


def test_ids_that_are_no_integers_are_refused_by_torch():
    with pytest.raises(RuntimeError, match="indices"):
        Embedding(ROWS, 8, sparse=True)(torch.rand(3))
