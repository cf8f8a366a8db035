"""Muon for the hidden matrices, and one scale a row for the other half of the model."""

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
from matrix_adagrad.optim.kinds import MATRIX
from matrix_adagrad.optim.momentum import MatrixMomentum
from matrix_adagrad.optim.options import (
    MUON_OPTIONS,
    AdaGradOptions,
    MomentumOptions,
    check_values,
    refuse_unknown_keywords,
)
from matrix_adagrad.optim.state import is_sharded, shards
from matrix_adagrad.text import show

__all__ = ["muon_with_rows"]

# The optimizer, its options, and a learning rate that did well with it in benchmarks/muon.py.
_ROWS: dict[str, tuple[type[MatrixAdaGrad | MatrixMomentum], type, float]] = {
    "momentum": (MatrixMomentum, MomentumOptions, 0.03),
    "adagrad": (MatrixAdaGrad, AdaGradOptions, 0.3),
}
_OWN_OPTIONS = ("lr", "rows_lr", "rows", "weight_decay", "muon", "rules", "explain")
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
    r"""`torch.optim.Muon` for the hidden matrices of a model, and this package's optimizers for all else, as one.

    Muon orthogonalises a matrix's momentum, which suits hidden layers; embeddings, output heads and vectors need
    another optimizer, and with AdamW they have two numbers of state for each of theirs. Here

    - hidden matrices, of two dimensions, have `torch.optim.Muon`: one number an entry;
    - tables and heads have one scale a row, since their rows are tokens, items or classes: for m×n, ``"momentum"``
      keeps m·n + m numbers and ``"adagrad"`` m;
    - batches of hidden matrices, such as experts (E, m, n), which torch's Muon does not take, have one scale for each
      row of each matrix: m·n + m or m numbers a matrix;
    - vectors have one scale an entry, as in Adam or AdaGrad, and so have convolutions, unless ``rules="lean"`` gives
      these one scale for each channel.

    What is what says `geometry_groups`.

    Args:
        model: the model, also compiled or inside a data-parallel wrapper.
        lr: Muon's learning rate. The defaults of both rates did well on a small model (docs/muon.md): tune them.
        rows_lr: the learning rate of all else, with the size of Adam's or AdaGrad's: squares are averaged over a row
            (``reduction="mean"``). By default 0.03 for ``"momentum"`` and 0.3 for ``"adagrad"``.
        rows: ``"momentum"`` is `MatrixMomentum`, ``"adagrad"`` is `MatrixAdaGrad`.
        weight_decay: decoupled, ``x ← (1 - lr * weight_decay) x`` with the learning rate of the half that x is in, for
            all but vectors (biases, gains of norms, single rows and columns).
        muon: options of `torch.optim.Muon`, such as ``{"momentum": 0.9, "adjust_lr_fn": "match_rms_adamw"}``; a
            ``"weight_decay"`` among them is that of the hidden matrices alone.
        rules: as in `geometry_groups`. A hidden matrix to which a rule of your own gives a geometry is not Muon's.
        explain: print a table of every parameter, its optimizer, its geometry, its number of scales, and the reason;
            and what is kept for all that is trained, next to what AdamW keeps.
        options: more options of `MatrixMomentum` or `MatrixAdaGrad`, such as ``betas=(0.9, 0.95)``.

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
    cls, known, usual_lr = _ROWS[rows]
    refuse_unknown_keywords("muon_with_rows", options, {**dict.fromkeys(_OWN_OPTIONS), **known.__annotations__})
    check_values({"lr": lr, "rows_lr": usual_lr if rows_lr is None else rows_lr, "weight_decay": weight_decay})
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
    refuse_unknown_keywords("muon", muon, dict.fromkeys(_MUON_OPTIONS))
    check_values(muon, MUON_OPTIONS, "muon's ")
    return muon


def _as_it_goes_with_muon(choice: Choice) -> Choice:
    """Batches of hidden matrices by row: next to Muon's one number an entry, two of Adam's would be odd."""
    is_batch = choice.kind == MATRIX and isinstance(choice.by_row, Batched)
    return choice._replace(geometry=choice.by_row) if is_batch and not choice.ruled else choice


def _check_shards(choice: Choice) -> None:
    """Torch's Muon steps matrices in shards, each as a whole, unless there are more shards than rows to share out."""
    param: Any = choice.param
    for d, size in enumerate(param.shape if is_sharded(param) else ()):
        over = [param.device_mesh.size(i) for i, at in enumerate(param.placements) if shards().sharded_dim(at) == d]
        if math.prod(over) > size:
            raise ValueError(
                f"{choice.name}, of shape {tuple(param.shape)}, has {math.prod(over)} shards along dimension {d}, more "
                f"than torch's Muon can step: take it from Muon, as with rules={{{choice.name!r}: 'entry'}}"
            )


def _is_hidden_matrix(choice: Choice) -> bool:
    return choice.kind == MATRIX and choice.param.dim() == 2 and not choice.ruled
