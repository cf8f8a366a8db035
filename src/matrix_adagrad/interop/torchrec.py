"""Exact migration from and to TorchRec's ``EmbeddingBagCollection`` and ``RowWiseAdagrad``."""

from __future__ import annotations

import copy
from typing import Any, overload

import torch

from matrix_adagrad.bags import EmbeddingBags
from matrix_adagrad.geometry import Row
from matrix_adagrad.interop.migration import check_kind, groups_from, groups_to, load_states, store_states
from matrix_adagrad.optim import MatrixAdaGrad, MatrixMomentum, RowAdaGrad

try:
    from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
    from torchrec.modules.embedding_modules import EmbeddingBagCollection
    from torchrec.optim.optimizers import PartialRowWiseAdam
    from torchrec.optim.rowwise_adagrad import RowWiseAdagrad
    from torchrec.types import DataType
except ImportError as error:
    raise ImportError(
        "matrix_adagrad.interop.torchrec needs TorchRec: pip install --no-deps torchrec==1.8.0 fbgemm-gpu-cpu==1.8.0, "
        "and pip install pyre-extensions tensordict"
    ) from error

__all__ = ["from_torchrec", "to_torchrec"]

_PLACEHOLDER = "TorchRec's PartialRowWiseAdam has neither step nor state, it names FBGEMM's PARTIAL_ROWWISE_ADAM: use "
_OPTIONS = ("lr", "eps", "weight_decay", "initial_accumulator_value", "maximize")
# TorchRec 1.8.0 makes tables of float16 from a collection's configuration with BF16.
_DATA_TYPES = {torch.float32: DataType.FP32, torch.float16: DataType.FP16}


@overload
def from_torchrec(theirs: EmbeddingBagCollection) -> EmbeddingBags: ...


@overload
def from_torchrec(theirs: RowWiseAdagrad) -> RowAdaGrad: ...  # type: ignore[overload-cannot-match]  # both are Any


def from_torchrec(theirs: EmbeddingBagCollection | RowWiseAdagrad) -> EmbeddingBags | RowAdaGrad:
    r"""An `EmbeddingBags` with the tables of a TorchRec collection, or a `RowAdaGrad` that continues a run.

    The parameters are the same objects, so convert the module and the optimizer in any order.

    The `EmbeddingBags` takes the collection's ``KeyedJaggedTensor``, and its output has the columns of the collection's
    ``KeyedTensor``. Pooling, features, widths and dtypes are those of each table.

    The `RowAdaGrad` continues from the state of a ``RowWiseAdagrad``. Both divide a row's gradient, including the L2
    penalty's, by the root of its accumulated mean squares:

    .. math:: V_{t,i} = V_{t-1,i} + \tfrac1n \|G_{t,i,:}\|_2^2, \qquad
        X_{t+1,i,:} = X_{t,i,:} - \eta\, G_{t,i,:} / (\sqrt{V_{t,i}} + \epsilon)

    The state is a copy, and the groups keep their options and names. Gradients may be sparse from now on, and those of
    an `EmbeddingBags` are; weight decay then acts only on the rows in the batch.

    Args:
        theirs: TorchRec's module, not sharded, or its optimizer. A sharded model has FBGEMM's tables, which
            `from_fbgemm` takes. Refused are a module whose features read several tables, or whose parameters are
            updated in the backward pass, ``lr_decay``, and ``PartialRowWiseAdam``, which has no state: FBGEMM has it.

    Example:
        >>> import torch
        >>> from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
        >>> from torchrec.optim.rowwise_adagrad import RowWiseAdagrad
        >>> from matrix_adagrad.interop.torchrec import from_torchrec
        >>> config = EmbeddingBagConfig(name="item", num_embeddings=1000, embedding_dim=16, feature_names=["seen"])
        >>> collection = EmbeddingBagCollection([config])
        >>> theirs = RowWiseAdagrad(collection.parameters(), lr=0.1)
        >>> batch = KeyedJaggedTensor(["seen"], torch.tensor([3, 5]), offsets=torch.tensor([0, 2]))
        >>> collection(batch).values().square().sum().backward()
        >>> theirs.step()
        >>> bags, ours = from_torchrec(collection), from_torchrec(theirs)
        >>> torch.equal(bags(batch), collection(batch).values())
        True
        >>> torch.equal(ours.state[bags.tables["item"]]["sum"], theirs.state[bags.tables["item"]]["sum"])
        True
    """
    if isinstance(theirs, PartialRowWiseAdam):
        raise TypeError(f"{_PLACEHOLDER}from_fbgemm(tables), with FBGEMM's module")
    check_kind("theirs", theirs, EmbeddingBagCollection, RowWiseAdagrad)
    return _bags(theirs) if isinstance(theirs, EmbeddingBagCollection) else _rows(theirs)


def _bags(collection: EmbeddingBagCollection) -> EmbeddingBags:
    for name, param in collection.named_parameters():
        if hasattr(param, "_in_backward_optimizers"):
            raise ValueError(
                f"{name} is updated in the backward pass: convert the module before apply_optimizer_in_backward, "
                "and use matrix_adagrad.step_in_backward"
            )
    features = {config.name: config.feature_names for config in collection.embedding_bag_configs()}
    return EmbeddingBags.from_modules(collection.embedding_bags, features)


def _rows(optimizer: RowWiseAdagrad) -> RowAdaGrad:
    for group in optimizer.param_groups:
        for param in group["params"]:
            if param.dim() != 2:
                raise ValueError(f"a parameter has shape {tuple(param.shape)}: TorchRec's steps are for matrices only")
    defaults: dict[str, Any] = copy.deepcopy({name: optimizer.defaults[name] for name in _OPTIONS})
    ours = RowAdaGrad(list(groups_from(optimizer, Row(), "mean")), reduction="mean", **defaults)
    load_states(ours, optimizer.state, "TorchRec")
    return ours


@overload
def to_torchrec(ours: EmbeddingBags, *, is_weighted: bool = False) -> EmbeddingBagCollection: ...


@overload
def to_torchrec(ours: MatrixAdaGrad) -> RowWiseAdagrad: ...


def to_torchrec(
    ours: EmbeddingBags | MatrixAdaGrad, *, is_weighted: bool = False
) -> EmbeddingBagCollection | RowWiseAdagrad:
    r"""TorchRec's collection of the tables of an `EmbeddingBags`, or a ``RowWiseAdagrad`` that continues a run.

    The parameters are the same objects, so convert the module and the optimizer in any order. The state is a copy. A
    run with ``reduction="sum"`` is carried over with ``lr / √n`` and ``eps / √n``, with one group for each width n.
    TorchRec's optimizer supports only matrices and dense gradients, which its collection makes.

    Args:
        ours: an `EmbeddingBags`, a `RowAdaGrad`, or a `MatrixAdaGrad` whose groups scale by row. What TorchRec does not
            support is refused: vectors, other geometries, ``padding_idx``, ``domain``, ``decoupled_weight_decay``,
            ``capturable``, ``differentiable``. So are tables that are neither float32 nor float16, and an optimizer of
            parameters narrower than float32. A `RowMomentum` is one for `to_fbgemm`.
        is_weighted: whether the collection uses the weights of a ``KeyedJaggedTensor``. It then needs them in each.

    Example:
        >>> import torch
        >>> from matrix_adagrad import EmbeddingBags, RowAdaGrad
        >>> from matrix_adagrad.interop.torchrec import to_torchrec
        >>> bags = EmbeddingBags({"user": (1000, 16), "item": (5000, 4)})
        >>> collection = to_torchrec(bags)
        >>> collection.embedding_bags["user"].weight is bags.tables["user"]
        True
        >>> theirs = to_torchrec(RowAdaGrad(bags.parameters(), lr=0.4))
        >>> [group["lr"] for group in theirs.param_groups]  # by the mean, for rows of 16 and 4
        [0.1, 0.2]
    """
    if isinstance(ours, MatrixMomentum):
        raise TypeError(f"{_PLACEHOLDER}to_fbgemm(modules, optimizer)")
    check_kind("ours", ours, EmbeddingBags, MatrixAdaGrad)
    return _collection(ours, is_weighted) if isinstance(ours, EmbeddingBags) else _row_wise(ours)


def _collection(bags: EmbeddingBags, is_weighted: bool) -> EmbeddingBagCollection:
    modules, configs = bags.to_modules(), []
    for name, module in modules.items():
        rows, width = module.weight.shape
        if module.padding_idx is not None:
            raise ValueError(f"padding_idx={module.padding_idx} of table {name!r} cannot be carried over to TorchRec")
        if module.weight.dtype not in _DATA_TYPES:
            raise ValueError(
                f"table {name!r} is {module.weight.dtype}: a collection of TorchRec has float32 and float16"
            )
        configs.append(
            EmbeddingBagConfig(
                name=name,
                num_embeddings=rows,
                embedding_dim=width,
                feature_names=list(bags.features_by_table[name]),
                pooling=PoolingType[module.mode.upper()],
                data_type=_DATA_TYPES[module.weight.dtype],
            )
        )
    collection = EmbeddingBagCollection(configs, is_weighted=is_weighted, device=torch.device("meta"))
    for name, module in modules.items():
        collection.embedding_bags[name].weight = module.weight
    collection._device = module.weight.device
    return collection


def _row_wise(optimizer: MatrixAdaGrad) -> RowWiseAdagrad:
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
