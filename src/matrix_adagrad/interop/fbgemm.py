"""Exact migration from and to FBGEMM's table-batched embeddings, which update their tables in the backward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from matrix_adagrad.bags import EmbeddingBag
from matrix_adagrad.geometry import Row
from matrix_adagrad.interop.migration import NOT_THERE, check_kind, load_states, mean_statistic, refuse, regroup, steps
from matrix_adagrad.optim import MatrixAdaGrad, RowAdaGrad
from matrix_adagrad.optim.state import STEP

try:
    from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
        WeightDecayMode,
    )
except ImportError as error:
    raise ImportError(
        "matrix_adagrad.interop.fbgemm needs FBGEMM: pip install --no-deps fbgemm-gpu-cpu==1.8.0, and pip install numpy"
    ) from error

__all__ = ["from_fbgemm", "to_fbgemm"]

Table = nn.Embedding | nn.EmbeddingBag

_NO_DECAY = "FBGEMM's CPU kernel for pooled tables of one feature ignores it"


def from_fbgemm(tables: SplitTableBatchedEmbeddingBagsCodegen) -> tuple[list[Table], RowAdaGrad]:
    r"""Embeddings and a `RowAdaGrad` that continue from FBGEMM tables with ``EXACT_ROWWISE_ADAGRAD``.

    Both divide the gradient of each row in the batch by the root of its accumulated mean squares:

    .. math:: V_{t,i} = V_{t-1,i} + \tfrac1n \|G_{t,i,:}\|_2^2, \qquad
        X_{t+1,i,:} = X_{t,i,:} - \eta\, G_{t,i,:} / (\sqrt{V_{t,i}} + \epsilon)

    With weight decay, where FBGEMM applies it, both decay only the rows in the batch: the L2 gradient is part of G.

    Args:
        tables: FBGEMM's module, on the CPU and in float32. Gradient clipping, ``max_norm`` and other weight decay modes
            are refused. So is a weight decay that FBGEMM is given but does not apply.

    Returns:
        One module per feature, with a copy of its table, and the optimizer, with a copy of the state. With pooling, a
        module is an `EmbeddingBag` (``sparse=True``) in the same mode; call it with FBGEMM's indices and offsets.
        Without pooling, it is an ``nn.Embedding(sparse=True)``. Features that share a table share a module.

    Example:
        >>> import torch
        >>> from matrix_adagrad import RowAdaGrad
        >>> from matrix_adagrad.interop.fbgemm import from_fbgemm, to_fbgemm
        >>> bag = torch.nn.EmbeddingBag(1000, 16, mode="sum", sparse=True)
        >>> tables = to_fbgemm([bag], RowAdaGrad(bag.parameters(), lr=0.1, reduction="mean"))
        >>> tables(torch.tensor([3, 5]), torch.tensor([0, 2])).square().sum().backward()  # it has moved already
        >>> (bag,), optimizer = from_fbgemm(tables)
        >>> optimizer.state[bag.weight]["sum"].count_nonzero()
        tensor(2)
    """
    check_kind("tables", tables, SplitTableBatchedEmbeddingBagsCodegen)
    args, pooling, features = tables.optimizer_args, tables.pooling_mode, tables.feature_table_map
    mode = WeightDecayMode(args.regularization_mode)
    for name, value, allowed in (
        ("optimizer", tables.optimizer, (EmbOptimType.EXACT_ROWWISE_ADAGRAD,)),
        ("use_cpu", tables.use_cpu, (True,)),
        ("weights_precision", tables.weights_precision, (SparseType.FP32,)),
        ("output_dtype", SparseType.from_int(tables.output_dtype), (SparseType.FP32,)),
        ("weight_decay_mode", mode, (WeightDecayMode.NONE, WeightDecayMode.L2, WeightDecayMode.DECOUPLE)),
    ):
        if value not in allowed:
            words = " or ".join(map(_word, allowed))
            raise ValueError(f"{name}={_word(value)} cannot be carried over to matrix-adagrad: it must be {words}")
    advice = {"gradient_clipping": "clip by hand", "max_norm": "FBGEMM's CPU kernel ignores it; set it to 0 there"}
    if mode == WeightDecayMode.NONE or not _decays(pooling, features):
        reason = "FBGEMM ignores it in the mode NONE" if mode == WeightDecayMode.NONE else _NO_DECAY
        advice["weight_decay"] = f"{reason}; tables.update_hyper_parameters({{'weight_decay': 0.0}}) loses nothing"
    refuse(args._asdict(), advice, "matrix-adagrad")

    modules = [_module(weight.clone(), pooling) for weight in tables.split_embedding_weights()]
    weights = [module.weight for module in modules]
    optimizer = RowAdaGrad(
        list(zip(tables.table_names, weights, strict=True)) if tables.table_names else weights,
        tables.get_learning_rate(),
        reduction="mean",
        eps=args.eps,
        weight_decay=args.weight_decay,
        decoupled_weight_decay=mode == WeightDecayMode.DECOUPLE,
    )
    sums = [statistic.view(-1, 1) for (statistic,) in tables.split_optimizer_states()]
    states = {weight: {STEP: tables.iter.item(), "sum": own} for weight, own in zip(weights, sums, strict=True)}
    load_states(optimizer, states, "FBGEMM")
    return [modules[table] for table in features], optimizer


def to_fbgemm(tables: Sequence[Table], optimizer: MatrixAdaGrad) -> SplitTableBatchedEmbeddingBagsCodegen:
    r"""FBGEMM tables with ``EXACT_ROWWISE_ADAGRAD``, on the CPU, that continue from the state of a `RowAdaGrad`.

    FBGEMM has one learning rate (in float32), one ``eps`` and one weight decay for all its tables. Change them with
    ``set_learning_rate`` and ``update_hyper_parameters``: the optimizer's schedulers do not reach them. A run with
    ``reduction="sum"`` is carried over with ``lr / √n`` and ``eps / √n``. Then all tables must have the same width n.

    Args:
        tables: one module per feature, in float32, with widths divisible by 4. Each is an ``nn.EmbeddingBag`` with mode
            ``"sum"`` or ``"mean"``, or an ``nn.Embedding``. Features that share a table pass the same module, and must
            be next to each other.
        optimizer: a `RowAdaGrad`, or a `MatrixAdaGrad` that scales the tables by row. It keeps its other parameters.
            ``domain``, ``maximize``, ``capturable`` and ``differentiable`` are refused. So is weight decay where FBGEMM
            ignores it: for bags of one feature.

    Returns:
        FBGEMM's tables, with copies of weights and state. The backward pass updates them: there is no step to call.

    Example:
        >>> import torch
        >>> from matrix_adagrad import RowAdaGrad
        >>> from matrix_adagrad.interop.fbgemm import to_fbgemm
        >>> bags = [torch.nn.EmbeddingBag(rows, 16, mode="sum", sparse=True) for rows in (1000, 50)]
        >>> optimizer = RowAdaGrad([bag.weight for bag in bags], lr=0.4)
        >>> tables = to_fbgemm(bags, optimizer)
        >>> round(tables.get_learning_rate(), 6)  # by the mean, for rows of 16
        0.1
        >>> tables.set_learning_rate(0.05)
    """
    check_kind("optimizer", optimizer, MatrixAdaGrad)
    pooling, numbers = _pooling(tables), dict[int, int]()
    features = [numbers.setdefault(id(table.weight), len(numbers)) for table in tables]
    if features != sorted(features):
        raise ValueError(f"the features have the tables {features}: FBGEMM needs those of one table next to each other")
    found = [_Found.of(tables[features.index(number)].weight, number, optimizer) for number in range(len(numbers))]
    options = found[0].options
    for other in found:
        if other.options != options:
            raise ValueError(
                f"{found[0].name} has {options} and {other.name} has {other.options}, both by the mean, and FBGEMM has "
                "one for all tables: carry them over one by one"
            )
    if options["weight_decay"] != 0 and not _decays(pooling, features):
        refuse(options, {"weight_decay": f"{_NO_DECAY}; set it to 0"}, "FBGEMM")
    if options["weight_decay"] != 0 and not all(table.sparse for table in tables):
        refuse(options, {"weight_decay": "dense gradients decay all rows, FBGEMM those of the batch"}, "FBGEMM")

    theirs = SplitTableBatchedEmbeddingBagsCodegen(
        [(*own.weight.shape, EmbeddingLocation.HOST, ComputeDevice.CPU) for own in found],
        feature_table_map=features,
        optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        pooling_mode=pooling,
        table_names=[own.name for own in found] if found[0].group.get("param_names") else None,
        **options,
    )
    weights, states = theirs.split_embedding_weights(), theirs.split_optimizer_states()
    for own, weight, (statistic,) in zip(found, weights, states, strict=True):
        weight.copy_(own.weight.detach())
        statistic.copy_(mean_statistic(own.name, own.weight, own.group, optimizer, "FBGEMM").flatten())
    theirs.set_optimizer_step(max(steps(optimizer, own.weight) for own in found))
    return theirs


class _Found(NamedTuple):
    """A table in an optimizer, and its FBGEMM options."""

    name: str
    weight: Tensor
    group: Mapping[str, Any]
    options: dict[str, Any]

    @classmethod
    def of(cls, weight: Tensor, number: int, optimizer: MatrixAdaGrad) -> _Found:
        for group in optimizer.param_groups:
            for i, param in enumerate(group["params"]):
                if param is weight:
                    name = group["param_names"][i] if group.get("param_names") else f"table {number}"
                    return cls(name, weight, group, _options(name, weight, group))
        raise ValueError(f"table {number}, of shape {tuple(weight.shape)}, is not among the optimizer's parameters")


def _options(name: str, weight: Tensor, group: Mapping[str, Any]) -> dict[str, Any]:
    """The options for FBGEMM, with the mean. Raises an error for anything it does not support."""
    shape, geometry = tuple(weight.shape), group["geometry"]
    refuse(group, {**NOT_THERE, "maximize": "negate the loss"}, "FBGEMM")
    if geometry.statistic_shape(shape) != Row().statistic_shape(shape):
        raise ValueError(f"geometry={geometry} of {name} cannot be carried over to FBGEMM: it scales by row")
    if weight.dtype != torch.float32 or not weight.is_cpu or shape[1] % 4:
        raise ValueError(
            f"{name} has shape {shape} and is {weight.dtype} on {weight.device}: tables of FBGEMM are carried over in "
            "float32, on the CPU, and 4 must divide their width"
        )
    if not weight.requires_grad:
        raise ValueError(f"requires_grad=False of {name} cannot be carried over to FBGEMM: it would train the table")
    (own,) = regroup({**group, "params": [weight], "param_names": None}, "mean")
    mode = WeightDecayMode.DECOUPLE if own["decoupled_weight_decay"] else WeightDecayMode.L2
    return {
        "learning_rate": float(own["lr"]),
        "eps": float(own["eps"]),
        "weight_decay": float(own["weight_decay"]),
        "weight_decay_mode": mode if own["weight_decay"] != 0 else WeightDecayMode.NONE,
    }


def _decays(pooling: PoolingMode, features: list[int]) -> bool:
    """Whether FBGEMM's CPU kernels apply weight decay to all tables. The fast kernel, for the common case, does not."""
    return pooling == PoolingMode.NONE or all(features.count(table) > 1 for table in features)


def _pooling(tables: Sequence[Table]) -> PoolingMode:
    """The pooling mode shared by all modules. Raises an error for anything FBGEMM's lookup does not support."""
    if not isinstance(tables, Sequence) or not tables or not all(isinstance(table, Table) for table in tables):
        raise TypeError(f"tables must be a list of nn.EmbeddingBag or nn.Embedding, at least one, got {tables!r}")
    modes = {table.mode if isinstance(table, nn.EmbeddingBag) else "none" for table in tables}
    found = [mode for mode in PoolingMode if {mode.name.lower()} == modes]
    if not found:
        raise ValueError(
            f"tables pool by {sorted(modes)}: FBGEMM has one mode for all, 'sum', 'mean' or (Embedding) none"
        )
    for number, table in enumerate(tables):
        for option in ("max_norm", "scale_grad_by_freq", "padding_idx"):
            value = getattr(table, option)
            if value is not None and value is not False:  # a padding_idx of 0 counts
                raise ValueError(f"{option}={value} of table {number} cannot be carried over to FBGEMM")
    return found[0]


def _module(weight: Tensor, pooling: PoolingMode) -> Table:
    (rows, width), mode = weight.shape, pooling.name.lower()
    if pooling == PoolingMode.NONE:
        return nn.Embedding(rows, width, _weight=weight, sparse=True)
    # FBGEMM's offsets include the end of the last bag.
    return EmbeddingBag(rows, width, _weight=weight, mode=mode, sparse=True, include_last_offset=True)


def _word(value: Any) -> str:
    return str(getattr(value, "name", value))
