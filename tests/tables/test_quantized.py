"""Tables of bytes are off by half a level at most, and sum bags as torch's module does."""

import pytest
import torch
from torch import nn

from matrix_adagrad.tables import ByteEmbeddingBag, QuantizedRows, map_table, quantize_rows
from matrix_adagrad.tables import quantized as module

EPSILON = torch.finfo(torch.float32).eps


def a_table(dtype=torch.float32):
    """Rows of all sizes, far from 0 and close to it."""
    x = torch.randn(400, 24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    wide = dtype in (torch.float32, torch.float64)
    x *= torch.logspace(-30, 30, 400, dtype=torch.float64)[:, None] if wide else 1
    x[::3] += x[::3].abs().amax(1, keepdim=True) * 100
    x[1], x[2] = 2.5, 0
    return x.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_an_entry_is_off_by_half_a_level_at_most(dtype):
    x = a_table(dtype)
    rows = quantize_rows(x)
    error = (rows.dequantize().double() - x.double()).abs()
    spread = x.double().amax(1) - x.double().amin(1)
    rounding = 2 * EPSILON * x.double().abs().amax(1) + torch.finfo(torch.float32).tiny
    assert (error.amax(1) <= spread / 510 + rounding).all()
    assert rows.values.dtype is torch.uint8
    assert {int(own) for own in rows.values[::3].amax(1)} <= {254, 255, 0}


def test_the_least_entry_and_constant_rows_are_exact():
    x = a_table()
    back = quantize_rows(x).dequantize()
    assert torch.equal(back.amin(1), x.amin(1))
    assert torch.equal(back[1:3], x[1:3])


def test_torchs_own_bytes_are_read_alike():
    x = torch.randn(50, 12)
    packed = torch.ops.quantized.embedding_bag_byte_prepack(x)
    mine = ByteEmbeddingBag(quantize_rows(x)).packed
    assert mine.shape == packed.shape
    unpacked = torch.ops.quantized.embedding_bag_byte_unpack(mine)
    torch.testing.assert_close(unpacked, quantize_rows(x).dequantize())
    assert (mine[:, :-8].int() - packed[:, :-8].int()).abs().max() <= 1


def test_extreme_numbers():
    most = torch.finfo(torch.float32).max
    x = torch.tensor([[-most / 2, most / 2, 0.0], [0.0, most, most / 3], [1e-45, 0.0, 3e-45]])
    back = quantize_rows(x).dequantize()
    assert back.isfinite().all()
    assert ((back - x).abs() <= torch.tensor([[most / 500], [most / 500], [3e-45]])).all()


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("padding", [None, 7])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_bags_are_those_of_torch(mode, padding, dtype):
    x = torch.randn(50, 12)
    rows = quantize_rows(x)
    exact = nn.EmbeddingBag(50, 12, mode=mode, padding_idx=padding, _weight=rows.dequantize())
    served = ByteEmbeddingBag(rows, mode=mode, padding_idx=padding)
    index, offsets = torch.tensor([1, 7, 7, 49, 3, 7, 7, 0], dtype=dtype), torch.tensor([0, 3, 3, 5, 7], dtype=dtype)
    torch.testing.assert_close(served(index, offsets), exact(index, offsets))
    torch.testing.assert_close(served(index.view(4, 2)), exact(index.view(4, 2)))
    torch.testing.assert_close(served(index[:0], offsets[:2] * 0), exact(index[:0], offsets[:2] * 0))
    if mode == "sum":
        weights = torch.rand(8)
        torch.testing.assert_close(served(index, offsets, weights), exact(index, offsets, weights))


def test_a_table_moves_by_its_state_dict_and_by_its_three_tensors(tmp_path):
    rows = quantize_rows(torch.randn(50, 12))
    served = ByteEmbeddingBag(rows)
    torch.save(tuple(rows), tmp_path / "rows.pt")
    other = ByteEmbeddingBag(QuantizedRows(*torch.load(tmp_path / "rows.pt")))
    assert torch.equal(served.packed, other.packed)
    other.packed.zero_()
    other.load_state_dict(served.state_dict())
    assert torch.equal(served.packed, other.packed)
    assert not [*served.parameters()]


def test_a_table_in_files_is_read_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_PIECE_BYTES", 1000)
    items = nn.Embedding(100, 12)
    before = quantize_rows(items.weight)
    map_table(items, None, tmp_path)
    assert all(torch.equal(*pair) for pair in zip(quantize_rows(items.weight), before, strict=True))


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (
            torch.ones(3),
            r"must be a matrix of floating-point numbers with columns, got torch.float32 of shape \(3",
        ),
        (torch.ones(3, 2, dtype=torch.int64), "got torch.int64"),
        (torch.ones(3, 0), r"of shape \(3, 0\)"),
        (
            torch.tensor([[1.0], [torch.nan], [torch.inf]]),
            "finite and spread over less than 3.4e[+]38, and row 1 is not",
        ),
        (torch.tensor([[-3e38, 3e38]]), "and row 0 is not"),
        (torch.tensor([[1e39, 1e39]], dtype=torch.float64), "and row 0 is not"),
        ("rows", "got 'rows'"),
    ],
)
def test_tables_that_have_no_bytes(weight, message):
    with pytest.raises(ValueError, match=message):
        quantize_rows(weight)


def test_wrong_bags():
    served = ByteEmbeddingBag(quantize_rows(torch.ones(4, 2)))
    with pytest.raises(IndexError, match="the table has 4 rows, and its bags have rows -1 to 4"):
        served(torch.tensor([[-1, 4]]))
    with pytest.raises(ValueError, match="input must be a matrix with a bag in each row, or a list with offsets"):
        served(torch.tensor([1, 2]))
    with pytest.raises(ValueError, match="per_sample_weights are for mode='sum', and this is mode='mean'"):
        served(torch.tensor([[1]]), per_sample_weights=torch.ones(1, 1))
    with pytest.raises(ValueError, match="mode must be 'sum' or 'mean', got 'max'"):
        ByteEmbeddingBag(quantize_rows(torch.ones(4, 2)), mode="max")
    with pytest.raises(ValueError, match="padding_idx must be None or a row, 0 to 3, got 4"):
        ByteEmbeddingBag(quantize_rows(torch.ones(4, 2)), padding_idx=4)
