"""The candidates: each trains a whole model, at one rate for its hidden matrices and another for everything else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Adafactor, AdamW, Optimizer

from matrix_adagrad import (
    CombinedOptimizer,
    Factored,
    MatrixMomentum,
    Row,
    Spectral,
    SteepestDescent,
    geometry_groups,
    matrix_optimizer,
)

__all__ = ["ADAMW", "CANDIDATES", "MUON_ADAMW", "RECIPE", "Candidate", "Rates", "default_rates"]

Groups = list[dict[str, Any]]
BETAS = (0.9, 0.999)
WITHOUT_AVERAGE = (0.0, 0.999)
ADAMW, MUON_ADAMW, RECIPE = "AdamW", "Muon + AdamW", "matrix_optimizer"


class Rates(NamedTuple):
    """Learning rates."""

    hidden: float
    rest: float


class Candidate(NamedTuple):
    """An optimizer for a model at given rates, and the rates that tuning begins with."""

    make: Callable[[nn.Module, Rates], Optimizer]
    start: Rates


def parts(model: nn.Module) -> tuple[Groups, Groups, Groups]:
    """The groups of the hidden matrices, of tables and heads, and of vectors."""
    groups = geometry_groups(model)
    hidden, tables, vectors = (
        [group for group in groups if group["name"] in kinds] for kinds in (("matrix",), ("table", "head"), ("vector",))
    )
    return hidden, tables, vectors


def alone(make: Callable[[Groups], Optimizer]) -> Callable[[nn.Module, Rates], Optimizer]:
    """One optimizer for all groups, each with its rate."""

    def whole(model: nn.Module, rates: Rates) -> Optimizer:
        hidden, tables, vectors = parts(model)
        return make(
            [{**group, "lr": rates.hidden} for group in hidden]
            + [{**group, "lr": rates.rest} for group in tables + vectors]
        )

    return whole


def steepest(groups: Groups, lr: float, **options: Any) -> Optimizer:
    """Steepest descent on the hidden matrices, with Muon's momentum. In the spectral norm it is Muon."""
    own = {"geometry": Spectral(), **options}
    return SteepestDescent([{**group, **own} for group in groups], lr=lr, momentum=0.95, nesterov=True)


def combined(
    *kinds: str, options: dict[str, Any] | None = None, **steepest_options: Any
) -> Callable[[nn.Module, Rates], Optimizer]:
    """Steepest descent on hidden matrices, these kinds of tables without an average of gradients, Adam on the rest."""

    def whole(model: nn.Module, rates: Rates) -> Optimizer:
        hidden, tables, vectors = parts(model)
        without = [{**group, **(options or {})} for group in tables if group["name"] in kinds]
        rest = [group for group in tables if group["name"] not in kinds] + vectors
        optimizers = [
            steepest(hidden, rates.hidden, **steepest_options),
            AdamW(rest, lr=rates.rest, betas=BETAS, weight_decay=0.0),
        ]
        if without:
            optimizers.append(MatrixMomentum(without, lr=rates.rest, betas=WITHOUT_AVERAGE, reduction="mean"))
        return CombinedOptimizer(optimizers)

    return whole


def soap(groups: Groups) -> Optimizer:
    """SOAP of pytorch-optimizer: sides of more than 256 are not rotated, as is usual for tables and heads."""
    from pytorch_optimizer import SOAP

    plain = [{**group, "params": [param for _, param in group["params"]]} for group in groups]
    optimizer: Optimizer = SOAP(plain, weight_decay=0.0, max_precondition_dim=256)
    return optimizer


def recipe(model: nn.Module, rates: Rates) -> Optimizer:
    return matrix_optimizer(model, lr=rates.hidden, tables_lr=rates.rest, vectors_lr=rates.rest)


ADAM, MUON = Rates(0.00075, 0.012), Rates(0.004, 0.0125)
TABLES = ("table", "head")
FACTORED = {"geometry": Factored()}
CANDIDATES = {
    ADAMW: Candidate(alone(lambda groups: AdamW(groups, betas=BETAS, weight_decay=0.0)), ADAM),
    MUON_ADAMW: Candidate(combined(), Rates(0.002, 0.0125)),
    "Muon + AdamW, head without momentum": Candidate(combined("head", options={"geometry": "entry"}), MUON),
    RECIPE: Candidate(recipe, MUON),
    "Muon + rows without momentum": Candidate(combined(*TABLES, options={"geometry": Row()}), Rates(0.004, 0.00625)),
    "Muon + entries without momentum": Candidate(combined(*TABLES, options={"geometry": "entry"}), MUON),
    "Adam-mini, by row": Candidate(
        alone(lambda groups: MatrixMomentum([{**g, "geometry": Row()} for g in groups], reduction="mean", betas=BETAS)),
        ADAM,
    ),
    "Adafactor": Candidate(alone(lambda groups: Adafactor(groups, weight_decay=0.0)), Rates(0.02, 0.2)),
    "NorMuon + factored": Candidate(combined(*TABLES, options=FACTORED, rescale=Row()), MUON),
    "RMNP + factored": Candidate(combined(*TABLES, options=FACTORED, geometry=Row()), MUON),
    "SOAP": Candidate(alone(soap), ADAM),
}


def default_rates() -> Rates:
    """The rates of `matrix_optimizer` for a given model if the user names none."""
    hidden, tables, *_ = matrix_optimizer(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))).param_groups
    return Rates(*(round(torch.tensor(group["lr"]).item(), 6) for group in (hidden, tables)))
