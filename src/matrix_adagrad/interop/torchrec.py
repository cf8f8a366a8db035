"""Exact migration from and to TorchRec's ``RowWiseAdagrad``."""

from __future__ import annotations

import copy
from typing import Any

from matrix_adagrad.geometry import Row
from matrix_adagrad.interop.migration import check_kind, groups_from, groups_to, load_states, store_states
from matrix_adagrad.optim import MatrixAdaGrad, MatrixMomentum, RowAdaGrad

try:
    from torchrec.optim.optimizers import PartialRowWiseAdam
    from torchrec.optim.rowwise_adagrad import RowWiseAdagrad
except ImportError as error:
    raise ImportError(
        "matrix_adagrad.interop.torchrec needs TorchRec: pip install --no-deps torchrec==1.8.0 fbgemm-gpu-cpu==1.8.0, "
        "and pip install pyre-extensions tensordict"
    ) from error

__all__ = ["from_torchrec", "to_torchrec"]

_PLACEHOLDER = "TorchRec's PartialRowWiseAdam has neither step nor state, it names FBGEMM's PARTIAL_ROWWISE_ADAM: use "
_OPTIONS = ("lr", "eps", "weight_decay", "initial_accumulator_value", "maximize")


def from_torchrec(optimizer: RowWiseAdagrad) -> RowAdaGrad:
    r"""A `RowAdaGrad` that continues from the state of a TorchRec ``RowWiseAdagrad``.

    Both divide a row's gradient, including the L2 penalty's, by the root of its accumulated mean squares:

    .. math:: V_{t,i} = V_{t-1,i} + \tfrac1n \|G_{t,i,:}\|_2^2, \qquad
        X_{t+1,i,:} = X_{t,i,:} - \eta\, G_{t,i,:} / (\sqrt{V_{t,i}} + \epsilon)

    The parameters are the same objects, the state is a copy, and the groups keep their options and names. Gradients may
    be sparse from now on; weight decay then acts only on the rows in the batch.

    Args:
        optimizer: TorchRec's optimizer. ``lr_decay`` is refused. So is ``PartialRowWiseAdam``, which has no state: its
            FBGEMM tables have it, and `from_fbgemm` takes them.

    Example:
        >>> import torch
        >>> from torchrec.optim.rowwise_adagrad import RowWiseAdagrad
        >>> from matrix_adagrad.interop.torchrec import from_torchrec
        >>> table = torch.nn.Embedding(1000, 16)
        >>> theirs = RowWiseAdagrad(table.parameters(), lr=0.1)
        >>> table(torch.tensor([3, 5])).square().sum().backward()
        >>> theirs.step()
        >>> ours = from_torchrec(theirs)
        >>> torch.equal(ours.state[table.weight]["sum"], theirs.state[table.weight]["sum"])
        True
    """
    if isinstance(optimizer, PartialRowWiseAdam):
        raise TypeError(f"{_PLACEHOLDER}from_fbgemm(tables), with FBGEMM's module")
    check_kind("optimizer", optimizer, RowWiseAdagrad)
    for group in optimizer.param_groups:
        for param in group["params"]:
            if param.dim() != 2:
                raise ValueError(f"a parameter has shape {tuple(param.shape)}: TorchRec's steps are for matrices only")
    defaults: dict[str, Any] = copy.deepcopy({name: optimizer.defaults[name] for name in _OPTIONS})
    ours = RowAdaGrad(list(groups_from(optimizer, Row(), "mean")), reduction="mean", **defaults)
    load_states(ours, optimizer.state, "TorchRec")
    return ours


def to_torchrec(optimizer: MatrixAdaGrad) -> RowWiseAdagrad:
    r"""A TorchRec ``RowWiseAdagrad`` that continues from the state of a `RowAdaGrad`.

    The parameters are the same objects, the state is a copy. A run with ``reduction="sum"`` is carried over with
    ``lr / √n`` and ``eps / √n``, with one group for each width n. TorchRec supports only matrices and dense gradients.

    Args:
        optimizer: a `RowAdaGrad`, or a `MatrixAdaGrad` whose groups scale by row. What TorchRec does not support is
            refused: vectors, other geometries, ``domain``, ``decoupled_weight_decay``, ``capturable``,
            ``differentiable``. So are parameters narrower than float32. A `RowMomentum` is one for `to_fbgemm`.

    Example:
        >>> import torch
        >>> from matrix_adagrad import RowAdaGrad
        >>> from matrix_adagrad.interop.torchrec import to_torchrec
        >>> table = torch.nn.Embedding(1000, 16)
        >>> theirs = to_torchrec(RowAdaGrad(table.parameters(), lr=0.4))
        >>> theirs.param_groups[0]["lr"]  # by the mean, for rows of 16
        0.1
    """
    if isinstance(optimizer, MatrixMomentum):
        raise TypeError(f"{_PLACEHOLDER}to_fbgemm(modules, optimizer)")
    groups = groups_to("TorchRec", optimizer, _OPTIONS)
    for own in optimizer.param_groups:
        for name, param in optimizer._named(own):
            shape, geometry = tuple(param.shape), own["geometry"]
            if param.dim() != 2:
                raise ValueError(f"{name} has shape {shape}: TorchRec takes matrices; leave it to another optimizer")
            if geometry.statistic_shape(shape) != Row().statistic_shape(shape):
                raise ValueError(f"geometry={geometry} of {name} cannot be carried over to TorchRec: it scales by row")
    for group in groups:
        group["lr"] = float(group["lr"])  # a tensor of shape (1,) makes its step fail
    defaults = {name: optimizer.defaults[name] for name in _OPTIONS}
    theirs = RowWiseAdagrad(groups, **{**defaults, "lr": float(defaults["lr"])})
    store_states(optimizer, theirs)
    return theirs
