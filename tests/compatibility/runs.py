"""Runs that are saved by one edition of this package and continued by another. Each edition can import this module.

``first_edition.zip`` was written by commit a5a4d83, with torch 2.13, in this repository::

    git archive --prefix=build/first_edition/ a5a4d83 | tar x
    PYTHONPATH=build/first_edition/src:. python -m tests.compatibility.runs tests/compatibility/first_edition.zip

A run's file holds the parameters and the state dict after `BEFORE` steps, and the parameters after `AFTER` more. Steps
ran on torch's operators, without native kernels. Gradients are fractions that every dtype holds exactly.
"""

from __future__ import annotations

import copy
import os
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

import matrix_adagrad as ma
from matrix_adagrad.checkpoints import Checkpoints
from matrix_adagrad.domains import RowBalls

__all__ = ["AFTER", "BEFORE", "RUNS", "make_params", "network", "train", "train_network"]

BEFORE, AFTER = 3, 4
SHAPES = ((6, 4), (5,), (), (4, 2, 3, 3))
SLOW = {"foreach": False, "fused": False}
Make = Callable[[list[Parameter]], torch.optim.Optimizer]


def _whole(cls: Any, **options: Any) -> Make:
    return lambda params: cls(params, lr=0.125, **SLOW, **options)


def _in_groups(cls: Any, **options: Any) -> Make:
    """Named parameters in two groups, with a geometry and a rate for each."""

    def make(params: list[Parameter]) -> torch.optim.Optimizer:
        named = [(f"layer.{number}", param) for number, param in enumerate(params)]
        groups = [{"params": named[:2], "geometry": "column"}, {"params": named[2:], "lr": 0.25, "weight_decay": 0.125}]
        return cls(groups, lr=0.125, **SLOW, **options)  # type: ignore[no-any-return]

    return make


def _combined(params: list[Parameter]) -> torch.optim.Optimizer:
    combined = getattr(ma, "CombinedOptimizer", None) or ma.Together  # type: ignore[attr-defined]
    first = torch.optim.SGD(params[:1], lr=0.125, momentum=0.5, foreach=False)
    return combined([first, ma.RowMomentum(params[1:], lr=0.125, **SLOW)])  # type: ignore[no-any-return]


RUNS: dict[str, tuple[Make, torch.dtype, bool]] = {  # the optimizer, the parameters' dtype, and sparse gradients or not
    "row-adagrad": (_whole(ma.RowAdaGrad, initial_accumulator_value=0.5), torch.float32, False),
    "column-adagrad": (_whole(ma.ColumnAdaGrad, weight_decay=0.125), torch.float32, False),
    "entry-adagrad": (_whole(ma.MatrixAdaGrad, geometry="entry", maximize=True), torch.float64, False),
    "whole-adagrad": (_whole(ma.MatrixAdaGrad, geometry="whole", reduction="mean"), torch.float32, False),
    "blocks-adagrad": (_whole(ma.MatrixAdaGrad, geometry=ma.Blocks(rows=2)), torch.float32, False),
    "adagrad-in-groups": (_in_groups(ma.MatrixAdaGrad), torch.float32, False),
    "adagrad-in-balls": (_whole(ma.RowAdaGrad, domain=RowBalls(4.0)), torch.float32, False),
    "bfloat16-adagrad": (_whole(ma.RowAdaGrad), torch.bfloat16, False),
    "sparse-adagrad": (_whole(ma.RowAdaGrad), torch.float32, True),
    "row-momentum": (_whole(ma.RowMomentum, weight_decay=0.125, decoupled_weight_decay=True), torch.float32, False),
    "column-momentum": (_whole(ma.ColumnMomentum, bias_correction=False), torch.float32, False),
    "entry-momentum": (_whole(ma.MatrixMomentum, geometry="entry", betas=(0.5, 0.75)), torch.complex64, False),
    "momentum-in-groups": (_in_groups(ma.MatrixMomentum, reduction="mean"), torch.float64, False),
    "bfloat16-momentum": (_whole(ma.RowMomentum), torch.bfloat16, False),
    "sparse-momentum": (_whole(ma.RowMomentum), torch.float32, True),
    "combined": (_combined, torch.float32, False),
}


def _fractions(shape: tuple[int, ...], seed: int, dtype: torch.dtype) -> Tensor:
    """Eighths between -9/8 and 9/8."""
    numbers = torch.arange(seed, seed + max(1, torch.Size(shape).numel()))
    eighths = ((numbers * 7 + numbers // 5 * 3 + seed * seed) % 19 - 9).reshape(shape)
    return (eighths.double() / 8).to(dtype)


def make_params(dtype: torch.dtype, is_sparse: bool) -> list[Parameter]:
    """Parameters of several ranks; one table, if gradients are sparse."""
    shapes = SHAPES[:1] if is_sparse else SHAPES
    return [Parameter(_fractions(shape, number, dtype)) for number, shape in enumerate(shapes)]


def _gradient(param: Tensor, step: int, number: int, is_sparse: bool) -> Tensor:
    grad = _fractions(tuple(param.shape), 10 + 3 * step + number, param.dtype)
    if not is_sparse:
        return grad
    rows = torch.tensor([step % 6, (2 * step + 1) % 6, step % 6])
    return torch.sparse_coo_tensor(rows[None], grad[:3], param.shape, check_invariants=True)


def train(params: list[Parameter], optimizer: torch.optim.Optimizer, steps: range, is_sparse: bool) -> None:
    """Take these steps."""
    for step in steps:
        for number, param in enumerate(params):
            param.grad = _gradient(param, step, number, is_sparse)
        optimizer.step()


def network() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A model with a layer that has no gradients, and its optimizer."""
    model = torch.nn.ModuleDict({"used": torch.nn.Linear(3, 2), "unused": torch.nn.Linear(2, 2)})
    for number, param in enumerate(model.parameters()):
        param.data = _fractions(tuple(param.shape), number, param.dtype)
    groups = [{"params": model["used"].parameters()}, {"params": model["unused"].parameters(), "lr": 0.25}]
    return model, ma.RowMomentum(groups, lr=0.125, **SLOW)  # type: ignore[arg-type]


def train_network(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    """Take these steps."""
    for step in steps:
        for number, param in enumerate(model["used"].parameters()):  # type: ignore[index]
            param.grad = _gradient(param, step, number, False)
        optimizer.step()


def write(archive: Path) -> None:
    """Write the runs of the edition that this module has imported, compressed into one file."""
    with tempfile.TemporaryDirectory(dir=".") as temporary:
        folder = Path(os.path.relpath(temporary))  # checkpoints name their folder
        for name, (make, dtype, is_sparse) in RUNS.items():
            params = make_params(dtype, is_sparse)
            optimizer = make(params)
            train(params, optimizer, range(BEFORE), is_sparse)
            kept = {"params": [param.detach() for param in params], "optimizer": optimizer.state_dict()}
            kept = copy.deepcopy(kept)
            train(params, optimizer, range(BEFORE, BEFORE + AFTER), is_sparse)
            torch.save({**kept, "expected": [param.detach() for param in params]}, folder / f"{name}.pt")
        model, optimizer = network()
        train_network(model, optimizer, range(BEFORE))
        Checkpoints(folder / "checkpoint", model, optimizer).save(BEFORE)
        train_network(model, optimizer, range(BEFORE, BEFORE + AFTER))
        torch.save([param.detach() for param in model.parameters()], folder / "checkpoint.pt")
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as out:
            for path in sorted(folder.rglob("*")):
                out.write(path, path.relative_to(folder))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
