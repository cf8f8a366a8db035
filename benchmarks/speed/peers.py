"""The optimizers to compare; one that is not installed is listed as a gap."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import SGD, Adafactor, Adagrad, Adam, Optimizer

from matrix_adagrad import (
    ColumnAdaGrad,
    ColumnMomentum,
    Factored,
    MatrixAdaGrad,
    RowAdaGrad,
    RowMomentum,
    Spectral,
    SteepestDescent,
)
from matrix_adagrad.geometry import Geometry

__all__ = [
    "DENSE",
    "FACTORED",
    "MUON",
    "OURS",
    "SGD_FUSED",
    "SPARSE",
    "SPECTRAL",
    "Gap",
    "Peer",
    "bag_step",
    "named_gap",
]

SGD_FUSED = "torch SGD, fused"
FACTORED = "MatrixAdaGrad, factored"
MUON = "torch Muon, float32"
OURS = "our EmbeddingBag, "  # followed by the name of an optimizer


class Gap(Exception):  # noqa: N818
    """A peer cannot be measured on this machine, for the reason given."""


@dataclass(frozen=True)
class Peer:
    """How to create an optimizer, and the minimum number of passes of a step over arrays of the parameter's size.

    A pass is a read or a write of the parameter, the gradient, or a state array of the same size.
    """

    make: Callable[[list[Parameter]], Optimizer]
    passes: int


@contextlib.contextmanager
def named_gap(package: str) -> Iterator[None]:
    """Whatever fails in here is a gap in the measurements, with the package's name."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:
        raise Gap(f"{package}: {type(error).__name__}: {error}".splitlines()[0]) from error


def _torchrec(params: list[Parameter]) -> Optimizer:
    with named_gap("torchrec"):
        from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

        made: Optimizer = RowWiseAdagrad(params, lr=1e-3)
        return made


def _sm3(params: list[Parameter]) -> Optimizer:
    with named_gap("pytorch-optimizer"):
        from pytorch_optimizer import SM3

        made: Optimizer = SM3(params, lr=1e-3)
        return made


def _adam_mini(params: list[Parameter]) -> Optimizer:
    with named_gap("pytorch-optimizer"):
        from pytorch_optimizer import AdamMini

        model = nn.Module()
        for i, param in enumerate(params):
            model.register_parameter(f"weight{i}", param)
        made: Optimizer = AdamMini(model, lr=1e-3)
        return made


class _Muon(torch.optim.Muon):
    """Torch's Muon with its products in float32, in which ours are on a CPU, instead of bfloat16."""

    def step(self, closure: Any = None) -> Any:
        with mock.patch.object(Tensor, "bfloat16", Tensor.clone):
            return super().step(closure)  # type: ignore[no-untyped-call]


def _steepest(geometry: Geometry | str) -> Callable[[list[Parameter]], Optimizer]:
    return lambda params: SteepestDescent(params, lr=1e-3, geometry=geometry)


DENSE: dict[str, Peer] = {
    SGD_FUSED: Peer(lambda params: SGD(params, lr=1e-3, fused=True), 3),
    "torch SGD, foreach": Peer(lambda params: SGD(params, lr=1e-3, foreach=True), 3),
    "torch Adagrad, fused": Peer(lambda params: Adagrad(params, lr=1e-3, fused=True), 5),
    "torch Adagrad, foreach": Peer(lambda params: Adagrad(params, lr=1e-3, foreach=True), 5),
    "torch Adam, fused": Peer(lambda params: Adam(params, lr=1e-3, fused=True), 7),
    "torch Adam, foreach": Peer(lambda params: Adam(params, lr=1e-3, foreach=True), 7),
    "torch Adafactor": Peer(lambda params: Adafactor(params, lr=1e-3), 3),
    "TorchRec RowWiseAdagrad": Peer(_torchrec, 3),
    "pytorch-optimizer SM3": Peer(_sm3, 3),
    "pytorch-optimizer AdamMini": Peer(_adam_mini, 5),
    "RowAdaGrad": Peer(lambda params: RowAdaGrad(params, lr=1e-3), 3),
    "ColumnAdaGrad": Peer(lambda params: ColumnAdaGrad(params, lr=1e-3), 4),
    "MatrixAdaGrad, whole": Peer(lambda params: MatrixAdaGrad(params, lr=1e-3, geometry="whole"), 4),
    "MatrixAdaGrad, entry": Peer(lambda params: MatrixAdaGrad(params, lr=1e-3, geometry="entry"), 5),
    FACTORED: Peer(lambda params: MatrixAdaGrad(params, lr=1e-3, geometry=Factored()), 4),
    "RowMomentum": Peer(lambda params: RowMomentum(params, lr=1e-3), 5),
    "ColumnMomentum": Peer(lambda params: ColumnMomentum(params, lr=1e-3), 6),
    "SteepestDescent, row": Peer(_steepest("row"), 5),
    "SteepestDescent, column": Peer(_steepest("column"), 6),
    "SteepestDescent, entry": Peer(_steepest("entry"), 5),
    "RowAdaGrad, foreach": Peer(lambda params: RowAdaGrad(params, lr=1e-3, foreach=True), 3),
}
SPECTRAL: dict[str, Peer] = {
    SGD_FUSED: DENSE[SGD_FUSED],
    MUON: Peer(lambda params: _Muon(params, lr=1e-3, momentum=0.95, nesterov=True), 5),
    "SteepestDescent, spectral": Peer(
        lambda params: SteepestDescent(params, lr=1e-3, geometry=Spectral(), momentum=0.95, nesterov=True), 5
    ),
}
SPARSE: dict[str, Callable[[Any], Optimizer]] = {
    "torch Adagrad": lambda params: Adagrad(params, lr=1e-2),
    "torch SparseAdam": lambda params: torch.optim.SparseAdam(params, lr=1e-3),
    "TorchRec RowWiseAdagrad": _torchrec,
    "RowAdaGrad": lambda params: RowAdaGrad(params, lr=1e-2),
    "ColumnAdaGrad": lambda params: ColumnAdaGrad(params, lr=1e-2),
    "MatrixAdaGrad, entry": lambda params: MatrixAdaGrad(params, lr=1e-2, geometry="entry"),
    FACTORED: lambda params: MatrixAdaGrad(params, lr=1e-2, geometry=Factored()),
    "RowMomentum": lambda params: RowMomentum(params, lr=1e-3),
    "RowAdaGrad, torch's operators": lambda params: RowAdaGrad(params, lr=1e-2, fused=False),
}


def bag_step(
    rows: int,
    width: int,
    make: Callable[[Any], Optimizer],
    batches: Callable[[], Tensor],
    upstream: Tensor,
    module: type[nn.EmbeddingBag] = nn.EmbeddingBag,
) -> Callable[[], None]:
    """A training step of ``nn.EmbeddingBag``, or of ours: forward, backward, update."""
    bag = module(rows, width, mode="sum", sparse=True)
    optimizer = make(bag.parameters())

    def step() -> None:
        optimizer.zero_grad()
        bag(batches()).backward(upstream)
        optimizer.step()

    return step
