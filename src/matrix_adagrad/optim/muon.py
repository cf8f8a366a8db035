"""Muon for the hidden matrices, and one scale per row for the rest of the model."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor, nn
from torch.optim import Muon, Optimizer

from matrix_adagrad.geometry import Batched
from matrix_adagrad.optim.adagrad import MatrixAdaGrad
from matrix_adagrad.optim.combined import CombinedOptimizer
from matrix_adagrad.optim.groups import Choice, Rules, choose, explained, grouped
from matrix_adagrad.optim.keywords import refuse_unknown
from matrix_adagrad.optim.kinds import MATRIX
from matrix_adagrad.optim.momentum import MatrixMomentum
from matrix_adagrad.optim.step.config import FLAG, NOT_NEGATIVE, RATE, Allowed, check_values, numbers, one_of
from matrix_adagrad.optim.step.update import is_sharded
from matrix_adagrad.text import show

__all__ = ["muon_with_rows"]

# Each optimizer, with a learning rate that did well in benchmarks/muon.py.
_ROWS: dict[str, tuple[type[MatrixAdaGrad | MatrixMomentum], float]] = {
    "momentum": (MatrixMomentum, 0.03),
    "adagrad": (MatrixAdaGrad, 0.3),
}
_OWN_OPTIONS = ("lr", "rows_lr", "rows", "weight_decay", "muon", "rules", "explain")
# Valid values for torch.optim.Muon's options. Muon itself notices some bad values only in the middle of a step.
_MUON_ALLOWED: dict[str, Allowed] = {
    "weight_decay": NOT_NEGATIVE,
    "momentum": NOT_NEGATIVE,
    "nesterov": FLAG,
    "ns_coefficients": numbers("three numbers", 3),
    "eps": NOT_NEGATIVE,
    "ns_steps": Allowed(
        "an int from 0 to 99",
        lambda value: isinstance(value, int) and not isinstance(value, bool),
        lambda value: 0 <= value < 100,
    ),
    "adjust_lr_fn": one_of("original", "match_rms_adamw", None),
}
_MUON_OPTIONS = frozenset(inspect.signature(Muon).parameters) - {"params", "lr"}


def muon_with_rows(
    model: nn.Module,
    *,
    lr: float | Tensor = 0.01,
    rows_lr: float | Tensor | None = None,
    rows: Literal["momentum", "adagrad"] = "momentum",
    weight_decay: float = 0.0,
    muon: Mapping[str, Any] | None = None,
    rules: Rules = "balanced",
    explain: bool = False,
    **options: Any,
) -> CombinedOptimizer:
    r"""`torch.optim.Muon` for a model's hidden matrices and this package's optimizers for the rest, in one optimizer.

    Muon orthogonalizes a matrix's momentum, which suits hidden layers. Embeddings, output heads and vectors need
    another optimizer. AdamW would keep two numbers of state for each of their entries. Here:

    - Hidden 2D matrices use `torch.optim.Muon`: one number per entry.
    - Tables and heads use one scale per row, since their rows are tokens, items or classes. For an m×n matrix,
      ``"momentum"`` keeps m·n + m numbers and ``"adagrad"`` keeps m.
    - Batches of hidden matrices, such as experts (E, m, n), use one scale per row of each matrix, because torch's Muon
      does not support them: m·n + m or m numbers per matrix.
    - Vectors use one scale per entry, as in Adam or AdaGrad. So do convolutions, unless ``rules="lean"`` gives them one
      scale per channel.

    `geometry_groups` decides which parameter is which.

    Args:
        model: the model. It may be compiled or inside a data-parallel wrapper.
        lr: Muon's learning rate. The defaults of both rates did well on a small model (docs/muon.md): tune them.
        rows_lr: the learning rate for everything else. It is on the scale of Adam's or AdaGrad's, because squares are
            averaged over a row (``reduction="mean"``). Defaults to 0.03 for ``"momentum"`` and 0.3 for ``"adagrad"``.
        rows: ``"momentum"`` is `MatrixMomentum`, ``"adagrad"`` is `MatrixAdaGrad`.
        weight_decay: decoupled weight decay, ``x ← (1 - lr * weight_decay) x``, with the learning rate of the optimizer
            that holds x. Vectors (biases, norm gains, single rows and columns) are not decayed.
        muon: options for `torch.optim.Muon`, such as ``{"momentum": 0.9, "adjust_lr_fn": "match_rms_adamw"}``. A
            ``"weight_decay"`` here applies to the hidden matrices only.
        rules: as in `geometry_groups`. If one of your rules gives a hidden matrix a geometry, Muon does not get it.
        explain: print a table of every parameter with its optimizer, geometry, number of scales, and the reason. Also
            print the size of the state for all trained parameters, next to AdamW's.
        options: further options for `MatrixMomentum` or `MatrixAdaGrad`, such as ``betas=(0.9, 0.95)``.

    Example:
        >>> from torch import nn
        >>> from matrix_adagrad import muon_with_rows
        >>> model = nn.Sequential(nn.Embedding(1000, 16), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1000))
        >>> optimizer = muon_with_rows(model, lr=0.01, rows_lr=0.03, explain=True)
        parameter  shape      optimizer       geometry  scales  reason
        0.weight   1000 × 16  MatrixMomentum  row         1000  a table: each row is an item
        1.weight   16 × 16    Muon            –              0  a hidden matrix
        1.bias     16         MatrixMomentum  entry         16  a vector: it has no rows
        3.weight   1000 × 16  MatrixMomentum  row         1000  the last linear layer, taken for the output head
        3.bias     1000       MatrixMomentum  entry       1000  a vector: it has no rows
        3,016 scales for 33,272 parameters
        state, in numbers: Muon 256 (1.02 kB) + MatrixMomentum 36,032 (144 kB) = 36,288 (145 kB); AdamW 66,544 (266 kB)
        >>> [type(part).__name__ for part in optimizer.optimizers]
        ['Muon', 'MatrixMomentum']
    """
    if rows not in _ROWS:
        raise ValueError(f"rows must be {' or '.join(map(repr, _ROWS))}, got {rows!r}")
    cls, usual_lr = _ROWS[rows]
    own_options = [name for name in cls.CONFIG.OPTIONS if name not in ("lr", "geometry")]
    refuse_unknown("muon_with_rows", options, [*_OWN_OPTIONS, *own_options])
    check_values({"lr": lr, "weight_decay": weight_decay})
    check_values({"rows_lr": usual_lr if rows_lr is None else rows_lr}, {"rows_lr": RATE})
    muon = _checked(muon)
    choices, idle = choose(model, rules)
    if not choices:
        raise ValueError("model has no parameters")
    choices = [_as_it_goes_with_muon(choice) for choice in choices]
    hidden = [choice for choice in choices if _is_hidden_matrix(choice)]
    rest = [choice for choice in choices if not _is_hidden_matrix(choice)]
    if explain:
        names = {choice.name: (Muon if _is_hidden_matrix(choice) else cls).__name__ for choice in choices}
        show(explained(choices, idle, names))
    if muon and not hidden:
        raise ValueError(f"muon={muon!r} is for hidden matrices, and with these rules none is left to Muon")
    parts: list[Optimizer] = []
    for choice in hidden:
        _check_shards(choice)
    if hidden:
        group = {"name": MATRIX, "params": [(choice.name, choice.param) for choice in hidden]}
        parts.append(Muon([group], lr=lr, **{"weight_decay": weight_decay, **muon}))  # type: ignore[arg-type]
    if rest:
        own: Any = {"reduction": "mean", "decoupled_weight_decay": True, **options}
        parts.append(cls(grouped(rest, weight_decay), lr=usual_lr if rows_lr is None else rows_lr, **own))
    return CombinedOptimizer(parts)


def _checked(muon: Mapping[str, Any] | None) -> dict[str, Any]:
    if not isinstance(muon, Mapping | None):
        raise TypeError(f"muon must be a mapping of options of torch.optim.Muon, {{'momentum': 0.9}}, got {muon!r}")
    muon = dict(muon or {})
    if "lr" in muon:
        raise TypeError("muon has no 'lr': Muon's learning rate is the lr of muon_with_rows")
    refuse_unknown("muon", muon, _MUON_OPTIONS)
    check_values(muon, _MUON_ALLOWED, "muon's ")
    return muon


def _as_it_goes_with_muon(choice: Choice) -> Choice:
    """Scale batches of hidden matrices by row: Muon keeps one number per entry, so Adam's two would be out of place."""
    is_batch = choice.kind == MATRIX and isinstance(choice.by_row, Batched)
    return choice._replace(geometry=choice.by_row) if is_batch and not choice.ruled else choice


def _check_shards(choice: Choice) -> None:
    """Refuse more shards than rows: torch's Muon steps sharded matrices, each as a whole matrix, except these."""
    param: Any = choice.param
    if not is_sharded(param):
        return
    from matrix_adagrad.optim.sharding import sharded_dim

    for d, size in enumerate(param.shape):
        over = [param.device_mesh.size(i) for i, at in enumerate(param.placements) if sharded_dim(at) == d]
        if math.prod(over) > size:
            raise ValueError(
                f"{choice.name}, of shape {tuple(param.shape)}, has {math.prod(over)} shards along dimension {d}, more "
                f"than torch's Muon can step: take it from Muon, as with rules={{{choice.name!r}: 'entry'}}"
            )


def _is_hidden_matrix(choice: Choice) -> bool:
    return choice.kind == MATRIX and choice.param.dim() == 2 and not choice.ruled
