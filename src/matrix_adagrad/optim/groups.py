"""Parameter groups, with a geometry for each kind of layer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from torch import nn
from torch.nn.parameter import is_lazy

from matrix_adagrad.geometry import Entry, Geometry, Unscaled, Whole, as_geometry, wide_dtype
from matrix_adagrad.optim.kinds import HEAD, MATRIX, TABLE, VECTOR, Place, kind_of, output_heads, places_of
from matrix_adagrad.optim.step.config import check_values
from matrix_adagrad.text import columns, show, size
from matrix_adagrad.torch_private import compiled_module

__all__ = ["WITHOUT_AVERAGE", "choose", "explained", "geometry_groups", "grouped", "unwrapped"]

_Key = str | type[nn.Module]
_Value = Geometry | str
Rules = _Value | Mapping[Any, _Value]  # keys are _Key: Any, because a Mapping is invariant in them

# The kinds that the two built-in rule sets scale by row. All others are scaled by entry.
_RULE_SETS = {"balanced": (TABLE, HEAD), "lean": (TABLE, HEAD, MATRIX)}

# How many numbers optimizers keep per entry of a parameter, besides scales.
WITHOUT_AVERAGE = "MatrixMomentum (β₁=0)"
_PER_ENTRY = {"Muon": 1, "SteepestDescent": 1, WITHOUT_AVERAGE: 0, "MatrixMomentum": 1, "MatrixAdaGrad": 0, "AdamW": 2}
_OF_TORCH = ("Muon", "AdamW")  # they have no scales, and their state has the parameter's dtype


class Choice(NamedTuple):
    name: str
    param: nn.Parameter
    kind: str
    geometry: Geometry
    by_row: Geometry  # the geometry that gives it one scale per row
    reason: str
    ruled: bool  # a user rule chose this parameter's geometry, not its kind


def geometry_groups(
    model: nn.Module, rules: Rules = "balanced", *, weight_decay: float | None = None, explain: bool = False
) -> list[dict[str, Any]]:
    """Split a model into named parameter groups, each with the geometry that suits its kind of layer.

    Args:
        model: the model. It may be compiled or inside a data-parallel wrapper. A parameter held in several places (tied
            weights) is listed once.
        rules: the name of a rule set, one geometry for all parameters, or your own rules.

            - ``"balanced"``: tables (`nn.Embedding`, `nn.EmbeddingBag`) and output heads by row, since their rows are
              tokens, items or classes. Hidden matrices and vectors by entry.
            - ``"lean"``: every matrix by row, for the least state. Vectors by entry.
            - A geometry, such as ``Row()``, or its name: use it for all parameters.
            - A mapping. Each key is a pattern for parameter names (``"*.qkv.weight"``) or a module type
              (``nn.Conv2d``, including everything inside it). Each value is a geometry, or the name of a rule set that
              decides instead. The first match wins. ``"balanced"`` handles whatever no key matches. A rule that matches
              nothing is an error.

            In both rule sets, a tensor with three or more dimensions is a batch of matrices, such as experts. There,
            "by row" means `Batched`: one scale per row of each matrix. A convolution has one row per channel. Single
            rows and columns count as vectors. So do stacked biases, ``(experts, h)`` next to ``(experts, h, d)``.
        weight_decay: weight decay for everything except vectors, which get 0. By default the groups set none, and the
            optimizer's value applies to all.
        explain: print a table of every parameter with its shape, geometry, number of scales, and the reason. Also print
            the state that optimizers keep for all trained parameters, not counting one step counter per parameter.

    Returns:
        Groups to pass to an optimizer, each ``{"name": kind, "geometry": ..., "params": [(name, parameter), ...]}``.
        The kind is ``"table"``, ``"head"``, ``"matrix"`` or ``"vector"``. Groups have ``"weight_decay"`` if you set it.

    Example:
        >>> from torch import nn
        >>> from matrix_adagrad import MatrixAdaGrad, geometry_groups
        >>> model = nn.Sequential(nn.Embedding(1000, 16), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 10))
        >>> optimizer = MatrixAdaGrad(geometry_groups(model, explain=True))
        parameter  shape      geometry  scales  reason
        0.weight   1000 × 16  row         1000  a table: each row is an item
        1.weight   16 × 16    entry        256  a hidden matrix
        1.bias     16         entry         16  a vector: it has no rows
        3.weight   10 × 16    row           10  the last linear layer, taken for the output head
        3.bias     10         entry         10  a vector: it has no rows
        1,292 scales for 16,442 parameters
        state, in numbers: MatrixAdaGrad 1,292 (5.17 kB) or MatrixMomentum 17,734 (70.9 kB); AdamW 32,884 (132 kB)
    """
    if weight_decay is not None:
        check_values({"weight_decay": weight_decay})
    choices, idle = choose(model, rules)
    if explain:
        show(explained(choices, idle))
    return grouped(choices, weight_decay)


def grouped(choices: Iterable[Choice], weight_decay: float | None = None) -> list[dict[str, Any]]:
    """Group the parameters that share a kind and a geometry. Vectors are not decayed."""
    groups: dict[tuple[str, Geometry], dict[str, Any]] = {}
    for choice in choices:
        kind, geometry = choice.kind, choice.geometry
        group = groups.setdefault((kind, geometry), {"name": kind, "geometry": geometry, "params": []})
        group["params"].append((choice.name, choice.param))
    if weight_decay is not None:
        for group in groups.values():
            group["weight_decay"] = 0.0 if group["name"] == VECTOR else weight_decay
    return list(groups.values())


def choose(model: nn.Module, rules: Rules) -> tuple[list[Choice], list[str]]:
    """Choose a geometry for every parameter. Also return the rules that decided nothing."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a module, got {type(model).__name__}: pass the model, not its parameters")
    model = unwrapped(model)
    heads = output_heads(model)
    checked = _checked(rules)
    unmatched, idle = set(checked), set(checked)
    choices = []
    for param, places in places_of(model).items():
        name = places[0].name
        if is_lazy(param):
            raise ValueError(f"{name} has no shape yet: run the model once before you build its groups")
        kind, reason, by_row = kind_of(param, places, heads)
        if len(places) > 1:
            reason += f" (tied: {', '.join(place.name for place in places[1:])})"
        matching = [key for key in checked if any(_matches(key, place) for place in places)]
        unmatched -= set(matching)
        idle -= set(matching[:1])
        value = checked[matching[0]] if matching else "balanced"
        if isinstance(value, Geometry):
            geometry, reason = value, f"rule {_shown(matching[0])}"
            if (
                param.dim() < 2
                and geometry not in (Entry(), Whole())
                and max(geometry.on(param.shape).entries(param.shape)) <= 1
            ):
                reason += ", by entry: a vector has no rows"
        else:
            geometry = by_row if kind in _RULE_SETS[value] else Entry()
        if not isinstance(geometry.on(param.shape), Unscaled):  # SteepestDescent takes those, and has its own check
            geometry.check_fits(name, param.shape)
        reason = reason if param.requires_grad else f"{reason} (frozen)"
        choices.append(Choice(name, param, kind, geometry, by_row, reason, ruled=isinstance(value, Geometry)))
    if unmatched and choices:
        names = [choice.name for choice in choices[:5]] + ["…"] * (len(choices) > 5)
        raise ValueError(
            f"rules match no parameter: {', '.join(map(_shown, unmatched))}; the model has {', '.join(names)} "
            "(patterns are shell-style wildcards, not regular expressions)"
        )
    return choices, [_shown(key) for key in checked if key in idle]


def _shown(key: _Key) -> str:
    return repr(key) if isinstance(key, str) else key.__name__


def unwrapped(model: nn.Module) -> nn.Module:
    """The user's model, without the wrappers of `torch.compile` and data-parallel training."""
    while True:
        if (inner := compiled_module(model)) is not None:
            model = inner
        elif isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        else:
            return model


def _checked(rules: Rules) -> dict[_Key, _Value]:
    if isinstance(rules, str | Geometry | type):
        rules = {"*": rules}  # as_geometry, below, rejects types with a helpful message
    if not isinstance(rules, Mapping):
        sets = ", ".join(map(repr, _RULE_SETS))
        raise TypeError(f"rules must be {sets}, a geometry such as Row(), or a mapping to geometries, got {rules!r}")
    checked: dict[_Key, _Value] = {}
    for key, value in rules.items():
        if not (isinstance(key, str) or (isinstance(key, type) and issubclass(key, nn.Module))):
            raise TypeError(f"a rule's key must be a name pattern or a module type, got {key!r}")
        try:
            checked[key] = value if isinstance(value, str) and value in _RULE_SETS else as_geometry(value)
        except ValueError as error:
            raise ValueError(f"{error}; or a set of rules: {', '.join(map(repr, _RULE_SETS))}") from None
    return checked


def _matches(key: _Key, place: Place) -> bool:
    if isinstance(key, str):
        return fnmatchcase(place.name, key)
    return any(isinstance(module, key) for module in place.modules)


def explained(choices: list[Choice], idle: list[str], optimizers: Mapping[str, str] | None = None) -> str:
    """A table of the choices and the size of their state, with each parameter's optimizer if there are several."""
    header = ("parameter", "shape", *(["optimizer"] if optimizers else []), "geometry", "scales", "reason")
    rows, total = [], 0
    for choice in choices:
        optimizer = [optimizers[choice.name]] if optimizers else []
        geometry = repr(choice.geometry) if fields(choice.geometry) else str(choice.geometry)  # as you would write it
        scales = choice.geometry.on(choice.param.shape).scales(choice.param.shape)
        if optimizer == ["Muon"]:
            geometry, scales = "–", 0
        total += scales if choice.param.requires_grad else 0
        shape = " × ".join(map(str, choice.param.shape)) or "scalar"
        rows.append((choice.name, shape, *optimizer, geometry, str(scales), choice.reason))
    number = header.index("scales")
    lines = [columns(header, rows, left=[i for i in range(len(header)) if i != number])]
    trained = [choice for choice in choices if choice.param.requires_grad]
    lines.append(f"{total:,} scales for {sum(choice.param.numel() for choice in trained):,} parameters")
    lines.append(f"state, in numbers: {_state_text(trained, optimizers)}")
    lines += [f"rule {rule} never applies: earlier rules match first" for rule in idle if choices]
    return "\n".join(lines)


def _state_text(choices: list[Choice], optimizers: Mapping[str, str] | None) -> str:
    """The state of the given optimizers, or of both that the groups could go to, next to AdamW's."""

    def kept_by(name: str) -> str:
        return f"{name} {_state((choice, name) for choice in choices)}"

    if optimizers is None:
        return f"{kept_by('MatrixAdaGrad')} or {kept_by('MatrixMomentum')}; {kept_by('AdamW')}"
    pairs = [(choice, optimizers[choice.name]) for choice in choices]
    names = [name for name in _PER_ENTRY if name in {name for _, name in pairs}]
    parts = [f"{name} {_state(pair for pair in pairs if pair[1] == name)}" for name in names]
    total = f" = {_state(pairs)}" if len(parts) > 1 else ""
    return f"{' + '.join(parts)}{total}; {kept_by('AdamW')}"


def _state(pairs: Iterable[tuple[Choice, str]]) -> str:
    """The state that optimizers keep for their parameters, not counting one step counter per parameter."""
    numbers = nbytes = 0
    for choice, optimizer in pairs:
        entries, dtype, wide = choice.param.numel(), choice.param.dtype, wide_dtype(choice.param.dtype)
        kept = [(entries * _PER_ENTRY[optimizer], dtype if optimizer in _OF_TORCH else wide)]
        if optimizer not in _OF_TORCH:
            kept.append((choice.geometry.on(choice.param.shape).scales(choice.param.shape), wide.to_real()))
        numbers += sum(count for count, _ in kept)
        nbytes += sum(count * kind.itemsize for count, kind in kept)
    return f"{numbers:,} ({size(nbytes)})"
