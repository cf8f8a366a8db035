"""torch's Embedding, with a gradient that is kept as it is."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from matrix_adagrad.bags.gradient import BagGradient
from matrix_adagrad.bags.lookup import is_covered
from matrix_adagrad.torch_private import has_no_other_owner

__all__ = ["Embedding"]


class Embedding(nn.Embedding):
    """A `torch.nn.Embedding` whose sparse gradient is a `BagGradient`, for ids one by one: see `EmbeddingBag` for bags.

    The gradient refers to the ids and to the gradient of the output, without copies; ids equal to ``padding_idx`` are
    left out. The module takes the same arguments as PyTorch's, has the same state dict, and gives the same rows and
    the same steps, bit for bit.

    As in PyTorch, ids may have any shape. If torch sees that they were written to, the backward pass or the step raises
    an error. Torch does not see writes to ``.data`` or to a NumPy array that shares their memory. Those change the
    gradient, so pass a copy of such buffers.

    PyTorch's own code handles everything else: ``sparse=False``, ``max_norm``, ``scale_grad_by_freq``, devices other
    than a CPU, `torch.compile`, `torch.func`, and `DistributedDataParallel`, which sends plain sparse gradients. The
    module cannot be scripted (`torch.jit.script`).

    Example:
        >>> import torch
        >>> from matrix_adagrad import Embedding, RowAdaGrad
        >>> table = Embedding(1000, 8, padding_idx=0, sparse=True)
        >>> optimizer = RowAdaGrad(table.parameters(), lr=0.1)
        >>> table(torch.tensor([[1, 5, 9], [5, 0, 0]])).square().sum().backward()
        >>> table.weight.grad
        BagGradient(4 of 1000 rows, width 8)
        >>> optimizer.step()
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
        """The row of each id: see `torch.nn.Embedding`."""
        if not self._is_covered(input):
            return super().forward(input)
        rows: Tensor = _Rows.apply(self.weight, input.reshape(-1).long(), input.shape, self.padding_idx)  # type: ignore[no-untyped-call]
        return rows

    def _is_covered(self, index: Tensor) -> bool:
        is_plain = self.sparse and self.max_norm is None and not self.scale_grad_by_freq
        return is_plain and is_covered([self.weight], [index], None)


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, index: Tensor, shape: torch.Size, padding: int | None) -> Tensor:
        rows, columns = weight.shape
        out = weight.new_empty(*shape, columns)
        try:
            torch.index_select(weight, 0, index, out=out.view(len(index), columns))
        except IndexError:
            low, high = index.aminmax()
            raise IndexError(f"the table has {rows} rows, and its ids are {low} to {high}") from None
        ctx.save_for_backward(index)
        ctx.shape, ctx.padding = weight.shape, padding
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (index,) = ctx.saved_tensors
        # As in torch's gradient accumulation: take over a tensor that nobody else holds, copy any other.
        is_ours = has_no_other_owner(grad) and grad.is_contiguous()
        values = grad.detach() if is_ours else grad.detach().clone(memory_format=torch.contiguous_format)
        values = values.view(len(index), ctx.shape[1])
        if ctx.padding is not None and not (keep := index != ctx.padding).all():
            index, values = index[keep], values[keep]
        return BagGradient(index, None, values, ctx.shape, check=False), None, None, None
