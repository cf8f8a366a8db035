"""Bags of rows: the sums and the steps are those of torch's EmbeddingBag."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from benchmarks.measure import peak_extra_bytes
from matrix_adagrad import EmbeddingBag, RowAdaGrad, native
from matrix_adagrad.bags import BagGradient
from matrix_adagrad.domains import RowBalls
from tests.optim.table import TABLE
from tests.optim.training import assert_bitwise

pytestmark = pytest.mark.skipif(bool(native.missing()), reason=f"no native kernels: {native.missing()}")

ROWS = 50
TOLERANCE = {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}


def pair(rows=ROWS, width=8, **options):
    """Ours and torch's, with the same rows."""
    ours = EmbeddingBag(rows, width, sparse=True, **options)
    theirs = nn.EmbeddingBag(rows, width, sparse=True, **options)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def close(x, y, dtype):
    scale = y.abs().max().clamp(min=1).item() if y.numel() else 1.0
    torch.testing.assert_close(x, y, rtol=0, atol=TOLERANCE[dtype] * scale)


@given(
    bags=st.lists(st.lists(st.integers(0, ROWS - 1), max_size=40), max_size=12),
    width=st.sampled_from([1, 3, 8, 20, 31, 32, 64, 65, 100, 2100]),
    dtype=st.sampled_from(list(TOLERANCE)),
    mode=st.sampled_from(["sum", "mean"]),
    last=st.booleans(),
    padding=st.sampled_from([None, 0, 7]),
    index_dtype=st.sampled_from([torch.int64, torch.int32]),
)
def test_sums_means_and_gradients_are_those_of_torch(bags, width, dtype, mode, last, padding, index_dtype):
    if not bags and last:
        return  # torch refuses no bags, with an end
    options = {"mode": mode, "include_last_offset": last, "padding_idx": padding, "dtype": dtype}
    index = torch.tensor([row for bag in bags for row in bag], dtype=index_dtype)
    lengths = torch.tensor([0, *map(len, bags)], dtype=index_dtype)
    offsets = lengths.cumsum(0, dtype=index_dtype)[: len(bags) + last]
    outs, grads = [], []
    for bag in pair(width=width, **options):
        out = bag(index, offsets)
        outs.append(out)
        out.backward(torch.linspace(-1, 1, out.numel(), dtype=dtype).view_as(out))
        grads.append(bag.weight.grad)
    assert isinstance(grads[0], BagGradient)
    close(outs[0], outs[1], dtype)
    close(grads[0].to_dense(), grads[1].to_dense(), dtype)


def test_bags_of_one_length_come_as_a_matrix():
    index = torch.randint(ROWS, (6, 5))
    for view in (index, index.T.contiguous().T, index[:, ::2], index[:0]):
        ours, theirs = pair(mode="sum", dtype=torch.float64)
        close(ours(view), theirs(view), torch.float64)


def test_a_batch_without_bags_is_a_step_that_moves_nothing():
    ours, theirs = pair(mode="sum")
    for rows in ([1, 2, 3], []):
        index, offsets = torch.tensor(rows, dtype=torch.long), torch.zeros(0, dtype=torch.long)
        assert_bitwise([ours(index, offsets)], [theirs(index, offsets)])
        before = ours.weight.detach().clone()
        ours(index, offsets).sum().backward()
        RowAdaGrad(ours.parameters()).step()
        assert_bitwise([ours.weight], [before])


def test_the_default_device_does_not_matter_to_what_is_on_the_cpu():
    ours, theirs = pair(mode="mean")
    index = torch.randint(ROWS, (6, 5))
    lists = (index.view(-1), torch.arange(0, 30, 5))
    with torch.device("meta"):
        outs = [ours(index), ours(*lists)]
        outs[0].sum().backward()
        RowAdaGrad(ours.parameters()).step()
    close(outs[0], theirs(index), torch.float32)
    close(outs[1], theirs(index), torch.float32)


@pytest.mark.parametrize("last", [False, True])
def test_lists_may_have_gaps_in_memory(last):
    index, offsets = torch.randint(ROWS, (20,)), torch.tensor([0, 9, 3, 9, 3, 9, 8, 9, 10, 9])[::2]
    ours, theirs = pair(mode="sum", dtype=torch.float64, include_last_offset=last)
    close(ours(index[::2], offsets), theirs(index[::2].contiguous(), offsets.contiguous()), torch.float64)


@pytest.mark.parametrize("entrant", TABLE, ids=str)
def test_every_optimizer_takes_the_steps_that_it_takes_with_torchs_module_to_the_bit(entrant):
    ends = []
    for bag in pair(width=20, mode="sum"):
        optimizer = entrant(bag.parameters())
        random = torch.Generator().manual_seed(0)
        for _ in range(4):
            optimizer.zero_grad()
            index = torch.randint(ROWS, (30, 6), generator=random)
            bag(index).backward(torch.randn(30, 20, generator=random))
            optimizer.step()
        ends.append([bag.weight, *(value for value in optimizer.state[bag.weight].values())])
    assert_bitwise(*ends)


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("entrant", TABLE, ids=str)
def test_gradients_that_accumulate_are_those_of_one_pass_over_all_bags_to_the_bit(entrant, mode):
    ends = []
    for bags_a_pass in (30, 7):
        torch.manual_seed(0)
        bag = EmbeddingBag(ROWS, 20, mode=mode, sparse=True)
        optimizer = entrant(bag.parameters())
        for _ in range(2):
            optimizer.zero_grad(set_to_none=False)
            index, upstream = torch.randint(ROWS, (30, 6)), torch.randn(30, 20)
            for some, its in zip(index.split(bags_a_pass), upstream.split(bags_a_pass), strict=True):
                bag(some).backward(its)
            optimizer.step()
        ends.append([bag.weight, *optimizer.state[bag.weight].values()])
    assert_bitwise(*ends)


@pytest.mark.parametrize(
    "options", [{"domain": RowBalls(0.5), "project_start": True}, {"foreach": True}, {"fused": True}]
)
def test_domains_and_every_way_to_run_a_step_take_it(options):
    ends = []
    for bag in pair(mode="mean", dtype=torch.float64):
        optimizer = RowAdaGrad(bag.parameters(), lr=0.5, **options)
        bag(torch.arange(40).view(8, 5)).square().sum().backward()
        optimizer.step()
        ends.append(bag.weight)
    close(*ends, torch.float64)


def test_the_bits_do_not_depend_on_threads():
    ours, _ = pair(5000, 64, mode="sum")
    index, before = torch.randint(5000, (400, 20)), torch.get_num_threads()
    try:
        sums = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            sums.append(ours(index))
    finally:
        torch.set_num_threads(before)
    assert_bitwise(sums[:1] * 2, sums[1:])


def test_rows_of_a_larger_table_are_summed_where_they_lie():
    table = torch.randn(ROWS, 24)
    bag = EmbeddingBag(ROWS, 8, mode="sum", sparse=True, _weight=table[:, 8:16])
    index = torch.randint(ROWS, (6, 5))
    close(bag(index), table[index, 8:16].sum(1), torch.float32)
    bag(index).sum().backward()
    RowAdaGrad(bag.parameters()).step()
    assert table[:, 8:16].data_ptr() == bag.weight.data_ptr()


def test_a_backward_pass_takes_no_memory_for_each_row():
    ours, theirs = pair(1000, 64, mode="sum")
    index = torch.randint(1000, (100, 50))
    peaks = []
    for bag in (ours, theirs):
        loss = bag(index).square().sum()
        peaks.append(peak_extra_bytes(loss.backward)[0])
    spread = index.numel() * 64 * 4
    assert peaks[0] < spread / 10
    assert peaks[1] >= spread  # torch's own writes down the gradient of every row


# ------------------------------------------------------------------------------------------ what is not made faster


@pytest.mark.parametrize(
    "options",
    [
        {"sparse": False},
        {"mode": "max", "sparse": False},
        {"max_norm": 0.1},
        {"scale_grad_by_freq": True, "sparse": False},
    ],
    ids=str,
)
def test_what_is_not_covered_is_torchs(options):
    ours, theirs = (cls(ROWS, 8, **{"sparse": True, **options}) for cls in (EmbeddingBag, nn.EmbeddingBag))
    theirs.load_state_dict(ours.state_dict())
    index, outs = torch.randint(ROWS, (6, 5)), []
    for bag in (ours, theirs):
        outs.append(bag(index))
        outs[-1].sum().backward()
    assert_bitwise(*[[out] for out in outs])
    assert type(ours.weight.grad) is torch.Tensor


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_for_each_sample_multiply_rows_and_have_the_gradient_that_they_have_in_torch(dtype):
    ours, theirs = (module.to(dtype) for module in pair(mode="sum"))
    index, given = torch.randint(ROWS, (6, 5)), torch.rand(6, 5, dtype=dtype)
    results = []
    for bag in (ours, theirs):
        weights = given.clone().requires_grad_()
        pooled = bag(index, per_sample_weights=weights)
        pooled.square().sum().backward()
        results.append([pooled, bag.weight.grad.to_dense(), weights.grad])
    for actual, expected in zip(*results, strict=True):
        close(actual, expected, dtype)
    assert isinstance(ours.weight.grad, BagGradient)


def test_without_kernels_it_is_torchs_module(monkeypatch):
    monkeypatch.setattr(native, "missing", lambda: "taken away")
    ours, theirs = pair(mode="sum")
    index = torch.randint(ROWS, (6, 5))
    assert_bitwise([ours(index)], [theirs(index)])
    ours(index).sum().backward()
    assert type(ours.weight.grad) is torch.Tensor


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_transforms_of_functions_are_torchs():
    ours, theirs = pair(mode="sum")
    index = torch.randint(ROWS, (6, 5))
    sums = (lambda w, bag=bag: torch.func.functional_call(bag, {"weight": w}, (index,)) for bag in (ours, theirs))
    tangent = torch.randn(ROWS, 8)
    values = [torch.func.vmap(function)(torch.stack([tangent, tangent])) for function in sums]
    assert_bitwise(*[[value] for value in values])


def test_indices_that_are_no_integers_are_refused_by_torch():
    with pytest.raises(RuntimeError, match="indices"):
        EmbeddingBag(ROWS, 8, mode="sum", sparse=True)(torch.rand(3, 2))
    with pytest.raises(RuntimeError, match="scalar types"):
        EmbeddingBag(ROWS, 8, mode="sum", sparse=True)(torch.tensor([1, 2]), torch.tensor([0.0, 1.9]))


def test_other_devices_are_torchs():
    bag = EmbeddingBag(ROWS, 8, sparse=True, device="meta")
    assert bag(torch.zeros(3, 2, dtype=torch.long, device="meta")).shape == (3, 8)


def test_it_can_be_made_from_rows_that_are_there():
    rows = torch.randn(ROWS, 8)
    bag = EmbeddingBag.from_pretrained(rows, freeze=False, mode="sum", sparse=True)
    bag(torch.tensor([[1, 2]])).sum().backward()
    assert isinstance(bag.weight.grad, BagGradient)


# ------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize("wrong", [-1, ROWS, 2**40])
def test_a_row_that_the_table_does_not_have_is_refused(wrong):
    bag = EmbeddingBag(ROWS, 8, mode="sum", sparse=True)
    with pytest.raises(IndexError, match=rf"the table has {ROWS} rows, and its bags have rows {min(wrong, 3)} to"):
        bag(torch.tensor([[3, wrong, 3], [3, 4, 5]]))
    assert bag.weight.grad is None


@pytest.mark.parametrize("offsets", [[1, 2], [0, 3, 2], [0, 9], [0, -1]])
def test_offsets_that_are_none_are_refused(offsets):
    bag = EmbeddingBag(ROWS, 8, mode="sum", sparse=True)
    with pytest.raises(ValueError, match="offsets must begin with 0, never decrease, and not exceed the 4 indices"):
        bag(torch.tensor([1, 2, 3, 4]), torch.tensor(offsets))


def test_an_end_that_is_no_start_is_refused():
    bag = EmbeddingBag(ROWS, 8, mode="sum", sparse=True, include_last_offset=True)
    for end in (3, -1):
        with pytest.raises(ValueError, match="offsets must begin with 0"):
            bag(torch.tensor([1, 2, 3]), torch.tensor([end]))


def test_a_list_without_offsets_is_refused_by_torch():
    with pytest.raises(ValueError, match="offsets has to be a 1D Tensor"):
        EmbeddingBag(ROWS, 8, mode="sum", sparse=True)(torch.tensor([1, 2]))
