"""Parameter groups with a geometry for each kind of layer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from torch import nn
from torch.nn.parameter import is_lazy

from matrix_adagrad.geometry import Entry, Geometry, Row, Whole, as_geometry
from matrix_adagrad.text import columns

__all__ = ["choose", "explained", "geometry_groups", "grouped", "unwrapped"]

_Key = str | type[nn.Module]
_Value = Geometry | str
Rules = str | Mapping[Any, _Value]  # keys are _Key: Any, because a Mapping is invariant in them

# What a parameter is, and what the two built-in sets of rules make of it.
TABLE, HEAD, MATRIX, VECTOR = "table", "head", "matrix", "vector"
_RULE_SETS: dict[str, dict[str, Geometry]] = {
    "balanced": {TABLE: Row(), HEAD: Row(), MATRIX: Entry(), VECTOR: Entry()},
    "lean": {TABLE: Row(), HEAD: Row(), MATRIX: Row(), VECTOR: Entry()},
}
# Names under which models keep their output layer, besides the place at the end.
_HEAD_NAMES = ("classifier", "embed_out", "head", "lm_head", "logits", "score")


class _Owner(NamedTuple):
    """One place where a module holds a parameter; a tied parameter has several."""

    name: str
    modules: tuple[nn.Module, ...]  # from the model down to the module itself

    @property
    def module(self) -> nn.Module:
        return self.modules[-1]


class Choice(NamedTuple):
    name: str
    param: nn.Parameter
    kind: str
    geometry: Geometry
    reason: str
    ruled: bool  # by a rule of the user's own for this parameter, not by its kind


def geometry_groups(model: nn.Module, rules: Rules = "balanced", *, explain: bool = False) -> list[dict[str, Any]]:
    """Named parameter groups, each with the geometry that suits its kind of layer.

    Args:
        model: the model, also compiled or inside a data-parallel wrapper. A parameter that it holds in several places
            (tied weights) is taken once.
        rules: a set of rules by name, one geometry for all, or rules of your own.

            - ``"balanced"``: tables (`nn.Embedding`, `nn.EmbeddingBag`) and output heads by row, whose rows are tokens,
              items or classes; hidden matrices and vectors by entry.
            - ``"lean"``: every matrix by row, the least state; vectors by entry. In both, a matrix of a single row is
              taken as the vector that it is.
            - a mapping from a pattern of parameter names (``"*.qkv.weight"``) or a type of module (``nn.Conv2d``, with
              all that is inside) to a geometry, or to the name of a set of rules to leave the choice to it. The first
              that matches decides, and ``"balanced"`` decides on what none matches. A rule that matches nothing is an
              error.
        explain: print a table of every parameter, its shape, its geometry, its number of scales, and the reason.

    Returns:
        Groups to give to an optimizer, each ``{"name": kind, "geometry": ..., "params": [(name, parameter), ...]}``,
        where the kind is ``"table"``, ``"head"``, ``"matrix"`` or ``"vector"``.

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
        1,292 scales for 16,442 parameters (7.9 %)
    """
    choices, idle = choose(model, rules)
    if explain:
        print(explained(choices, idle))
    return grouped(choices)


def grouped(choices: Iterable[Choice]) -> list[dict[str, Any]]:
    """Groups of the parameters that are of one kind and have one geometry."""
    groups: dict[tuple[str, Geometry], dict[str, Any]] = {}
    for choice in choices:
        kind, geometry = choice.kind, choice.geometry
        group = groups.setdefault((kind, geometry), {"name": kind, "geometry": geometry, "params": []})
        group["params"].append((choice.name, choice.param))
    return list(groups.values())


def choose(model: nn.Module, rules: Rules) -> tuple[list[Choice], list[str]]:
    """A choice for every parameter, and the rules that decided on none."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a module, got {type(model).__name__}: give the model, not its parameters")
    model = unwrapped(model)
    head = _output_head(model)
    checked = _checked(rules)
    unmatched, idle = set(checked), set(checked)
    choices = []
    for param, places in _owners(model).items():
        name = places[0].name
        if is_lazy(param):
            raise ValueError(f"{name} has no shape yet: run the model once before you make its groups")
        kind, reason = _kind(param, places, head)
        if len(places) > 1:
            reason += f" (tied: {', '.join(place.name for place in places[1:])})"
        matching = [key for key in checked if any(_matches(key, place) for place in places)]
        unmatched -= set(matching)
        idle -= set(matching[:1])
        value = checked[matching[0]] if matching else "balanced"
        if isinstance(value, Geometry):
            geometry, reason = value, f"rule {_shown(matching[0])}"
            if param.dim() < 2 and geometry not in (Entry(), Whole()):
                reason += ", by entry: a vector has no rows"
        else:
            geometry = _RULE_SETS[value][kind]
        geometry.check_fits(name, param.shape)
        reason = reason if param.requires_grad else f"{reason} (frozen)"
        choices.append(Choice(name, param, kind, geometry, reason, ruled=isinstance(value, Geometry)))
    if unmatched and choices:
        names = [choice.name for choice in choices[:5]] + ["…"] * (len(choices) > 5)
        raise ValueError(
            f"rules match no parameter: {', '.join(map(_shown, unmatched))}; the model has {', '.join(names)} "
            "(patterns are those of a shell, not regular expressions)"
        )
    return choices, [_shown(key) for key in checked if key in idle]


def _shown(key: _Key) -> str:
    return repr(key) if isinstance(key, str) else key.__name__


def unwrapped(model: nn.Module) -> nn.Module:
    """The user's own model, under what `torch.compile` and data-parallel training put around it."""
    while True:
        if isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        elif isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        else:
            return model


def _owners(model: nn.Module) -> dict[nn.Parameter, list[_Owner]]:
    """Every parameter, in the order of the model, with all places that hold it."""
    owners: dict[nn.Parameter, list[_Owner]] = {}
    modules = dict(model.named_modules(remove_duplicate=False))
    for prefix, module in modules.items():
        parts = prefix.split(".") if prefix else []
        chain = tuple(modules[".".join(parts[:depth])] for depth in range(len(parts) + 1))
        for name, param in module.named_parameters(recurse=False):
            owners.setdefault(param, []).append(_Owner(f"{prefix}.{name}" if prefix else name, chain))
    return owners


def _checked(rules: Rules) -> dict[_Key, _Value]:
    if isinstance(rules, str):
        rules = {"*": rules}
    if not isinstance(rules, Mapping):
        raise TypeError(
            f"rules must be {' or '.join(map(repr, _RULE_SETS))}, or a mapping to geometries, got {rules!r}"
        )
    checked: dict[_Key, _Value] = {}
    for key, value in rules.items():
        if not (isinstance(key, str) or (isinstance(key, type) and issubclass(key, nn.Module))):
            raise TypeError(f"a rule is for a pattern of names or a type of module, got {key!r}")
        try:
            checked[key] = value if isinstance(value, str) and value in _RULE_SETS else as_geometry(value)
        except ValueError as error:
            raise ValueError(f"{error}; or a set of rules: {', '.join(map(repr, _RULE_SETS))}") from None
    return checked


def _matches(key: _Key, owner: _Owner) -> bool:
    if isinstance(key, str):
        return fnmatchcase(owner.name, key)
    return any(isinstance(module, key) for module in owner.modules)


def _kind(param: nn.Parameter, owners: list[_Owner], head: _Head) -> tuple[str, str]:
    if param.dim() < 2:
        return VECTOR, "a vector: it has no rows"
    if any(isinstance(owner.module, nn.Embedding | nn.EmbeddingBag) for owner in owners):
        return TABLE, "a table: each row is an item"
    if param.shape[0] == 1:
        return VECTOR, "a single row"
    if any(owner.module is head.module for owner in owners):
        return HEAD, head.reason
    if any(_has_head_name(owner) for owner in owners):
        return HEAD, "an output head, by its name"
    return MATRIX, "a hidden matrix" if param.dim() == 2 else f"a hidden {param.dim()}-D tensor"


def _has_head_name(owner: _Owner) -> bool:
    return isinstance(owner.module, nn.Linear) and owner.name.split(".")[-2:-1] in ([name] for name in _HEAD_NAMES)


class _Head(NamedTuple):
    module: nn.Module | None
    reason: str


def _output_head(model: nn.Module) -> _Head:
    """The model's output layer: the one that it names itself, or a linear layer that ends a model of the user's own."""
    get_output_embeddings: Any = getattr(model, "get_output_embeddings", lambda: None)  # Transformers' models have it
    named = get_output_embeddings()
    if isinstance(named, nn.Module):
        return _Head(named, "the model's output layer")
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    containers = nn.Linear | nn.Sequential | nn.ModuleList | nn.ModuleDict
    a_block_of_torch = type(model).__module__.startswith("torch.nn.") and not isinstance(model, containers)
    if linear and not a_block_of_torch and linear[-1] in (model, *model.children()):
        return _Head(linear[-1], "the last linear layer, taken for the output head")
    return _Head(None, "")


def explained(choices: list[Choice], idle: list[str], optimizers: Mapping[str, str] | None = None) -> str:
    """A table of the choices, with the optimizer of each parameter if there are several; Muon has no scales."""
    header = ("parameter", "shape", *(["optimizer"] if optimizers else []), "geometry", "scales", "reason")
    rows, total = [], 0
    for choice in choices:
        optimizer = [optimizers[choice.name]] if optimizers else []
        geometry = repr(choice.geometry) if fields(choice.geometry) else str(choice.geometry)  # as one would write it
        scales = choice.geometry.scales(choice.param.shape)
        if optimizer == ["Muon"]:
            geometry, scales = "–", 0
        total += scales if choice.param.requires_grad else 0
        shape = " × ".join(map(str, choice.param.shape)) or "scalar"
        rows.append((choice.name, shape, *optimizer, geometry, str(scales), choice.reason))
    number = header.index("scales")
    lines = [columns(header, rows, left=[i for i in range(len(header)) if i != number])]
    entries = sum(choice.param.numel() for choice in choices if choice.param.requires_grad)
    percent = 100 * total / max(1, entries)
    lines.append(f"{total:,} scales for {entries:,} parameters ({percent:.1f} %)")
    lines += [f"rule {rule} decides nothing: others come before it" for rule in idle]
    return "\n".join(lines)
