"""The candidates of a race: this package's optimizers in several geometries, and any other optimizer."""

from __future__ import annotations

import glob
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from matrix_adagrad.advisor.errors import AdvisorTypeError, AdvisorValueError
from matrix_adagrad.geometry import Entry, Geometry, Whole, as_geometry
from matrix_adagrad.optim import MatrixAdaGrad, MatrixMomentum, SteepestDescent, geometry_groups, matrix_optimizer
from matrix_adagrad.optim.choices import unwrapped
from matrix_adagrad.optim.kinds import HEAD, TABLE

__all__ = [
    "FAMILIES",
    "RACED",
    "UNIFORM",
    "Candidate",
    "as_family",
    "candidates_by_agreement",
    "candidates_by_kind",
    "distinct",
    "geometries_by_layer",
    "geometries_by_recipe",
    "lrs_around",
    "make_candidate",
    "trainable_parameters",
    "uniform_geometries",
]

RATES = 12  # learning rates that each candidate tries
UNIFORM = ("entry", "row", "column", "whole")


def lrs_around(centre: float, count: int = RATES, step: float = 10 ** (1 / 3)) -> tuple[float, ...]:
    """A geometric grid of learning rates with ``centre`` in its middle, each ``step`` times the one before.

    >>> [f"{lr:.3g}" for lr in lrs_around(0.1, 4)]
    ['0.0215', '0.0464', '0.1', '0.215']
    """
    return tuple(centre * step ** (i - count // 2) for i in range(count))


@dataclass(frozen=True)
class Family:
    """An update rule with its options, its grid of learning rates, and the geometries it is raced in."""

    optimizer: Callable[..., Optimizer]
    lrs: tuple[float, ...]
    options: Mapping[str, Any]
    uniform: tuple[str, ...] = UNIFORM

    def groups(self, model: nn.Module, geometries: Mapping[str, Geometry]) -> list[dict[str, Any]]:
        """One parameter group per geometry. Another optimizer refuses them if it lacks an option."""
        groups: dict[Geometry, dict[str, Any]] = {}
        for name, param in trainable_parameters(model).items():
            geometry = geometries[name]
            group = groups.setdefault(geometry, {"name": str(geometry), "geometry": geometry, "params": []})
            group["params"].append((name, param))
        return [{**group, **self.options} for group in groups.values()]

    def make(self, model: nn.Module, geometries: Mapping[str, Geometry], **options: Any) -> Optimizer:
        """The optimizer of a model."""
        return self.optimizer(self.groups(model, geometries), **options)


class Recipe(Family):
    """A function that chooses several optimizers for a model."""

    def groups(self, model: nn.Module, geometries: Mapping[str, Geometry]) -> list[dict[str, Any]]:  # noqa: ARG002
        name = getattr(self.optimizer, "__name__", "")
        raise AdvisorValueError(f"{name} makes several optimizers, with groups of their own: use plan.optimizer(model)")

    def make(self, model: nn.Module, geometries: Mapping[str, Geometry], **options: Any) -> Optimizer:
        rules = {glob.escape(name): geometry for name, geometry in geometries.items()}
        return self.optimizer(model, rules=rules, **options)


# With the mean of squares, steps are as large as AdaGrad's and Adam's in every geometry: one grid is fair to all.
_MEAN = {"reduction": "mean"}
FAMILIES = {
    "adagrad": Family(MatrixAdaGrad, lrs_around(0.1), _MEAN),
    "momentum": Family(MatrixMomentum, lrs_around(0.01), {**_MEAN, "betas": (0.9, 0.999)}),
    "no-momentum": Family(
        MatrixMomentum, lrs_around(0.01), {**_MEAN, "betas": (0.0, 0.999)}, ("entry", "row", "column", "factored")
    ),
    "steepest": Family(SteepestDescent, lrs_around(0.01), {"momentum": 0.9}, ("row", "spectral")),
    "matrix_optimizer": Recipe(matrix_optimizer, lrs_around(0.01), {}, ()),
}
RACED = tuple(FAMILIES)  # unless others are asked for


@dataclass(frozen=True)
class Candidate:
    """An optimizer with a grid of learning rates to tune it over.

    Args:
        name: its name in tables and on the page.
        make: takes a model and a learning rate, and returns the optimizer.
        lrs: the learning rates to choose from, in ascending order. To be fair, give all candidates equally many.
        family: the update rule, as in `Plan`, for candidates that can become one.
        geometries: the geometries by parameter name, for the same candidates.

    Example:
        The optimizer you use now, to see whether a change pays:

        >>> import torch
        >>> from matrix_adagrad.advisor import Candidate, lrs_around
        >>> baseline = Candidate("AdamW", lambda model, lr: torch.optim.AdamW(model.parameters(), lr), lrs_around(3e-4))
    """

    name: str
    make: Callable[[nn.Module, float], Optimizer]
    lrs: tuple[float, ...]
    family: str = ""
    geometries: Mapping[str, Geometry] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.lrs, tuple | list):
            raise AdvisorTypeError(
                f"{self.name}: lrs must be several learning rates, got {self.lrs!r}: write lrs_around({self.lrs!r})"
            )
        if len(self.lrs) < 2 or list(self.lrs) != sorted(set(self.lrs)) or not 0 < self.lrs[0] < math.inf:
            raise AdvisorValueError(
                f"{self.name}: lrs must be at least two learning rates, positive and ascending, got {self.lrs}"
            )

    def lr_near(self, lr: float, half_steps: int = 0) -> float:
        """The rate nearest to ``lr`` on a grid twice as fine, or some half steps away from it. It may lie outside."""
        half = math.log(self.lrs[-1] / self.lrs[0]) / (2 * (len(self.lrs) - 1))
        return self.lrs[0] * math.exp(half * (round(math.log(lr / self.lrs[0]) / half) + half_steps))


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that require gradients, by name. A tied parameter has the first of its names."""
    found = {name: param for name, param in unwrapped(model).named_parameters() if param.requires_grad}
    lazy = [name for name, param in found.items() if is_lazy(param)]
    if lazy:
        raise AdvisorValueError(f"{lazy[0]} is lazy and has no shape yet: let make_model run the model once")
    return found


def uniform_geometries(model: nn.Module, geometry: Geometry | str) -> dict[str, Geometry]:
    """The same geometry for every parameter, simplified: a row of a vector is an entry, a single row the whole."""
    geometry = as_geometry(geometry)
    return {name: _simplest(geometry, param.shape) for name, param in trainable_parameters(model).items()}


def _simplest(geometry: Geometry, shape: Sequence[int]) -> Geometry:
    own = geometry.on(shape)
    if not own.statistics:
        return geometry
    if max(own.entries(shape)) <= 1:
        return Entry()
    return Whole() if own.scales(shape) == 1 else geometry


def geometries_by_layer(model: nn.Module) -> dict[str, Geometry]:
    """The geometries that `geometry_groups` chooses by the kind of layer."""
    return {
        name: _simplest(group["geometry"], param.shape)
        for group in geometry_groups(model)
        for name, param in group["params"]
        if param.requires_grad
    }


def geometries_by_recipe(model: nn.Module) -> dict[str, Geometry]:
    """The geometries that `matrix_optimizer` chooses."""
    found = {param: group["geometry"] for group in matrix_optimizer(model).param_groups for param in group["params"]}
    return {name: _simplest(found[param], param.shape) for name, param in trainable_parameters(model).items()}


def candidates_by_kind(model: nn.Module, families: Iterable[str]) -> list[Candidate]:
    """Candidates with a geometry for each kind of layer: one for each family that has scales, two for a recipe.

    `matrix_optimizer` moves hidden matrices in the spectral norm, and factors tables and heads. The second candidate
    has one scale per row in place of the factors.
    """
    by_layer, by_recipe, families = geometries_by_layer(model), geometries_by_recipe(model), list(families)
    kinds = {name: group["name"] for group in geometry_groups(model) for name, _ in group["params"]}
    rows = {name: by_layer[name] if kinds[name] in (TABLE, HEAD) else by_recipe[name] for name in by_recipe}
    found = [make_candidate("by kind", family, by_layer) for family in families if _has_scales(family)]
    if "matrix_optimizer" in families:
        found += [make_candidate(name, "matrix_optimizer", each) for name, each in (("", by_recipe), ("row", rows))]
    return found


def candidates_by_agreement(geometries: Mapping[str, Geometry], families: Iterable[str]) -> list[Candidate]:
    """One candidate for each family that has scales, with the geometries that the probe's measurements suggest."""
    return [make_candidate("by probe", family, geometries) for family in families if _has_scales(family)]


def _has_scales(family: str) -> bool:
    return "entry" in FAMILIES[family].uniform


def make_candidate(name: str, family: str, geometries: Mapping[str, Geometry]) -> Candidate:
    """A candidate with an optimizer of this package, which can become a plan.

    Args:
        name: its name in tables and on the page, before that of its family.
        family: the update rule, as in `Plan`.
        geometries: the geometry of each parameter, by name.

    Example:
        >>> from matrix_adagrad import Factored
        >>> make_candidate("factored", "no-momentum", {"weight": Factored()}).name
        'factored no-momentum'
    """
    chosen = as_family(family)

    def make(model: nn.Module, lr: float) -> Optimizer:
        return chosen.make(model, geometries, lr=lr)

    return Candidate(f"{name} {family}" if name else family, make, chosen.lrs, family, geometries)


def as_family(name: str) -> Family:
    """The family of this name."""
    if name not in FAMILIES:
        raise AdvisorValueError(f"family must be one of {', '.join(map(repr, FAMILIES))}, got {name!r}")
    return FAMILIES[name]


def distinct(candidates: Iterable[Candidate]) -> list[Candidate]:
    """The candidates, without those that are equivalent to an earlier one."""
    kept: list[Candidate] = []
    for candidate in candidates:
        if candidate.geometries is None or not any(
            (other.family, other.geometries) == (candidate.family, candidate.geometries) for other in kept
        ):
            kept.append(candidate)
    return kept
