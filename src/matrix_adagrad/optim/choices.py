"""The choice of a geometry for each parameter of a model, by rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from torch import nn
from torch.nn.parameter import is_lazy

from matrix_adagrad.geometry import Entry, Geometry, Whole, as_geometry
from matrix_adagrad.optim.kinds import HEAD, MATRIX, TABLE, VECTOR, Place, kind_of, output_heads, places_of
from matrix_adagrad.text import folded
from matrix_adagrad.torch_private import compiled_module

__all__ = ["Choice", "Rules", "choose", "grouped", "unwrapped"]

_Key = str | type[nn.Module]
_Value = Geometry | str
Rules = _Value | Mapping[Any, _Value]  # keys are _Key: Any, because a Mapping is invariant in them

# The kinds that the two built-in rule sets scale by row. All others are scaled by entry.
_RULE_SETS = {"balanced": (TABLE, HEAD), "lean": (TABLE, HEAD, MATRIX)}


class Choice(NamedTuple):
    """What was chosen for a parameter, and why."""

    name: str
    param: nn.Parameter
    kind: str
    geometry: Geometry
    by_row: Geometry  # the geometry that gives it one scale per row
    reason: str
    ruled: bool  # a user rule chose this parameter's geometry, not its kind


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
            reason += f" (tied: {', '.join(folded([place.name for place in places[1:]]))})"
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
        if geometry.on(param.shape).statistics:  # SteepestDescent takes those, and has its own check
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
