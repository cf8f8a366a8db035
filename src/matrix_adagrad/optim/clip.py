"""Clipping by the norm of all gradients: dense, sparse, and by bags."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag

from matrix_adagrad.bags import BagGradient
from matrix_adagrad.optim.step.update import is_sharded
from matrix_adagrad.torch_private import stored_entries

__all__ = ["clip_grad_norm_"]


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    r"""Torch's `torch.nn.utils.clip_grad_norm_`, for models in which some gradients are sparse or a `BagGradient`.

    With :math:`\|G\|` the norm of all gradients as one vector, each is multiplied by
    :math:`\min(1, \text{max\_norm} / (\|G\| + 10^{-6}))`. A sparse gradient has the norm of the dense one: rows that it
    has several times are added up first. It stays sparse, and a `BagGradient` stays by bags. If all gradients are
    dense, torch's function does it all, and also if they are DTensors.

    Args:
        parameters: the parameters whose gradients are clipped, or one of them. Those without a gradient are skipped.
        max_norm: the largest norm that is left as it is.
        norm_type: the order of the norm; ``inf`` for the largest entry.
        error_if_nonfinite: whether a norm that is infinite or NaN is an error, and nothing is clipped.
        foreach: whether dense gradients are clipped by torch's operators on lists. By default, where it is faster.

    Returns:
        The norm of all gradients, before clipping.

    Example:
        >>> import torch
        >>> from matrix_adagrad import EmbeddingBag, clip_grad_norm_
        >>> table = EmbeddingBag(1000, 8, mode="sum", sparse=True)
        >>> table(torch.tensor([[1, 5, 9], [5, 2, 2]])).sum().backward()
        >>> clip_grad_norm_(table.parameters(), 1.0)  # rows 1 and 9 have 8 ones, 2 and 5 have 8 twos
        tensor(8.9443)
        >>> table.weight.grad
        BagGradient(2 bags with 6 of 1000 rows, width 8)
        >>> table.weight.grad.to_dense().norm().round(decimals=4)
        tensor(1.)
    """
    given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    with_gradient = [param for param in given if param.grad is not None]
    sparse = [param for param in with_gradient if _gradient(param).is_sparse]
    if not sparse:  # an empty generator as it is: torch warns of it
        return nn.utils.clip_grad_norm_(given or parameters, max_norm, norm_type, error_if_nonfinite, foreach)
    dense = [param for param in with_gradient if not _gradient(param).is_sparse]
    for param in dense:
        if is_sharded(param.grad):
            raise TypeError("parameters has both DTensors and sparse gradients, which have no norm together")
    with torch.no_grad():
        entries = [_entries(_gradient(param), float(norm_type)) for param in with_gradient]
    norm = nn.utils.get_total_norm(entries, norm_type, error_if_nonfinite, foreach)
    nn.utils.clip_grads_with_norm_(dense, max_norm, norm, foreach)
    nn.utils.clip_grads_with_norm_(sparse, max_norm, norm, foreach=False)  # one by one, or bags would be spread
    return norm


def _gradient(param: Tensor) -> Tensor:
    assert param.grad is not None
    return param.grad


def _entries(grad: Tensor, norm_type: float) -> Tensor:
    """A tensor with the gradient's norm: its entries, with or without those that are zero."""
    if not grad.is_sparse:
        return grad
    if norm_type < 0 or not stored_entries(grad):  # zeros decide such a norm, and a maximum needs an entry
        return grad.to_dense() if norm_type < 0 else grad.new_zeros(1, layout=torch.strided)
    return _sums_of_rows(grad) if isinstance(grad, BagGradient) else grad.coalesce().values()


def _sums_of_rows(grad: BagGradient) -> Tensor:
    """The sum of each row that the gradient has: the rows are bags of bags, so that values are never repeated."""
    index, offsets, weights, values = grad.entries()
    index, order = index.sort(stable=True)
    weight = None if weights is None else weights[order].to(values.dtype)
    if offsets is not None:
        order = torch.arange(len(values), device=index.device).repeat_interleave(offsets.diff())[order]
    counts = index.unique_consecutive(return_counts=True)[1]
    starts = counts.cumsum(0) - counts
    return embedding_bag(order, values, starts, mode="sum", per_sample_weights=weight)
