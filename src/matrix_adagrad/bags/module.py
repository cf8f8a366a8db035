"""torch's EmbeddingBag, with a native forward pass and a compact gradient."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from matrix_adagrad.bags.batch import Feature
from matrix_adagrad.bags.lookup import Lookup, is_covered, without_padding

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

    PyTorch's own code handles everything else: ``sparse=False``, ``mode="max"``, ``max_norm``, ``scale_grad_by_freq``,
    devices other than a CPU, `torch.compile`, `torch.func`, and `DistributedDataParallel`,
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
        if not self._is_covered(input, offsets, per_sample_weights):
            return super().forward(input, offsets, per_sample_weights)
        index, offsets = _lists(input, offsets, self.include_last_offset)
        weights = None if per_sample_weights is None else per_sample_weights.reshape(-1)[: len(index)]
        if self.padding_idx is not None:
            index, offsets, weights = without_padding([self.padding_idx], index, offsets, weights)
        return self._lookup()([self.weight], index, offsets, weights)

    def _lookup(self) -> Lookup:
        known: Lookup | None = vars(self).get("_known_lookup")
        feature = Feature("", 0, 0, self.weight.shape[1], is_mean=self.mode == "mean")
        if known is None or known.features != (feature,):
            known = vars(self)["_known_lookup"] = Lookup([feature])
        return known

    def _is_covered(self, index: Tensor, offsets: Tensor | None, weights: Tensor | None) -> bool:
        return (
            (self.sparse and self.mode != "max" and self.max_norm is None and not self.scale_grad_by_freq)
            and (weights is None or (self.mode == "sum" and weights.shape == index.shape))
            and is_covered([self.weight], [index, offsets], weights)
            and index.dim() == (2 if offsets is None else 1)
        )


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
