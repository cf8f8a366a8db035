"""Migration from and to ``torch.optim.Adagrad``: from entries to rows, and back."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adagrad

from matrix_adagrad.geometry import Geometry, Partition, as_partition
from matrix_adagrad.interop.migration import check_kind, groups_from, groups_to, load_states, parameters, store_states
from matrix_adagrad.optim import MatrixAdaGrad
from matrix_adagrad.optim.state import STEP
from matrix_adagrad.optim.step.config import Reduction

__all__ = ["from_adagrad", "to_adagrad"]

_PEER = "torch's Adagrad"
_OPTIONS = ("lr", "eps", "weight_decay", "initial_accumulator_value", "maximize", "foreach", "fused")


def from_adagrad(optimizer: Adagrad, geometry: Geometry | str = "row", reduction: Reduction = "mean") -> MatrixAdaGrad:
    r"""A `MatrixAdaGrad` that continues from the state of a ``torch.optim.Adagrad``.

    AdaGrad keeps the sum of squares for every entry. A block's statistic follows from those of its entries:

    .. math:: V_b = \textstyle\sum_{(i,j) \in b} V_{ij} \quad\text{or, with the mean,}\quad
        V_b = \tfrac1{|b|} \textstyle\sum_{(i,j) \in b} V_{ij}

    So the state is the same as if a `MatrixAdaGrad` had seen those gradients. With ``geometry="entry"`` the run
    continues unchanged. The parameters are the same objects, and the groups keep their options and names. With
    ``reduction="sum"`` the learning rate becomes ``lr * √n``, with one group for each number n of entries that share a
    scale.

    Args:
        optimizer: torch's optimizer. ``lr_decay``, ``differentiable`` and complex parameters are refused.
        geometry: which entries share one scale from now on.
        reduction: ``"mean"`` keeps the learning rate. ``"sum"`` is as in the paper.

    Example:
        >>> import torch
        >>> from matrix_adagrad.interop.adagrad import from_adagrad
        >>> weight = torch.nn.Parameter(torch.zeros(2, 2))
        >>> entries = torch.optim.Adagrad([weight], lr=0.1)
        >>> weight.grad = torch.tensor([[3.0, 4.0], [0.0, 2.0]])
        >>> entries.step()
        >>> rows = from_adagrad(entries, "row", reduction="sum")
        >>> rows.state[weight]["sum"].flatten()
        tensor([25.,  4.])
    """
    check_kind("optimizer", optimizer, Adagrad)
    geometry = as_partition(geometry)
    defaults: dict[str, Any] = copy.deepcopy({name: optimizer.defaults[name] for name in _OPTIONS})
    groups = list(groups_from(optimizer, geometry, reduction))
    ours = MatrixAdaGrad(groups, geometry=geometry, reduction=reduction, **defaults)
    start = optimizer.defaults["initial_accumulator_value"]  # torch ignores a group's value
    states = {}
    for _, param, _ in parameters(ours, _PEER):
        state = optimizer.state.get(param) or {STEP: 0, "sum": torch.full_like(param, start, requires_grad=False)}
        states[param] = {STEP: state[STEP], "sum": _reduced(state["sum"], geometry, reduction)}
    load_states(ours, states, _PEER)
    return ours


def to_adagrad(optimizer: MatrixAdaGrad) -> Adagrad:
    r"""A ``torch.optim.Adagrad`` that continues from the state of a `MatrixAdaGrad`.

    A block's statistic is spread evenly over its entries, :math:`V_{ij} = V_b / |b|`, which keeps its sum. With
    ``geometry="entry"`` this is exact. From rows it cannot be: how the squares were spread within a row is no longer
    known, so AdaGrad's steps differ from here on. If you convert back with
    `from_adagrad` before a step, you get the same row state: in float32, bit for bit with the mean, and up to rounding
    with the sum.

    The parameters are the same objects. A run with ``reduction="sum"`` is carried over with ``lr / √n`` and
    ``eps / √n``, with one group for each number n of entries that share a scale.

    Args:
        optimizer: a `MatrixAdaGrad`, by any partition. ``domain``, ``decoupled_weight_decay``, ``capturable`` and
            ``differentiable``, and parameters narrower than float32, are refused.

    Example:
        >>> import torch
        >>> from matrix_adagrad import RowAdaGrad
        >>> from matrix_adagrad.interop.adagrad import from_adagrad, to_adagrad
        >>> weight = torch.nn.Parameter(torch.zeros(2, 2))
        >>> rows = RowAdaGrad([weight], lr=0.1, reduction="mean")
        >>> weight.grad = torch.tensor([[3.0, 4.0], [0.0, 2.0]])
        >>> rows.step()
        >>> entries = to_adagrad(rows)
        >>> entries.state[weight]["sum"]
        tensor([[12.5000, 12.5000],
                [ 2.0000,  2.0000]])
        >>> torch.equal(from_adagrad(entries).state[weight]["sum"], rows.state[weight]["sum"])
        True
    """
    groups = groups_to(_PEER, optimizer, _OPTIONS)
    theirs = Adagrad(groups, **copy.deepcopy({name: optimizer.defaults[name] for name in _OPTIONS}))
    store_states(optimizer, theirs)
    return theirs


def _reduced(entries: Tensor, geometry: Partition, reduction: Reduction) -> Tensor:
    """Block statistics from entry statistics, in float64, where the mean of equal float32 numbers is exact."""
    dims, view = geometry.dims(entries.shape), geometry.view(entries)
    if not dims:  # torch reads empty dims as all of them
        return view
    reduce = torch.sum if reduction == "sum" else torch.mean
    return reduce(view, dims, keepdim=True, dtype=torch.float64)
