"""Tables with one byte an entry, for serving."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

__all__ = ["ByteEmbeddingBag", "QuantizedRows", "quantize_rows"]

_PIECE_BYTES = 1 << 24
_LEVELS = 255
_MOST = torch.finfo(torch.float32).max


class QuantizedRows(NamedTuple):
    """A table with one byte an entry. Row i is ``values[i] * scale[i] + offset[i]``."""

    values: Tensor  # uint8
    scale: Tensor  # float32, one a row
    offset: Tensor  # float32, one a row: the least entry

    def dequantize(self) -> Tensor:
        """The table in float32."""
        return self.values * self.scale[:, None] + self.offset[:, None]


def quantize_rows(weight: Tensor) -> QuantizedRows:
    r"""Round each row of a table to 256 levels between its least and its greatest entry.

    .. math::
        x_{ij} \approx q_{ij} s_i + o_i, \qquad o_i = \min_j x_{ij}, \quad s_i = (\max_j x_{ij} - o_i) / 255, \quad
        q_{ij} \in \{0, \dots, 255\}

    An entry is off by at most half a level, :math:`s_i / 2`, besides what float32 rounds: 1/510 of the spread of its
    row. A row of n entries takes n + 8 bytes.

    Args:
        weight: a matrix of any floating-point dtype, on a CPU, whose entries are finite, also in float32.

    Example:
        >>> import torch
        >>> from matrix_adagrad.tables import quantize_rows
        >>> rows = quantize_rows(torch.tensor([[0.0, 1.0, 255.0], [7.0, 7.0, 7.0]]))
        >>> rows.values.tolist(), rows.scale.tolist(), rows.offset.tolist()
        ([[0, 1, 255], [0, 0, 0]], [1.0, 0.0], [0.0, 7.0])
    """
    if not (isinstance(weight, Tensor) and weight.is_floating_point() and weight.dim() == 2 and weight.shape[1]):
        found = f"{weight.dtype} of shape {tuple(weight.shape)}" if isinstance(weight, Tensor) else repr(weight)
        raise ValueError(f"weight must be a matrix of floating-point numbers with columns, got {found}")
    quantized = QuantizedRows(
        torch.empty(weight.shape, dtype=torch.uint8, device="cpu"),
        *torch.empty(2, len(weight), dtype=torch.float32, device="cpu"),
    )
    together = max(1, _PIECE_BYTES // (8 * weight.shape[1]))
    for start in range(0, len(weight), together):
        piece = slice(start, start + together)
        x = weight.detach()[piece].double()
        low, high = x.aminmax(dim=1)
        fits = (high - low <= _MOST) & (low.abs() <= _MOST)  # neither is true of NaN
        if not fits.all():
            row = start + int(fits.long().argmin())
            raise ValueError(f"weight must be finite and spread over less than {_MOST:.2g}, and row {row} is not")
        offset = low.float()
        scale = ((high - offset).clamp_(min=0) / _LEVELS).float()  # the numbers that it is served with
        levels = (x - offset[:, None]).div_(torch.where(scale == 0, 1, scale)[:, None]).round_().clamp_(0, _LEVELS)
        quantized.values[piece], quantized.scale[piece], quantized.offset[piece] = levels.byte(), scale, offset
    return quantized


class ByteEmbeddingBag(nn.Module):
    """A table of bytes that sums or averages bags of rows as `torch.nn.EmbeddingBag` does, without training.

    It runs torch's own kernel. Its state dict has one tensor, ``packed``: the bytes of a row, and then its scale and
    offset as two float32, the format of ``torch.ops.quantized.embedding_bag_byte_prepack``.

    Args:
        rows: what `quantize_rows` returns.
        mode: ``"sum"`` or ``"mean"``.
        padding_idx: a row that counts for nothing.

    Example:
        >>> import torch
        >>> from matrix_adagrad import EmbeddingBag
        >>> from matrix_adagrad.tables import ByteEmbeddingBag, quantize_rows
        >>> bags = EmbeddingBag(1000, 16, mode="sum")
        >>> served = ByteEmbeddingBag(quantize_rows(bags.weight), mode="sum")
        >>> index = torch.tensor([[3, 14], [15, 9]])
        >>> bool((served(index) - bags(index)).abs().max() < 0.05)
        True
    """

    packed: Tensor

    def __init__(
        self, rows: QuantizedRows, *, mode: Literal["sum", "mean"] = "mean", padding_idx: int | None = None
    ) -> None:
        super().__init__()
        if mode not in ("sum", "mean"):
            raise ValueError(f"mode must be 'sum' or 'mean', got {mode!r}")
        if padding_idx is not None and not 0 <= padding_idx < len(rows.values):
            raise ValueError(f"padding_idx must be None or a row, 0 to {len(rows.values) - 1}, got {padding_idx!r}")
        self.mode, self.padding_idx = mode, padding_idx
        ends = [own[:, None].contiguous().view(torch.uint8) for own in (rows.scale, rows.offset)]
        self.register_buffer("packed", torch.cat([rows.values, *ends], dim=1))

    def forward(
        self,
        input: Tensor,  # noqa: A002 (torch's name)
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        """The sum, or the mean, of the rows of each bag. Weights are for sums."""
        if input.dim() == 2 and offsets is None:
            offsets = torch.arange(len(input), dtype=input.dtype, device=input.device) * input.shape[1]
        elif input.dim() != 1 or offsets is None or offsets.dim() != 1:
            raise ValueError("input must be a matrix with a bag in each row, or a list with offsets, one for each bag")
        if per_sample_weights is not None and self.mode != "sum":
            raise ValueError(f"per_sample_weights are for mode='sum', and this is mode={self.mode!r}")
        index, offsets = input.reshape(-1), offsets.to(input.dtype)
        low, high = index.aminmax() if len(index) else (0, 0)
        if len(index) and not 0 <= low <= high < len(self.packed):
            raise IndexError(f"the table has {len(self.packed)} rows, and its bags have rows {int(low)} to {int(high)}")
        weights = None if per_sample_weights is None else per_sample_weights.reshape(-1).float()
        counted = torch.ones(len(index), device=index.device)
        if self.padding_idx is not None:
            counted[index == self.padding_idx] = 0
            weights = counted if weights is None else weights * counted
        sums: Tensor = torch.ops.quantized.embedding_bag_byte_rowwise_offsets(
            self.packed, index, offsets, mode=0, per_sample_weights=weights
        )
        if self.mode == "sum":
            return sums
        ends = torch.cat([offsets, offsets.new_full((1,), len(index))]).long()
        before = torch.cat([counted.new_zeros(1), counted.double().cumsum(0)])
        return sums / before[ends].diff().clamp_(min=1)[:, None].float()

    def extra_repr(self) -> str:
        return f"{len(self.packed)}, {self.packed.shape[1] - 8}, mode={self.mode!r}"
