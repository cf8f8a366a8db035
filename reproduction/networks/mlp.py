"""Stacked MLPs of growing depth without normalisation or residuals (Figures 2 and 3).

The paper leaves much open. Setting A is our choice, its variants differ from it in one thing (ReLU comes with the start
that is meant for it), and setting B differs in four. In each setting all optimizers use the same eps.

One call of `run` trains many networks side by side: one for each optimizer, learning rate and seed. They are
independent.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from matrix_adagrad.geometry import Batched, Column, Entry, Partition, Row
from matrix_adagrad.optim import MatrixMomentum

__all__ = ["OPTIMIZERS", "SETTINGS", "WIDTH", "Config", "Result", "Run", "Setting", "run"]

WIDTH, INPUTS, OUTPUTS, SAMPLES = 20, 20, 5, 640
POINTS = 100  # of a loss curve


@dataclass(frozen=True)
class Scaling:
    """What shares a scale, in the weights and in the biases, and how large a step is."""

    weights: Partition
    biases: Partition  # Entry(), or Row(): a layer's biases share a scale
    reduction: Literal["sum", "mean"] = "sum"
    factor: float = 1.0  # of the learning rate


# The sum over a row divides the step by about √width, so each scaling is run at both step sizes.
OPTIMIZERS = {
    "Adam": Scaling(Entry(), Entry()),
    "Adam, lr/√width": Scaling(Entry(), Entry(), factor=1 / math.sqrt(WIDTH)),
    "Row-wise Momentum": Scaling(Row(), Entry()),
    "Row-wise, mean": Scaling(Row(), Entry(), "mean"),
    "Row-wise, whole biases": Scaling(Row(), Row()),
    "Column-wise Momentum": Scaling(Column(), Entry()),
}


@dataclass(frozen=True)
class Setting:
    """What the paper leaves open. The defaults are setting A."""

    activation: Literal["tanh", "ReLU"] = "tanh"
    start: Literal["Xavier normal", "Kaiming normal", "PyTorch's default"] = "Xavier normal"
    batch: int = 64
    steps: int = 1000
    eps: float = 1e-8
    bias_correction: bool = True


SETTINGS = {
    "A": Setting(),
    "A with ReLU": Setting(activation="ReLU", start="Kaiming normal"),
    "A with PyTorch's start": Setting(start="PyTorch's default"),
    "A with full batches": Setting(batch=SAMPLES),
    "A with 2000 steps": Setting(steps=2000),
    "A with eps 1e-16": Setting(eps=1e-16),
    "A without bias correction": Setting(bias_correction=False),
    "B": Setting("ReLU", "PyTorch's default", SAMPLES, 1200),
    "B with eps 1e-16": Setting("ReLU", "PyTorch's default", SAMPLES, 1200, eps=1e-16),
}


@dataclass(frozen=True)
class Run:
    """An optimizer at a learning rate."""

    optimizer: str
    lr: float

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(f"optimizer must be one of {', '.join(OPTIMIZERS)}, got {self.optimizer!r}")


@dataclass(frozen=True)
class Config:
    """Networks of one depth in one setting: one for each run and each seed.

    A seed determines data, weights and batches. ``steps=0`` means as many as the setting specifies.
    """

    setting: str = "A"
    depth: int = 15
    runs: tuple[Run, ...] = (Run("Row-wise Momentum", 0.01),)
    seeds: tuple[int, ...] = (0,)
    steps: int = 0

    def __post_init__(self) -> None:
        if self.setting not in SETTINGS:
            raise ValueError(f"setting must be one of {', '.join(SETTINGS)}, got {self.setting!r}")
        if self.depth < 1 or not self.runs or not self.seeds:
            raise ValueError(
                f"depth must be at least 1, runs and seeds not empty, got {self.depth}, {self.runs} and {self.seeds}"
            )

    @property
    def cost(self) -> float:
        """The estimated run time, in seconds."""
        setting = SETTINGS[self.setting]
        sample = 7.5e-8 if setting.activation == "tanh" else 6e-8
        layer = 2e-5 + len(self.runs) * len(self.seeds) * (2e-6 + sample * setting.batch)
        return (self.steps or setting.steps) * self.depth * layer


@dataclass(frozen=True)
class Result:
    """Mean squared errors on the training set.

    For each run and seed, ``curves`` are the errors on the batches, averaged over hundredths of the run, and ``losses``
    the final errors on all samples. For each seed, ``constant`` and ``linear`` are the errors of the best constant and
    of the best linear fit.
    """

    config: Config
    curves: tuple[tuple[tuple[float, ...], ...], ...]
    losses: tuple[tuple[float, ...], ...]
    constant: tuple[float, ...]
    linear: tuple[float, ...]


def run(config: Config, dtype: torch.dtype = torch.float32) -> Result:
    """Train the networks. What a seed draws does not depend on the runs or on the other seeds."""
    setting, runs = SETTINGS[config.setting], len(config.runs)
    steps = config.steps or setting.steps
    seeds = [_Seed(setting, config.depth, seed, dtype) for seed in config.seeds]
    networks = _Networks(config, seeds)
    optimizer = networks.optimizer()
    losses = []
    for x, y in itertools.islice(_batches(seeds, setting.batch, runs), steps):
        losses.append(networks.differentiate(x, y))
        optimizer.step()
    x, y = _samples(seeds, runs)
    final = (networks(x) - y).square().mean((1, 2))
    curves = torch.stack([part.mean(0) for part in torch.stack(losses).tensor_split(min(POINTS, steps))], 1)
    each = (runs, len(seeds))
    return Result(
        config,
        curves=_finite(curves.unflatten(0, each).tolist()),
        losses=_finite(final.unflatten(0, each).tolist()),
        constant=tuple(seed.constant for seed in seeds),
        linear=tuple(seed.linear for seed in seeds),
    )


class _Seed:
    """What a seed draws: samples (features × samples), weights and biases of each layer, and batches."""

    def __init__(self, setting: Setting, depth: int, seed: int, dtype: torch.dtype) -> None:
        self.random = torch.Generator().manual_seed(seed)
        self.x = torch.randn(SAMPLES, INPUTS, generator=self.random).to(dtype).T
        self.y = torch.randn(SAMPLES, OUTPUTS, generator=self.random).to(dtype).T
        self.layers = [
            self._layer(setting.start, inputs, outputs, dtype)
            for inputs, outputs in itertools.pairwise([INPUTS, *[WIDTH] * (depth - 1), OUTPUTS])
        ]

    def _layer(self, start: str, inputs: int, outputs: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        weight, bias = torch.empty(outputs, inputs), torch.zeros(outputs)
        if start == "Xavier normal":
            nn.init.xavier_normal_(weight, generator=self.random)
        elif start == "Kaiming normal":
            nn.init.kaiming_normal_(weight, nonlinearity="relu", generator=self.random)
        else:  # the default of nn.Linear
            nn.init.kaiming_uniform_(weight, a=math.sqrt(5), generator=self.random)
            nn.init.uniform_(bias, -1 / math.sqrt(inputs), 1 / math.sqrt(inputs), generator=self.random)
        return weight.to(dtype), bias.to(dtype)

    def order(self) -> Tensor:
        """The order of the samples in the next epoch."""
        return torch.randperm(SAMPLES, generator=self.random)

    @property
    def constant(self) -> float:
        return (self.y - self.y.mean(1, keepdim=True)).square().mean().item()

    @property
    def linear(self) -> float:
        """By Gram-Schmidt, with operations whose last bits do not depend on the memory addresses of their operands."""
        features = torch.cat([self.x, torch.ones_like(self.x[:1])]).double()
        error = self.y.to(torch.float64, copy=True)
        for number, feature in enumerate(features):
            for rest in (features[number + 1 :], error):
                rest -= (rest * feature).sum(1, keepdim=True) / feature.square().sum() * feature
        return error.square().mean().item()


def _samples(seeds: list[_Seed], runs: int, orders: list[Tensor] | None = None) -> tuple[Tensor, Tensor]:
    """The samples of all networks: those of each seed, in its order, once per run."""
    orders = orders or [torch.arange(SAMPLES)] * len(seeds)
    pairs = [(seed.x[:, order], seed.y[:, order]) for seed, order in zip(seeds, orders, strict=True)]
    x, y = (torch.stack(each).repeat(runs, 1, 1) for each in zip(*pairs, strict=True))
    return x, y


def _batches(seeds: list[_Seed], size: int, runs: int) -> Iterator[tuple[Tensor, Tensor]]:
    if size == SAMPLES:  # in any order
        yield from itertools.repeat(_samples(seeds, runs))
    while True:
        x, y = _samples(seeds, runs, [seed.order() for seed in seeds])
        yield from zip(x.split(size, 2), y.split(size, 2), strict=True)


class _Networks:
    """Networks of the same shape, side by side: H ← σ(W H + b), for H of features × samples.

    Autograd would take twice the time: a step is too short for its bookkeeping, and its tensors are new each time.
    """

    def __init__(self, config: Config, seeds: list[_Seed]) -> None:
        self.config, self.setting = config, SETTINGS[config.setting]
        # networks × layers × …; the last layer, which has another shape, is in stacks of its own
        shared = [part for part in (slice(-1), slice(-1, None)) if seeds[0].layers[part]]
        self.stacks = [[self._stack(seeds, part, k) for part in shared] for k in (0, 1)]
        self.gradients = [[torch.empty_like(stack) for stack in stacks] for stacks in self.stacks]
        self.w, self.b = map(_by_layer, self.stacks)
        self.dw, self.db = map(_by_layer, self.gradients)
        self.h: list[Tensor] = []  # each layer's outputs

    def _stack(self, seeds: list[_Seed], part: slice, k: int) -> Tensor:
        each = [torch.stack([layer[k] for layer in seed.layers[part]]) for seed in seeds]
        return torch.cat([torch.stack(each)] * len(self.config.runs))

    def __call__(self, x: Tensor) -> Tensor:
        """The outputs of the last layer."""
        if not self.h or self.h[0].shape[2] != x.shape[2]:
            self.h = [x.new_empty(*b.shape, x.shape[2]) for b in self.b]
            self.dh = [
                torch.empty_like(self.h[0]) for _ in range(2)
            ]  # by the outputs of this layer and of the last one
        *hidden, last = zip(self.w, self.b, self.h, strict=True)
        for w, b, h in hidden:
            if self.setting.activation == "ReLU":
                x = torch.baddbmm(b[..., None], w, x, out=h).relu_()
            else:  # tanh z = 2 / (1 + exp(-2z)) - 1, in a quarter of the time of torch.tanh
                x = torch.baddbmm(b[..., None], w, x, beta=2, alpha=2, out=h).sigmoid_().mul_(2).sub_(1)
        w, b, h = last
        return torch.baddbmm(b[..., None], w, x, out=h)

    def differentiate(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute the gradients, and return each network's loss on its batch."""
        error = self(x) - y
        dz = error * (2 / error[0].numel())
        for k in reversed(range(self.config.depth)):
            h = self.h[k - 1] if k else x
            self.dw[k].copy_(torch.bmm(dz, h.mT))
            torch.sum(dz, 2, out=self.db[k])
            if k:
                dh = torch.bmm(self.w[k].mT, dz, out=self.dh[k % 2])
                if self.setting.activation == "ReLU":
                    dz = torch.ops.aten.threshold_backward.grad_input(dh, h, 0, grad_input=dh)
                else:
                    dz = torch.ops.aten.tanh_backward.grad_input(dh, h, grad_input=dh)
        return error.square().mean((1, 2))

    def optimizer(self) -> MatrixMomentum:
        """One group of weights and one of biases for each run."""
        groups: list[dict[str, Any]] = []
        for number, each in enumerate(self.config.runs):
            scaling, seeds = OPTIMIZERS[each.optimizer], len(self.config.seeds)
            own = slice(number * seeds, (number + 1) * seeds)
            for k, geometry in enumerate((scaling.weights, scaling.biases)):
                params = [nn.Parameter(stack[own]) for stack in self.stacks[k]]
                for param, gradient in zip(params, self.gradients[k], strict=True):
                    param.grad = gradient[own]
                groups.append({"params": params, "geometry": Batched(geometry), "lr": each.lr * scaling.factor})
                groups[-1]["reduction"] = scaling.reduction
        setting = self.setting
        return MatrixMomentum(groups, betas=(0.9, 0.9), eps=setting.eps, bias_correction=setting.bias_correction)


def _by_layer(stacks: list[Tensor]) -> list[Tensor]:
    return [layer for stack in stacks for layer in stack.unbind(1)]


def _finite(losses: Any) -> Any:
    """Tuples in place of lists, and infinity in place of whatever is not finite."""
    if isinstance(losses, list):
        return tuple(map(_finite, losses))
    return losses if math.isfinite(losses) else math.inf
