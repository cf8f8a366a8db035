"""Who takes part in a race: ways to scale a model's steps, and outside optimizers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from matrix_adagrad.advisor.errors import RefusedTypeError, RefusedValueError
from matrix_adagrad.geometry import Entry, Geometry, Whole, as_geometry
from matrix_adagrad.optim import MatrixAdaGrad, MatrixMomentum, geometry_groups
from matrix_adagrad.optim.base import MatrixOptimizer
from matrix_adagrad.optim.groups import unwrapped

__all__ = [
    "FAMILIES",
    "UNIFORM",
    "Candidate",
    "around",
    "by_kind",
    "distinct",
    "make_groups",
    "ours",
    "trained",
    "uniform",
]

RATES = 12  # learning rates that each candidate may try
UNIFORM = ("entry", "row", "column", "whole")


def around(centre: float, count: int = RATES, step: float = 10 ** (1 / 3)) -> tuple[float, ...]:
    """Learning rates around one, each so many times the one before; the centre is among them.

    >>> [f"{lr:.3g}" for lr in around(0.1, 4)]
    ['0.0215', '0.0464', '0.1', '0.215']
    """
    return tuple(centre * step ** (i - count // 2) for i in range(count))


@dataclass(frozen=True)
class Family:
    """An update rule, and the learning rates that are worth a try with it when squares are averaged."""

    optimizer: type[MatrixOptimizer]
    lrs: tuple[float, ...]


# By the mean of squares a step has AdaGrad's and Adam's size in every geometry: one range of rates is fair to all.
FAMILIES = {"adagrad": Family(MatrixAdaGrad, around(0.1)), "momentum": Family(MatrixMomentum, around(0.01))}


@dataclass(frozen=True)
class Candidate:
    """A way to train: from a model and a learning rate to an optimizer.

    Args:
        name: what the reports call it.
        make: makes the optimizer.
        lrs: the learning rates to choose from, in ascending order; the same number for everybody is fair.
        family: ``"adagrad"`` or ``"momentum"``, for those that a plan can be made of.
        geometries: by parameter name, for those too.

    Example:
        Your present optimizer, to see whether a change pays:

        >>> import torch
        >>> from matrix_adagrad.advisor import Candidate, around
        >>> present = Candidate("AdamW", lambda model, lr: torch.optim.AdamW(model.parameters(), lr), around(3e-4))
    """

    name: str
    make: Callable[[nn.Module, float], Optimizer]
    lrs: tuple[float, ...]
    family: str = ""
    geometries: Mapping[str, Geometry] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.lrs, tuple | list):
            raise RefusedTypeError(
                f"{self.name}: lrs must be several rates, got {self.lrs!r}: write around({self.lrs!r})"
            )
        if len(self.lrs) < 2 or list(self.lrs) != sorted(set(self.lrs)) or not 0 < self.lrs[0] < math.inf:
            raise RefusedValueError(
                f"{self.name}: lrs must be at least two rates, positive and ascending, got {self.lrs}"
            )

    def beside(self, lr: float) -> tuple[float, float]:
        """The rates half-way to the neighbours of one of them, or as far beyond if it is the first or the last."""
        i, half = self.lrs.index(lr), [math.sqrt(b / a) for a, b in itertools.pairwise(self.lrs)]
        return lr / half[max(0, i - 1)], lr * half[min(i, len(half) - 1)]


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are trained, by name; a tied one has its first."""
    found = {name: param for name, param in unwrapped(model).named_parameters() if param.requires_grad}
    lazy = [name for name, param in found.items() if is_lazy(param)]
    if lazy:
        raise RefusedValueError(f"{lazy[0]} has no shape yet: let make_model run the model once")
    return found


def uniform(model: nn.Module, geometry: Geometry | str) -> dict[str, Geometry]:
    """One geometry for everything, by its simplest name: in a vector a row is an entry, a single row is the whole."""
    one = as_geometry(geometry)
    return {name: _simplest(one, param.shape) for name, param in trained(model).items()}


def _simplest(geometry: Geometry, shape: Sequence[int]) -> Geometry:
    if geometry.members(shape) <= 1:
        return Entry()
    return Whole() if geometry.scales(shape) == 1 else geometry


def by_kind(model: nn.Module) -> dict[str, Geometry]:
    """The geometries that `geometry_groups` gives, by the kind of layer."""
    return {
        name: _simplest(group["geometry"], param.shape)
        for group in geometry_groups(model)
        for name, param in group["params"]
        if param.requires_grad
    }


def ours(name: str, family: str, geometries: Mapping[str, Geometry]) -> Candidate:
    """A candidate with an optimizer of this package."""
    if family not in FAMILIES:
        raise RefusedValueError(f"family must be one of {', '.join(map(repr, FAMILIES))}, got {family!r}")

    def make(model: nn.Module, lr: float) -> Optimizer:
        make_optimizer: Any = FAMILIES[family].optimizer
        optimizer: Optimizer = make_optimizer(make_groups(model, geometries), lr=lr)
        return optimizer

    return Candidate(f"{name} {family}" if name else family, make, FAMILIES[family].lrs, family, geometries)


def make_groups(model: nn.Module, geometries: Mapping[str, Geometry]) -> list[dict[str, Any]]:
    """Parameter groups, one for each geometry, with squares that are averaged."""
    groups: dict[Geometry, dict[str, Any]] = {}
    for name, param in trained(model).items():
        geometry = geometries[name]
        group = groups.setdefault(geometry, {"name": str(geometry), "geometry": geometry, "params": []})
        group["params"].append((name, param))
    return [{**group, "reduction": "mean"} for group in groups.values()]


def distinct(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Without those that do what one before them does."""
    kept: list[Candidate] = []
    for one in candidates:
        if one.geometries is None or not any(
            (other.family, other.geometries) == (one.family, one.geometries) for other in kept
        ):
            kept.append(one)
    return kept
