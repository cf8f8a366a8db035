"""torch's EmbeddingBag, with a native forward pass and a compact gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from matrix_adagrad import native
from matrix_adagrad.bags.gradient import BagGradient
from matrix_adagrad.torch_private import has_no_other_owner, is_transformed

__all__ = ["EmbeddingBag"]


class EmbeddingBag(nn.EmbeddingBag):
    r"""A faster `torch.nn.EmbeddingBag` for sparse gradients on a CPU.

    For bags of rows :math:`B_1, B_2, \dots` of a table X the output is :math:`Y_b = \sum_{i \in B_b} X_i`, or the mean.
    The gradient of X then contains :math:`\partial f / \partial Y_b` once for every row of bag b. PyTorch materializes
    all of these copies. Here they are a `BagGradient`, which the optimizers in this package use directly. A training
    step then moves little more memory than the rows it touches.

    It takes the same arguments as PyTorch's module, has the same state dict, and gives the same sums up to rounding.
    For the same output gradient, a step after one call matches PyTorch's bit for bit with ``mode="sum"``, and up to
    rounding with ``"mean"``. Accumulated gradients match one call with all the bags bit for bit; PyTorch adds its own
    in another order.

    As in PyTorch, the gradient refers to the indices. If torch sees that they were written to, the backward pass or the
    step raises an error. Torch does not see writes to ``.data`` or to a NumPy array that shares their memory. Those
    change the gradient, so pass a copy of such buffers.

    PyTorch's own code handles everything else: ``sparse=False``, per-sample weights, ``mode="max"``, ``max_norm``,
    ``scale_grad_by_freq``, devices other than a CPU, `torch.compile`, `torch.func`, and `DistributedDataParallel`,
    which sends plain sparse gradients. The module cannot be scripted (`torch.jit.script`).

    Example:
        >>> import torch
        >>> from matrix_adagrad import EmbeddingBag, RowAdaGrad
        >>> bag = EmbeddingBag(1000, 8, mode="sum", sparse=True)
        >>> optimizer = RowAdaGrad(bag.parameters(), lr=0.1)
        >>> bag(torch.tensor([[1, 5, 9], [5, 2, 2]])).square().sum().backward()
        >>> bag.weight.grad
        BagGradient(2 bags with 6 of 1000 rows, width 8)
        >>> optimizer.step()
    """

    def forward(
        self,
        input: Tensor,  # noqa: A002 (torch's name)
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        """The sum, or the mean, of the rows of each bag: see `torch.nn.EmbeddingBag`."""
        if per_sample_weights is not None or not self._is_covered(input, offsets):
            return super().forward(input, offsets, per_sample_weights)
        index, offsets = _lists(input, offsets, self.include_last_offset)
        if self.padding_idx is not None:
            index, offsets = _without(self.padding_idx, index, offsets)
        sums: Tensor = _SumBags.apply(self.weight, index, offsets)  # type: ignore[no-untyped-call]
        return sums if self.mode == "sum" else sums / offsets.diff().clamp_(min=1)[:, None]

    def _is_covered(self, index: Tensor, offsets: Tensor | None) -> bool:
        weight = self.weight
        return (
            (self.sparse and self.mode != "max" and self.max_norm is None and not self.scale_grad_by_freq)
            and not (torch.compiler.is_compiling() or is_transformed())
            and (type(weight) in (Tensor, nn.Parameter) and weight.is_cpu and not weight.is_neg())
            and (weight.dtype in native.DTYPES and weight.stride(1) == 1 and len(weight) < native.MOST_ROWS)
            and all(_is_list(x) for x in (index, offsets) if x is not None)
            and index.dim() == (2 if offsets is None else 1)
            and not native.missing()
        )


def _is_list(x: Tensor) -> bool:
    return type(x) is Tensor and x.is_cpu and x.dtype in (torch.int64, torch.int32) and not x.is_nested


def _lists(index: Tensor, offsets: Tensor | None, include_last_offset: bool) -> tuple[Tensor, Tensor]:
    """All rows, where each bag starts, and where the last one ends. The user's offsets are copied, the rows are not."""
    flat = index.reshape(-1).long().contiguous()
    if offsets is None:
        bags, length = index.shape
        return flat, torch.arange(bags + 1, device="cpu") * length
    if offsets.dim() != 1 or not len(offsets) >= include_last_offset:
        raise ValueError(f"offsets must be a list of the bags' starts, got a tensor of shape {tuple(offsets.shape)}")
    end = [] if include_last_offset else [len(flat) if len(offsets) else 0]
    offsets = torch.cat([offsets.long(), torch.tensor(end, dtype=torch.long, device="cpu")])
    first, last = int(offsets[0]), int(offsets[-1])
    shortest = int(offsets.diff().min()) if len(offsets) > 1 else 0
    if first != 0 or shortest < 0 or last > len(flat):
        raise ValueError(
            f"offsets must begin with 0, never decrease, and not exceed the {len(flat)} indices: "
            f"they begin with {first}, the shortest bag has {shortest} rows, and the last ends at {last}"
        )
    return flat[:last], offsets


def _without(padding: int, index: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    keep = index != padding
    kept = torch.cat([offsets.new_zeros(1), keep.cumsum(0)])
    return index[keep], kept[offsets]


def _what_is_missing(rows: int, index: Tensor) -> str:
    low, high = index.aminmax() if len(index) else (0, -1)
    if 0 <= low <= high < rows:
        return f"bags of a table with {rows} rows are out of range: were they written to while they were summed?"
    return f"the table has {rows} rows, and its bags have rows {low} to {high}"


class _SumBags(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, index: Tensor, offsets: Tensor) -> Tensor:
        rows, columns = weight.shape
        bags = len(offsets) - 1
        out = weight.new_empty(bags, columns)
        wrong = native.load().matrix_adagrad_sum_bags(
            *(weight.data_ptr(), rows, columns, weight.stride(0), native.DTYPES[weight.dtype]),
            *(index.data_ptr(), len(index), offsets.data_ptr(), bags, out.data_ptr(), native.threads()),
        )
        if wrong == native.NO_MEMORY:
            raise MemoryError(f"no memory was left to sum bags of {len(index)} rows")
        if wrong:
            raise IndexError(_what_is_missing(rows, index))
        ctx.save_for_backward(index, offsets)
        ctx.shape = weight.shape
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        index, offsets = ctx.saved_tensors
        # As in torch's gradient accumulation: take over a tensor that nobody else holds, copy any other.
        is_ours = has_no_other_owner(grad) and grad.is_contiguous()
        values = grad.detach() if is_ours else grad.detach().clone(memory_format=torch.contiguous_format)
        return BagGradient(index, offsets, values, ctx.shape, check=False), None, None
