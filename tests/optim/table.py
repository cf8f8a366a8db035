"""The table of optimizers that drives the suite: one entry here, and every test runs for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import Parameter
from torch.testing._internal.common_optimizers import ErrorOptimizerInput, OptimizerInfo, OptimizerInput
from torch.testing._internal.common_optimizers import get_error_inputs_for_all_optims as errors_of_every_optimizer

from matrix_adagrad import (
    Batched,
    Blocks,
    ColumnAdaGrad,
    ColumnMomentum,
    MatrixAdaGrad,
    MatrixMomentum,
    RowAdaGrad,
    RowMomentum,
)
from matrix_adagrad.geometry import Column, Entry, Geometry, Row, Whole

GEOMETRIES: tuple[Geometry, ...] = (
    *(Row(), Column(), Entry(), Whole()),
    *(Blocks(rows=2), Blocks(columns=2), Batched(Row())),
)


# The backends, as a user asks for them.
BACKENDS: dict[str, dict[str, bool]] = {"reference": {"foreach": False}, "foreach": {"foreach": True}, "native": {}}


@dataclass(frozen=True)
class Entrant:
    """An optimizer class as users would make it, with the options that only its kind has."""

    cls: type[torch.optim.Optimizer]
    options: dict[str, Any]
    extra: tuple[dict[str, Any], ...]  # settings of its own options, each worth a test

    def __call__(self, params: Any, **options: Any) -> torch.optim.Optimizer:
        return self.cls(params, **{**self.options, **options})

    @property
    def statistic(self) -> str:
        return self.cls.STATISTIC

    @property
    def geometry(self) -> Geometry:
        return self.cls.GEOMETRY or self.options["geometry"]

    def __str__(self) -> str:
        return self.cls.__name__ + "".join(f"-{geometry}" for geometry in self.options.values())


_ADAGRAD = ({"initial_accumulator_value": 0.1}, {"eps": 1e-3})
_MOMENTUM = (
    *({"betas": (0.8, 0.9)}, {"bias_correction": False}, {"betas": (0.0, 0.5)}),
    *({"nesterov": True}, {"nesterov": True, "bias_correction": False, "weight_decay": 0.1}),
)

TABLE: tuple[Entrant, ...] = (
    Entrant(RowAdaGrad, {}, _ADAGRAD),
    Entrant(ColumnAdaGrad, {}, _ADAGRAD),
    *(Entrant(MatrixAdaGrad, {"geometry": geometry}, _ADAGRAD) for geometry in GEOMETRIES),
    Entrant(RowMomentum, {}, _MOMENTUM),
    Entrant(ColumnMomentum, {}, _MOMENTUM),
    *(Entrant(MatrixMomentum, {"geometry": geometry}, _MOMENTUM) for geometry in GEOMETRIES),
)
CLASSES: tuple[Entrant, ...] = tuple(entrant for entrant in TABLE if entrant.options.get("geometry", Row()) == Row())

# Settings of the options that all share.
SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"lr": torch.tensor(0.05)},
    {"reduction": "mean"},
    {"weight_decay": 0.1},
    {"weight_decay": 0.1, "decoupled_weight_decay": True},
    {"maximize": True},
    {"maximize": True, "weight_decay": 0.1},
    {"eps": 0.0},
    {"capturable": True},
)


def settings(entrant: Entrant) -> Iterator[dict[str, Any]]:
    yield from SETTINGS
    yield from entrant.extra


# ------------------------------------------------------------------------------------- the same, in PyTorch's own words


def _inputs(entrant: Entrant) -> Any:
    def optim_inputs(device: str, dtype: torch.dtype | None = None) -> list[OptimizerInput]:  # noqa: ARG001
        return [
            OptimizerInput(params=None, kwargs=dict(kwargs), desc=", ".join(map(str, kwargs)) or "default")
            for kwargs in settings(entrant)
        ]

    return optim_inputs


def _error_inputs(entrant: Entrant) -> Any:
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"lr": -0.1}, ValueError, "lr must be"),
        ({"eps": float("nan")}, ValueError, "eps must be"),
        ({"weight_decay": -1}, ValueError, "weight_decay must be"),
        ({"reduction": "max"}, ValueError, "reduction must be 'sum' or 'mean', got 'max'"),
        ({"fused": True, "foreach": True}, ValueError, "choose one"),
    ]
    if entrant.statistic == "exp_avg_sq":
        wrong.append(({"betas": (1.0, 0.9)}, ValueError, "betas must be"))

    def optim_error_inputs(device: str, dtype: torch.dtype) -> list[ErrorOptimizerInput]:
        own = [
            ErrorOptimizerInput(
                OptimizerInput(params=[Parameter(torch.ones(2, 2))], kwargs=kwargs, desc=str(kwargs)),
                error_type=error,
                error_regex=words,
            )
            for kwargs, error, words in wrong
        ]
        return [*errors_of_every_optimizer(device, dtype), *own]

    return optim_error_inputs


OPTIMIZER_INFOS: tuple[OptimizerInfo, ...] = tuple(
    OptimizerInfo(
        entrant.cls,
        optim_inputs_func=_inputs(entrant),
        optim_error_inputs_func=_error_inputs(entrant),
        supported_impls=("foreach", "fused", "differentiable"),
        supports_fused_on=("cpu",),
        has_capturable_arg=True,
        # torch takes a complex number as two reals with a scale each; here it is one entry, with one scale.
        supports_complex=False,
        # Momentum and weight decay are lazy with sparse gradients, where PyTorch's test asks for the dense step.
        supports_sparse=entrant.statistic == "sum",
        metadata_for_sparse=({"lr": 0.1, "weight_decay": 0, "decoupled_weight_decay": False}, []),
    )
    for entrant in CLASSES
)
