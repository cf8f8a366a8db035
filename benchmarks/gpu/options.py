"""What users can ask of a step on a GPU, as axes whose values can be combined."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from matrix_adagrad import Column, Entry, Factored, MatrixAdaGrad, MatrixMomentum, Row, Spectral, SteepestDescent, Whole
from matrix_adagrad.geometry import Geometry

__all__ = ["AXES", "DTYPES", "FAMILIES", "GEOMETRIES", "Family", "covering", "is_possible", "make", "parameter"]

Family = tuple[Callable[..., Optimizer], dict[str, Any]]
FAMILIES: dict[str, Family] = {
    "AdaGrad": (MatrixAdaGrad, {}),
    "Momentum": (MatrixMomentum, {}),
    "Momentum, uncorrected": (MatrixMomentum, {"bias_correction": False}),
    "Momentum, Nesterov": (MatrixMomentum, {"nesterov": True}),
    "Momentum, β₁ = 0": (MatrixMomentum, {"betas": (0.0, 0.999)}),
    "Steepest": (SteepestDescent, {}),
    "Steepest, Nesterov": (SteepestDescent, {"nesterov": True}),
    "Steepest, no momentum": (SteepestDescent, {"momentum": 0.0}),
}
GEOMETRIES: dict[str, Geometry] = {
    "row": Row(),
    "column": Column(),
    "entry": Entry(),
    "whole": Whole(),
    "factored": Factored(),
    "factored, geometric": Factored("geometric"),
    "factored, minimum": Factored("minimum"),
    "spectral": Spectral(),
}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)

_WIDTHS = (3, 16, 64, 250, 1024, 4096, 16384, 20000)
_TILE = 4096
AXES: dict[str, Sequence[Any]] = {
    "shape": [(2 * max(1, _TILE // width), width) for width in _WIDTHS] + [(9000, 16)],
    "dtype": DTYPES,
    "grad_dtype": DTYPES,
    "family": list(FAMILIES),
    "geometry": list(GEOMETRIES),
    "gradient": ["dense", "sparse", "coalesced"],
    "layout": ["contiguous", "transposed", "with gaps"],
    "momentum_dtype": [None, torch.bfloat16],
    "weight_decay": [0.0, 0.1],
    "stochastic_rounding": [False, True],
    "lr": ["number", "tensor"],
    "capturable": [False, True],
}


def is_possible(chosen: Mapping[str, Any]) -> bool:
    """Whether an optimizer takes these values together, and the Triton backend is what steps them."""
    family, geometry = chosen.get("family", ""), chosen.get("geometry", "")
    is_steepest = family.startswith("Steepest")
    if family and geometry and not is_steepest and geometry == "spectral":
        return False
    if is_steepest and geometry.startswith("factored"):
        return False  # it has no norm
    if geometry == "spectral" and (chosen.get("capturable") or chosen.get("gradient", "dense") != "dense"):
        return False
    if chosen.get("momentum_dtype") and family == "AdaGrad":
        return False
    return not (chosen.get("gradient", "dense") != "dense" and chosen.get("layout") == "transposed")


def covering(axes: Mapping[str, Sequence[Any]] = AXES, seed: int = 0) -> list[dict[str, Any]]:
    """Few combinations in which every possible pair of values of two axes occurs.

    >>> len(covering({"a": [0, 1], "b": [0, 1], "c": [0, 1]})) < 8
    True
    """
    drawn = random.Random(seed)
    pairs = {
        ((a, i), (b, j))
        for a, b in itertools.combinations(axes, 2)
        for i, j in itertools.product(range(len(axes[a])), range(len(axes[b])))
        if is_possible({a: axes[a][i], b: axes[b][j]})
    }
    found = []
    while pairs:
        first = min(pairs, key=str)
        tried = [_drawn(axes, dict(first), drawn, pairs) for _ in range(8)]
        best = max((each for each in tried if each), key=lambda each: len(_pairs(each) & pairs), default=None)
        if best is None:  # the pair is possible, but not with any third value
            pairs.discard(first)
            continue
        pairs -= _pairs(best)
        found.append({axis: axes[axis][index] for axis, index in best.items()})
    return found


def _pairs(chosen: Mapping[str, int]) -> set[tuple[tuple[str, int], tuple[str, int]]]:
    return set(itertools.combinations(chosen.items(), 2))


def _drawn(
    axes: Mapping[str, Sequence[Any]],
    chosen: dict[str, int],
    drawn: random.Random,
    pairs: set[tuple[tuple[str, int], tuple[str, int]]],
) -> dict[str, int] | None:
    """The rest of the axes in random order, each at the value that is in the most pairs that are still missing."""
    order = {axis: number for number, axis in enumerate(axes)}
    for axis in drawn.sample([axis for axis in axes if axis not in chosen], len(axes) - len(chosen)):
        values = drawn.sample(range(len(axes[axis])), len(axes[axis]))
        values = [i for i in values if is_possible(_values(axes, chosen | {axis: i}))]
        if not values:
            return None

        joined = [
            [tuple(sorted(((axis, i), own), key=lambda pair: order[pair[0]])) for own in chosen.items()] for i in values
        ]
        missing = [sum(pair in pairs for pair in own) for own in joined]
        chosen = {**chosen, axis: values[missing.index(max(missing))]}
    return {axis: chosen[axis] for axis in axes}


def _values(axes: Mapping[str, Sequence[Any]], chosen: Mapping[str, int]) -> dict[str, Any]:
    return {axis: axes[axis][index] for axis, index in chosen.items()}


# ----------------------------------------------------------------------------------------------- tensors and optimizers


def parameter(chosen: Mapping[str, Any], device: str = "cpu", seed: int = 0) -> Parameter:
    """A parameter with a gradient."""
    rows, width = chosen["shape"]
    of_param = chosen.get("dtype", torch.float32)
    of_grad = chosen.get("grad_dtype", of_param)
    layout = chosen.get("layout", "contiguous")
    generator = torch.Generator().manual_seed(seed)

    def numbers(dtype: torch.dtype) -> Tensor:
        if layout == "transposed":
            return torch.randn(width, rows, generator=generator).to(device, dtype).t()
        if layout == "with gaps":
            return torch.randn(rows, width, 2, generator=generator).to(device, dtype)[..., 0]
        return torch.randn(rows, width, generator=generator).to(device, dtype)

    param = Parameter(numbers(of_param))
    if of_grad != of_param:
        param.grad_dtype = None
    if chosen.get("gradient", "dense") == "dense":
        param.grad = numbers(of_grad)
        return param
    index = torch.randint(rows, (1, 2 * rows if rows < 64 else rows), generator=generator)
    if chosen["gradient"] == "coalesced":
        index = index.unique()[None]
    values = torch.randn(index.shape[1], width, generator=generator).to(device, of_grad)
    is_coalesced = chosen["gradient"] == "coalesced"
    param.grad = torch.sparse_coo_tensor(
        index.to(device), values, (rows, width), is_coalesced=is_coalesced, check_invariants=False
    )
    return param


def make(chosen: Mapping[str, Any], params: list[Parameter], **more: Any) -> Optimizer:
    """The optimizer of these values; further options go before them."""
    cls, options = FAMILIES[chosen["family"]]
    lr = torch.tensor(1e-2, device=params[0].device) if chosen.get("lr") == "tensor" else 1e-2
    own = ["weight_decay", "stochastic_rounding", "capturable"]
    own += ["momentum_dtype"] if cls is not MatrixAdaGrad else []
    given = {name: chosen[name] for name in own if name in chosen}
    return cls(params, **{"lr": lr, "geometry": GEOMETRIES[chosen["geometry"]], **options, **given, **more})
