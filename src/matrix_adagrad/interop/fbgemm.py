"""Exact migration from and to FBGEMM's table-batched embeddings, which update their tables in the backward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from matrix_adagrad.bags import EmbeddingBags
from matrix_adagrad.geometry import Row, as_partition
from matrix_adagrad.interop.migration import (
    OPTIONS_THEY_LACK,
    check_kind,
    load_states,
    mean_statistic,
    refuse,
    regroup,
    steps,
)
from matrix_adagrad.optim import MatrixAdaGrad, MatrixMomentum, RowAdaGrad, RowMomentum
from matrix_adagrad.optim.state import STEP
from matrix_adagrad.optim.step.lazy import DECAY, LAST_DECAY, decay_of

try:
    from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        GlobalWeightDecayDefinition,
        SplitTableBatchedEmbeddingBagsCodegen,
        WeightDecayMode,
    )
except ImportError as error:
    raise ImportError(
        "matrix_adagrad.interop.fbgemm needs FBGEMM: pip install --no-deps fbgemm-gpu-cpu==1.8.0, and pip install numpy"
    ) from error

from matrix_adagrad.interop.fbgemm_tables import Modules, copied_modules, names_of, pooling_of, tables_read

__all__ = ["from_fbgemm", "to_fbgemm"]

_COUNTS = "there, decay and steps depend on how often a row was in a batch, not on how many steps it has missed"
_NO_BAGS = "FBGEMM has no kernel for it without pooling; use SUM or MEAN"
_NO_DECAY = "FBGEMM's CPU kernel for pooled tables of one feature ignores it"


class _Peer(NamedTuple):
    """The same optimizer as one of FBGEMM's."""

    ours: type[RowAdaGrad] | type[RowMomentum]
    keys: tuple[str, ...]  # of its state, in FBGEMM's order
    place: tuple[EmbeddingLocation, ComputeDevice]  # where FBGEMM computes it

    @property
    def has_momentum(self) -> bool:
        return issubclass(self.ours, MatrixMomentum)


_ON_GPU = (EmbeddingLocation.DEVICE, ComputeDevice.CUDA)
_PEERS = {
    EmbOptimType.EXACT_ROWWISE_ADAGRAD: _Peer(RowAdaGrad, ("sum",), (EmbeddingLocation.HOST, ComputeDevice.CPU)),
    EmbOptimType.PARTIAL_ROWWISE_ADAM: _Peer(RowMomentum, ("exp_avg", "exp_avg_sq"), _ON_GPU),
}
_MODES = (WeightDecayMode.NONE, WeightDecayMode.L2, WeightDecayMode.DECOUPLE, WeightDecayMode.DECOUPLE_GLOBAL)


def from_fbgemm(
    tables: SplitTableBatchedEmbeddingBagsCodegen, feature_names: Sequence[str] | None = None
) -> tuple[Any, RowAdaGrad | RowMomentum]:
    r"""A module and an optimizer that continue from FBGEMM tables.

    From ``EXACT_ROWWISE_ADAGRAD`` it is a `RowAdaGrad`. Both divide the gradient of each row in the batch by the root
    of its accumulated mean squares:

    .. math:: V_{t,i} = V_{t-1,i} + \tfrac1n \|G_{t,i,:}\|_2^2, \qquad
        X_{t+1,i,:} = X_{t,i,:} - \eta\, G_{t,i,:} / (\sqrt{V_{t,i}} + \epsilon)

    From ``PARTIAL_ROWWISE_ADAM`` it is a `RowMomentum`. Both average the gradients and mean squares of the rows in the
    batch, and correct the bias of both averages by the number of all steps. FBGEMM computes it on a GPU only.

    With weight decay, where FBGEMM applies it, both decay only the rows in the batch. In the mode L2, its gradient is
    part of G. Adam's is decoupled in every mode. In the mode DECOUPLE_GLOBAL, AdaGrad's makes up for the steps that a
    row has missed: ``lazy="exact"``, for which you call `keep_rows_current`. FBGEMM computes it on a GPU only.

    Args:
        tables: FBGEMM's module, in float32. With AdaGrad, on the CPU, and in float16 too, unless decay is global.
            Gradient clipping, ``max_norm``, narrower states, other weight decay modes and a lower bound of global decay
            are refused. So is a weight decay that FBGEMM is given but does not apply, and global decay of rows that
            never had a gradient, which it spares until they have one.
        feature_names: in FBGEMM's order, which has no names for them. None: the name of the table, with a number if it
            has several features.

    Returns:
        An `EmbeddingBags` with copies of all tables, for the same indices, offsets and weights, and the optimizer, with
        a copy of the state. The tables are named by FBGEMM's ``table_names``, or ``"table_0"``, ``"table_1"``, …
        Without pooling, a list of ``nn.Embedding(sparse=True)`` instead, one per feature. Features that share a table
        share a module.

    Example:
        >>> import torch
        >>> from matrix_adagrad import EmbeddingBags, RowAdaGrad
        >>> from matrix_adagrad.interop.fbgemm import from_fbgemm, to_fbgemm
        >>> bags = EmbeddingBags({"user": (1000, 16), "item": (5000, 8)})
        >>> tables = to_fbgemm(bags, RowAdaGrad(bags.parameters(), lr=0.1, reduction="mean"))
        >>> batch = torch.tensor([3, 5, 7]), torch.tensor([0, 2, 3])  # a bag of users, and one of items
        >>> tables(*batch).square().sum().backward()  # they have moved already
        >>> bags, optimizer = from_fbgemm(tables)
        >>> torch.equal(bags(*batch), tables(*batch))
        True
        >>> optimizer.state[bags.tables["user"]]["sum"].count_nonzero()
        tensor(2)
    """
    check_kind("tables", tables, SplitTableBatchedEmbeddingBagsCodegen)
    _check("optimizer", tables.optimizer, *_PEERS)
    peer, states = _PEERS[tables.optimizer], tables.split_optimizer_states()
    args, pooling, features = tables.optimizer_args, tables.pooling_mode, tables.feature_table_map
    mode = WeightDecayMode(args.regularization_mode)
    is_global = mode == WeightDecayMode.DECOUPLE_GLOBAL
    _check("use_cpu", tables.use_cpu, not (peer.has_momentum or is_global))
    _check("weights_precision", tables.weights_precision, SparseType.FP32, *[SparseType.FP16] * tables.use_cpu)
    _check("output_dtype", SparseType.from_int(tables.output_dtype), SparseType.FP32)
    if mode in (WeightDecayMode.COUNTER, WeightDecayMode.COWCLIP):
        refuse({"weight_decay_mode": mode.name}, {"weight_decay_mode": _COUNTS}, "matrix-adagrad")
    _check("weight_decay_mode", mode, *_MODES)
    for number, state in enumerate(states[0], start=1):
        _check(f"optimizer_state_dtypes of momentum{number}", state.dtype, torch.float32)
    advice = {"gradient_clipping": "clip by hand", "max_norm": "FBGEMM's kernel ignores it; set it to 0 there"}
    if is_global:
        _check_global_decay(tables, states)
    elif not peer.has_momentum and (mode == WeightDecayMode.NONE or not _decays(pooling, features)):
        reason = "FBGEMM ignores it in the mode NONE" if mode == WeightDecayMode.NONE else _NO_DECAY
        advice["weight_decay"] = f"{reason}; tables.update_hyper_parameters({{'weight_decay': 0.0}}) loses nothing"
    refuse(args._asdict(), advice, "matrix-adagrad")

    tables.flush()  # rows that are in a cache of the GPU
    modules = copied_modules(tables, feature_names)
    weights = list(modules.parameters())
    options: dict[str, Any] = {"betas": (args.beta1, args.beta2)} if peer.has_momentum else {}
    options |= {"lazy": "exact"} if is_global else {}
    optimizer = peer.ours(
        list(zip(tables.table_names, weights, strict=True)) if tables.table_names else weights,
        tables.get_learning_rate(),
        reduction="mean",
        eps=args.eps,
        weight_decay=args.weight_decay,
        decoupled_weight_decay=peer.has_momentum or mode == WeightDecayMode.DECOUPLE or is_global,
        **options,
    )
    found = {
        weight: {STEP: tables.iter.item()}
        | {key: value.view(len(weight), -1) for key, value in zip(peer.keys, state, strict=False)}
        | (_decays_seen(tables, state[-1], optimizer.param_groups[0]) if is_global else {})
        for weight, state in zip(weights, states, strict=True)
    }
    load_states(optimizer, found, "FBGEMM")
    return [modules[table] for table in features] if pooling == PoolingMode.NONE else modules, optimizer


def to_fbgemm(tables: Modules, optimizer: MatrixAdaGrad | MatrixMomentum) -> SplitTableBatchedEmbeddingBagsCodegen:
    r"""FBGEMM tables that continue from the state of a `RowAdaGrad` or a `RowMomentum`.

    The first become tables with ``EXACT_ROWWISE_ADAGRAD``, on the CPU. The second become tables with
    ``PARTIAL_ROWWISE_ADAM``, on the device of the weights. FBGEMM can run these only on a GPU. On the CPU they hold
    weights and state, and the GPU's tables load their ``state_dict``.

    FBGEMM has one learning rate (in float32), one ``eps`` and one weight decay for all its tables. Change them with
    ``set_learning_rate`` and ``update_hyper_parameters``: the optimizer's schedulers do not reach them. A run with
    ``reduction="sum"`` is carried over with ``lr / √n`` and ``eps / √n``. Then all tables must have the same width n.

    Args:
        tables: an `EmbeddingBags` with one mode and one dtype for all tables, float32 or, without momentum, float16,
            and with widths divisible by 4. Or a list of ``nn.Embedding``, one per feature: tables without pooling.
            Features that share a table pass the same module, and must be next to each other.
        optimizer: a `RowAdaGrad` or `RowMomentum`, or a `MatrixAdaGrad` or `MatrixMomentum` that scales the tables by
            row. It keeps its other parameters. ``domain``, ``maximize``, ``capturable`` and ``differentiable`` are
            refused. So is AdaGrad's weight decay where FBGEMM ignores it: for bags of one feature. With
            ``lazy="exact"``, it becomes global weight decay; all rows catch up first. With momentum, ``nesterov``,
            ``bias_correction=False``, ``lazy="exact"``, an L2 penalty, dense gradients, and tables that have taken
            different numbers of steps are refused.

    Returns:
        FBGEMM's tables, with copies of weights and state. The backward pass updates them: there is no step to call.

    Example:
        >>> from matrix_adagrad import EmbeddingBags, RowAdaGrad
        >>> from matrix_adagrad.interop.fbgemm import to_fbgemm
        >>> bags = EmbeddingBags({"user": (1000, 16), "item": (5000, 16)})
        >>> optimizer = RowAdaGrad(bags.parameters(), lr=0.4)
        >>> tables = to_fbgemm(bags, optimizer)
        >>> round(tables.get_learning_rate(), 6)  # by the mean, for rows of 16
        0.1
        >>> tables.set_learning_rate(0.05)
    """
    check_kind("optimizer", optimizer, MatrixAdaGrad, MatrixMomentum)
    has_momentum = isinstance(optimizer, MatrixMomentum)
    kind = EmbOptimType.PARTIAL_ROWWISE_ADAM if has_momentum else EmbOptimType.EXACT_ROWWISE_ADAGRAD
    pooling, numbers = pooling_of(tables), dict[int, int]()
    names, read = names_of(tables), tables_read(tables)
    features = [numbers.setdefault(id(weight), len(numbers)) for weight in read]
    if features != sorted(features):
        raise ValueError(f"the features have the tables {features}: FBGEMM needs those of one table next to each other")
    found = [_Found.of(read[features.index(number)], number, names, optimizer) for number in range(len(numbers))]
    taken = [steps(optimizer, own.weight) for own in found]
    options = found[0].options
    for other in found:
        if other.options != options:
            raise ValueError(
                f"{found[0].name} has {options} and {other.name} has {other.options}, both by the mean, and FBGEMM has "
                "one for all tables: carry them over one by one"
            )
    is_global = options["weight_decay_mode"] == WeightDecayMode.DECOUPLE_GLOBAL
    if options["weight_decay"] != 0 and not (has_momentum or is_global or _decays(pooling, features)):
        refuse(options, {"weight_decay": f"{_NO_DECAY}; set it to 0"}, "FBGEMM")
    is_sparse = isinstance(tables, EmbeddingBags) or all(table.sparse for table in tables)
    if (has_momentum or options["weight_decay"] != 0) and not is_sparse:
        raise ValueError(
            "sparse=False cannot be carried over to FBGEMM with momentum or weight decay: dense gradients move all "
            "rows, FBGEMM those of the batch; make the modules with sparse=True"
        )
    if has_momentum and len(set(taken)) > 1:
        raise ValueError(
            f"the tables have taken {taken} steps, and FBGEMM corrects the bias of all by one number: "
            "carry them over one by one"
        )

    if is_global:
        if pooling == PoolingMode.NONE:
            refuse({"lazy": "exact"}, {"lazy": _NO_BAGS}, "FBGEMM")
        options = {**options, "global_weight_decay": GlobalWeightDecayDefinition(start_iter=0, lower_bound=0.0)}
        for own in found:
            optimizer.catch_up(own.weight)
    theirs = SplitTableBatchedEmbeddingBagsCodegen(
        [(*own.weight.shape, *(_ON_GPU if is_global else _PEERS[kind].place)) for own in found],
        feature_table_map=features,
        optimizer=kind,
        pooling_mode=pooling,
        table_names=[own.name for own in found] if names or found[0].group.get("param_names") else None,
        **options,
    )
    weights, states = theirs.split_embedding_weights(), theirs.split_optimizer_states()
    iteration = max(*taken, 1) if is_global else max(taken)  # FBGEMM's 0 is a row that never had a gradient
    if is_global:
        for state in states:
            state.pop().fill_(iteration)
    for own, weight, (*averages, statistic) in zip(found, weights, states, strict=True):
        weight.copy_(own.weight.detach())
        statistic.copy_(mean_statistic(own.name, own.weight, own.group, optimizer, "FBGEMM").flatten())
        for average in averages:
            average.copy_(optimizer.state.get(own.weight, {}).get(optimizer.AVERAGE, torch.zeros(())))
    theirs.set_optimizer_step(iteration)
    return theirs


class _Found(NamedTuple):
    """A table in an optimizer, and its FBGEMM options."""

    name: str
    weight: Tensor
    group: Mapping[str, Any]
    options: dict[str, Any]

    @classmethod
    def of(cls, weight: Tensor, number: int, names: Sequence[str], optimizer: MatrixAdaGrad | MatrixMomentum) -> _Found:
        for group in optimizer.param_groups:
            for i, param in enumerate(group["params"]):
                if param is weight:
                    named = group["param_names"][i] if group.get("param_names") else f"table {number}"
                    name = names[number] if names else named
                    return cls(name, weight, group, _options(name, weight, group))
        which = repr(names[number]) if names else number
        raise ValueError(f"table {which}, of shape {tuple(weight.shape)}, is not among the optimizer's parameters")


def _options(name: str, weight: Tensor, group: Mapping[str, Any]) -> dict[str, Any]:
    """The options for FBGEMM, with the mean. Raises an error for anything it does not support."""
    shape, geometry, betas = tuple(weight.shape), as_partition(group["geometry"]), group.get("betas")
    refuse(group, {**OPTIONS_THEY_LACK, "maximize": "negate the loss", "nesterov": "it has plain momentum"}, "FBGEMM")
    if betas and not group["bias_correction"]:
        raise ValueError("bias_correction=False cannot be carried over to FBGEMM: its Adam corrects both averages")
    if geometry.statistic_shape(shape) != Row().statistic_shape(shape):
        raise ValueError(f"geometry={geometry} of {name} cannot be carried over to FBGEMM: it scales by row")
    is_for_gpu = betas or (group["lazy"] == "exact" and group["weight_decay"] != 0)
    dtypes = (torch.float32,) if is_for_gpu else (torch.float32, torch.float16)
    if weight.dtype not in dtypes or not (weight.is_cpu or is_for_gpu) or shape[1] % 4:
        raise ValueError(
            f"{name} has shape {shape} and is {weight.dtype} on {weight.device}: tables of FBGEMM are carried over in "
            "float32, without momentum and global decay on the CPU and in float16 too, and 4 must divide their width"
        )
    if weight.dtype == torch.float16:
        refuse(group, {"stochastic_rounding": "its CPU kernels round to the nearest; set it to False"}, "FBGEMM")
    if not weight.requires_grad:
        raise ValueError(f"requires_grad=False of {name} cannot be carried over to FBGEMM: it would train the table")
    (own,) = regroup({**group, "params": [weight], "param_names": None}, "mean")
    mode = WeightDecayMode.DECOUPLE if own["decoupled_weight_decay"] else WeightDecayMode.L2
    if own["lazy"] == "exact":
        if betas:
            raise ValueError(
                "lazy='exact' cannot be carried over to FBGEMM with momentum: its Adam leaves the averages of rows as "
                "they are without a gradient; set lazy='touched' in the group"
            )
        mode = WeightDecayMode.DECOUPLE_GLOBAL
    if betas and own["weight_decay"] != 0 and mode == WeightDecayMode.L2:
        refuse(own, {"weight_decay": "its Adam has decoupled_weight_decay alone"}, "FBGEMM")
    return {
        "learning_rate": float(own["lr"]),
        "eps": float(own["eps"]),
        "weight_decay": float(own["weight_decay"]),
        "weight_decay_mode": mode if own["weight_decay"] != 0 else WeightDecayMode.NONE,
        "device": weight.device,
        "weights_precision": SparseType.FP16 if weight.dtype == torch.float16 else SparseType.FP32,
        **(dict(zip(("beta1", "beta2"), betas, strict=True)) if betas else {}),
    }


def _check(name: str, value: Any, *allowed: Any) -> None:
    """Raise an error for an option of FBGEMM's that has no counterpart here."""
    if value not in allowed:
        words = " or ".join(map(_word, allowed))
        raise ValueError(f"{name}={_word(value)} cannot be carried over to matrix-adagrad: it must be {words}")


def _check_global_decay(tables: SplitTableBatchedEmbeddingBagsCodegen, states: Sequence[Sequence[Tensor]]) -> None:
    """Raise an error where FBGEMM's global weight decay is not that of dense training."""
    if tables.pooling_mode == PoolingMode.NONE:
        refuse({"weight_decay_mode": "DECOUPLE_GLOBAL"}, {"weight_decay_mode": _NO_BAGS}, "matrix-adagrad")
    _check("lower_bound of global_weight_decay", tables.gwd_lower_bound, 0.0)
    iteration = int(tables.iter)
    if tables.gwd_start_iter > iteration:
        raise ValueError(
            f"start_iter={tables.gwd_start_iter} of global_weight_decay cannot be carried over to matrix-adagrad after "
            f"{iteration} steps: migrate after that, or set it to 0 there"
        )
    untouched = sum(int((last == 0).sum()) for *_, last in states)
    if untouched:
        raise ValueError(
            f"prev_iter=0 of {untouched} rows cannot be carried over to matrix-adagrad: FBGEMM spares rows from global "
            "weight decay until they have a gradient; to let them decay from now on, set it to tables.iter in "
            "tables.split_optimizer_states()"
        )


def _decays_seen(
    tables: SplitTableBatchedEmbeddingBagsCodegen, prev_iter: Tensor, group: Mapping[str, Any]
) -> dict[str, Tensor]:
    """The decay that each row has seen, and that of all steps: FBGEMM decays by the current rate for all of a gap."""
    per_step = decay_of(RowAdaGrad.CONFIG.of_group(group))
    missed = (int(tables.iter) - prev_iter.double().cpu()) * per_step
    total = float(missed.max()) if missed.numel() else 0.0
    return {LAST_DECAY: total - missed, DECAY: torch.tensor(total, dtype=torch.float64)}


def _decays(pooling: PoolingMode, features: list[int]) -> bool:
    """Whether AdaGrad's kernels apply weight decay to all tables. The fast one, for the common case, does not."""
    return pooling == PoolingMode.NONE or all(features.count(table) > 1 for table in features)


def _word(value: Any) -> str:
    return str(getattr(value, "name", value))
