"""Parameter groups with a geometry for each kind of layer."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from torch import nn

from matrix_adagrad.geometry import Entry, Geometry, Row, as_geometry

__all__ = ["geometry_groups"]

Rules = str | Mapping[str | type[nn.Module], Geometry | str]

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
    module: nn.Module


class _Choice(NamedTuple):
    name: str
    param: nn.Parameter
    kind: str
    geometry: Geometry
    reason: str


def geometry_groups(model: nn.Module, rules: Rules = "balanced", *, explain: bool = False) -> list[dict[str, Any]]:
    """Named parameter groups, each with the geometry that suits its kind of layer.

    Args:
        model: the model. A parameter that it holds in several places (tied weights) is taken once.
        rules: a set of rules by name, or rules of your own.

            - ``"balanced"``: tables (`nn.Embedding`, `nn.EmbeddingBag`) and output heads by row, whose rows are tokens,
              items or classes; hidden matrices and vectors by entry.
            - ``"lean"``: every matrix by row, the least state; vectors by entry.
            - a mapping from a pattern of parameter names (``"*.qkv.weight"``) or a type of module (``nn.Conv2d``) to a
              geometry, or to the name of a set of rules to leave the choice to it. The first that matches decides, and
              ``"balanced"`` decides on what none matches. A rule that matches nothing is an error.
        explain: print a table of every parameter, its shape, its geometry, its number of scales, and the reason.

    Returns:
        Groups for an optimizer's ``params``: ``{"name": kind, "geometry": ..., "params": [(name, parameter), ...]}``,
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
        3.weight   10 × 16    row           10  an output head: each row is a class
        3.bias     10         entry         10  a vector: it has no rows
        state: 1,292 scales for 16,442 parameters (7.9 %)
    """
    choices = _choose(model, rules)
    if explain:
        print(_table(choices))
    groups: dict[tuple[str, Geometry], dict[str, Any]] = {}
    for name, param, kind, geometry, _ in choices:
        group = groups.setdefault((kind, geometry), {"name": kind, "geometry": geometry, "params": []})
        group["params"].append((name, param))
    return list(groups.values())


def _choose(model: nn.Module, rules: Rules) -> list[_Choice]:
    owners: dict[nn.Parameter, list[_Owner]] = {}
    for prefix, module in model.named_modules():
        for name, param in module.named_parameters(recurse=False):
            owners.setdefault(param, []).append(_Owner(f"{prefix}.{name}" if prefix else name, module))
    rules = _checked(rules)
    head = _output_head(model)
    unused = set(rules)
    choices = []
    for param, places in owners.items():
        kind, reason = _kind(param, places, head)
        if len(places) > 1:
            reason += f" (tied: {', '.join(place.name for place in places[1:])})"
        key = next((key for key in rules if any(_matches(key, place) for place in places)), None)
        unused.discard(key)
        value = "balanced" if key is None else rules[key]
        if isinstance(value, Geometry):
            geometry, reason = value, f"rule {getattr(key, '__name__', repr(key))}"
        else:
            geometry = _RULE_SETS[value][kind]
        choices.append(_Choice(places[0].name, param, kind, geometry, reason))
    if unused and owners:
        names = ", ".join(choice.name for choice in choices[:5])
        raise ValueError(f"rules match no parameter: {sorted(map(str, unused))}; the model has {names}, …")
    return choices


def _checked(rules: Rules) -> dict[str | type[nn.Module], Geometry | str]:
    if isinstance(rules, str):
        rules = {"*": rules}
    if not isinstance(rules, Mapping):
        raise TypeError(
            f"rules must be {' or '.join(map(repr, _RULE_SETS))}, or a mapping to geometries, got {rules!r}"
        )
    checked: dict[str | type[nn.Module], Geometry | str] = {}
    for key, value in rules.items():
        if not (isinstance(key, str) or (isinstance(key, type) and issubclass(key, nn.Module))):
            raise TypeError(f"a rule is for a pattern of names or a type of module, got {key!r}")
        try:
            checked[key] = value if isinstance(value, str) and value in _RULE_SETS else as_geometry(value)
        except ValueError as error:
            raise ValueError(f"{error}; or a set of rules: {', '.join(map(repr, _RULE_SETS))}") from None
    return checked


def _matches(key: str | type[nn.Module], owner: _Owner) -> bool:
    return fnmatchcase(owner.name, key) if isinstance(key, str) else isinstance(owner.module, key)


def _kind(param: nn.Parameter, owners: list[_Owner], head: nn.Module | None) -> tuple[str, str]:
    if any(isinstance(owner.module, nn.Embedding | nn.EmbeddingBag) for owner in owners):
        return TABLE, "a table: each row is an item"
    if param.dim() < 2:
        return VECTOR, "a vector: it has no rows"
    if param.shape[0] == 1:
        return VECTOR, "a single row"
    if any(owner.module is head or _has_head_name(owner) for owner in owners):
        return HEAD, "an output head: each row is a class"
    return MATRIX, "a hidden matrix" if param.dim() == 2 else f"a hidden {param.dim()}-D tensor"


def _has_head_name(owner: _Owner) -> bool:
    module_name = owner.name.split(".")[-2:-1]
    return isinstance(owner.module, nn.Linear) and module_name != [] and module_name[0] in _HEAD_NAMES


def _output_head(model: nn.Module) -> nn.Module | None:
    """The model's last layer, if it is plain to see: the one that it names itself, or its last linear child."""
    get_output_embeddings: Any = getattr(model, "get_output_embeddings", lambda: None)  # Transformers' models have it
    named = get_output_embeddings()
    if isinstance(named, nn.Module):
        return named
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    return linear[-1] if linear and linear[-1] in (model, *model.children()) else None


def _table(choices: list[_Choice]) -> str:
    header = ("parameter", "shape", "geometry", "scales", "reason")
    rows = [
        (
            choice.name,
            " × ".join(map(str, choice.param.shape)) or "scalar",
            str(choice.geometry),
            str(choice.geometry.scales(choice.param.shape)),
            choice.reason,
        )
        for choice in choices
    ]
    name, shape, geometry, scales, _ = (max(map(len, column)) for column in zip(header, *rows, strict=True))
    lines = [
        f"{row[0]:<{name}}  {row[1]:<{shape}}  {row[2]:<{geometry}}  {row[3]:>{scales}}  {row[4]}"
        for row in (header, *rows)
    ]
    total = sum(choice.geometry.scales(choice.param.shape) for choice in choices)
    entries = sum(choice.param.numel() for choice in choices)
    lines.append(
        f"state: {total:,} scales for {entries:,} parameters ({total / max(1, entries):.1%})".replace("%", " %")
    )
    return "\n".join(lines)
