"""Muon for the hidden matrices, and one scale a row for the other half of the model."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor, nn
from torch.optim import Muon, Optimizer

from matrix_adagrad.optim.adagrad import MatrixAdaGrad
from matrix_adagrad.optim.groups import MATRIX, VECTOR, Choice, Rules, choose, explained, grouped
from matrix_adagrad.optim.momentum import MatrixMomentum
from matrix_adagrad.optim.options import AdaGradOptions, MomentumOptions, refuse_unknown_keywords
from matrix_adagrad.optim.state import is_sharded, shards
from matrix_adagrad.optim.together import Together

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
) -> Together:
    r"""`torch.optim.Muon` for the hidden matrices of a model, and this package's optimizers for all else, as one.

    Muon orthogonalises a matrix's momentum, which suits hidden layers; embeddings, output heads and vectors need
    another optimizer, and with AdamW they have two numbers of state for each of theirs. Here

    - hidden matrices, of two dimensions, have `torch.optim.Muon`: one number an entry;
    - tables and heads have one scale a row, since their rows are tokens, items or classes: for m×n, ``"momentum"``
      keeps m·n + m numbers and ``"adagrad"`` m;
    - vectors have one scale an entry, and so have hidden tensors of three and more dimensions, such as convolutions,
      which torch's Muon does not take: as in Adam or AdaGrad. ``rules="lean"`` gives those one scale a row.

    What is what says `geometry_groups`.

    Args:
        model: the model, also compiled or inside a data-parallel wrapper.
        lr: Muon's learning rate. The defaults of both rates did well on a small model (docs/muon.md): tune them.
        rows_lr: the learning rate of all else, with the size of Adam's or AdaGrad's: squares are averaged over a row
            (``reduction="mean"``). By default 0.03 for ``"momentum"`` and 0.3 for ``"adagrad"``.
        rows: ``"momentum"`` is `MatrixMomentum`, ``"adagrad"`` is `MatrixAdaGrad`.
        weight_decay: decoupled, ``x ← (1 - lr * weight_decay) x`` with the learning rate of the half that x is in, for
            all that has two or more dimensions; vectors (biases, gains of norms, single rows) do not decay.
        muon: options of `torch.optim.Muon`, such as ``{"momentum": 0.9, "adjust_lr_fn": "match_rms_adamw"}``; a
            ``"weight_decay"`` among them is that of the hidden matrices alone.
        rules: as in `geometry_groups`. A hidden matrix to which a rule of your own gives a geometry is not Muon's.
        explain: print a table of every parameter, its optimizer, its geometry, its number of scales, and the reason.
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
        3,016 scales for 33,272 parameters (9.1 %)
        >>> [type(part).__name__ for part in optimizer.optimizers]
        ['Muon', 'MatrixMomentum']
    """
    if rows not in _ROWS:
        raise ValueError(f"rows must be {' or '.join(map(repr, _ROWS))}, got {rows!r}")
    cls, known, usual_lr = _ROWS[rows]
    refuse_unknown_keywords("muon_with_rows", options, {**dict.fromkeys(_OWN_OPTIONS), **known.__annotations__})
    if "lr" in (muon or {}):
        raise TypeError("muon has no 'lr': Muon's learning rate is the lr of muon_with_rows")
    refuse_unknown_keywords("muon", muon or {}, dict.fromkeys(_MUON_OPTIONS))
    choices, idle = choose(model, rules)
    if not choices:
        raise ValueError("model has no parameters")
    hidden = [choice for choice in choices if _is_hidden_matrix(choice)]
    rest = [choice for choice in choices if not _is_hidden_matrix(choice)]
    if explain:
        names = {choice.name: (Muon if _is_hidden_matrix(choice) else cls).__name__ for choice in choices}
        print(explained(choices, idle, names))  # noqa: T201
    if muon and not hidden:
        raise ValueError(f"muon={dict(muon)!r} is for hidden matrices, and with these rules none is left to Muon")
    parts: list[Optimizer] = []
    for choice in hidden:
        _check_shards(choice)
    if hidden:
        group = {"name": MATRIX, "params": [(choice.name, choice.param) for choice in hidden]}
        parts.append(Muon([group], lr=lr, **{"weight_decay": weight_decay, **(muon or {})}))  # type: ignore[arg-type]
    if rest:
        groups = [{**group, "weight_decay": weight_decay * (group["name"] != VECTOR)} for group in grouped(rest)]
        own: Any = {"reduction": "mean", "decoupled_weight_decay": True, **options}
        parts.append(cls(groups, lr=usual_lr if rows_lr is None else rows_lr, **own))
    return Together(parts)


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
