"""Stacked MLPs of growing depth without normalisation or residuals (Figures 2 and 3).

The paper leaves much open, so there are two settings. Setting A: tanh, Xavier normal weights, zero biases, batches of
64 samples, 100 epochs. Setting B: ReLU, PyTorch's default initialisation, 1200 steps on all samples. In both, all
optimizers use the same eps.

One run trains the networks of several seeds at once. Their weights for a layer are stacked into one matrix, so each row
still belongs to one network. The networks are independent.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from matrix_adagrad.optim import MatrixMomentum

__all__ = ["OPTIMIZERS", "SETTINGS", "Config", "Result", "run"]

WIDTH, INPUTS, OUTPUTS, SAMPLES = 20, 20, 5, 640
POINTS = 100  # of a loss curve


@dataclass(frozen=True)
class Scaling:
    """What shares a scale, in the weights and in the biases, and how large a step is."""

    weights: str  # "entry", "row" or "column"
    biases: str = "entry"  # or "whole"
    reduction: Literal["sum", "mean"] = "sum"
    factor: float = 1.0  # of the learning rate


# The sum over a row divides the step by about √width, so each scaling is run at both step sizes.
OPTIMIZERS = {
    "Adam": Scaling("entry"),
    "Adam, lr/√width": Scaling("entry", factor=1 / math.sqrt(WIDTH)),
    "Row-wise Momentum": Scaling("row"),
    "Row-wise, mean": Scaling("row", reduction="mean"),
    "Row-wise, whole biases": Scaling("row", "whole"),
    "Row-wise, mean, whole biases": Scaling("row", "whole", "mean"),
    "Column-wise Momentum": Scaling("column"),
}


@dataclass(frozen=True)
class Setting:
    """What the paper leaves open."""

    activation: str
    start: str
    batch: int
    steps: int


SETTINGS = {"A": Setting("tanh", "Xavier normal", 64, 1000), "B": Setting("ReLU", "PyTorch's default", SAMPLES, 1200)}


@dataclass(frozen=True)
class Config:
    """Networks that differ only in their seed, which determines data, weights and batches.

    ``steps=0`` means as many as the setting specifies.
    """

    optimizer: str = "Row-wise Momentum"
    depth: int = 15
    lr: float = 0.01
    setting: str = "A"
    eps: float = 1e-8
    seeds: tuple[int, ...] = (0,)
    steps: int = 0

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(f"optimizer must be one of {', '.join(OPTIMIZERS)}, got {self.optimizer!r}")
        if self.setting not in SETTINGS:
            raise ValueError(f"setting must be one of {', '.join(SETTINGS)}, got {self.setting!r}")
        if self.depth < 1 or not self.seeds:
            raise ValueError(f"depth must be at least 1 and seeds not empty, got {self.depth} and {self.seeds}")

    @property
    def cost(self) -> float:
        """The estimated run time, in seconds."""
        a_seed = {"A": 1.3e-5, "B": 6.4e-5}[self.setting]
        return (self.steps or SETTINGS[self.setting].steps) * self.depth * (5e-5 + a_seed * len(self.seeds))


@dataclass(frozen=True)
class Result:
    """Mean squared errors on the training set, for each seed.

    ``curves`` are the errors on the batches, averaged over hundredths of the run. ``losses`` are the final errors on
    all samples. ``constant`` and ``linear`` are the errors of the best constant and of the best linear fit.
    """

    config: Config
    curves: tuple[tuple[float, ...], ...]
    losses: tuple[float, ...]
    constant: tuple[float, ...]
    linear: tuple[float, ...]


def run(config: Config, dtype: torch.dtype = torch.float32) -> Result:
    """Train the networks. What a seed draws does not depend on the optimizer or on the other seeds."""
    setting = SETTINGS[config.setting]
    seeds = [_Seed(config, seed, dtype) for seed in config.seeds]
    x, y = (torch.stack(each) for each in zip(*[(seed.x, seed.y) for seed in seeds], strict=True))
    network = _Networks(config, seeds)
    optimizer = network.optimizer(config)
    steps = config.steps or setting.steps
    losses = []
    for rows in itertools.islice(zip(*[seed.batches(setting.batch) for seed in seeds], strict=True), steps):
        loss = (network(_at(x, rows)) - _at(y, rows)).square().mean((1, 2))
        optimizer.zero_grad()
        loss.sum().backward()
        optimizer.step()
        losses.append(loss.detach())
    with torch.no_grad():
        final = (network(x) - y).square().mean((1, 2))
    curves = torch.stack([part.mean(0) for part in torch.stack(losses).tensor_split(min(POINTS, steps))], 1)
    return Result(
        config,
        curves=tuple(tuple(map(_finite, curve)) for curve in curves.tolist()),
        losses=tuple(map(_finite, final.tolist())),
        constant=tuple(seed.constant for seed in seeds),
        linear=tuple(seed.linear for seed in seeds),
    )


class _Seed:
    """What a seed draws: samples (features × samples), weights and biases of each layer, and batches."""

    def __init__(self, config: Config, seed: int, dtype: torch.dtype) -> None:
        self.random = torch.Generator().manual_seed(seed)
        self.x = torch.randn(SAMPLES, INPUTS, generator=self.random).to(dtype).T
        self.y = torch.randn(SAMPLES, OUTPUTS, generator=self.random).to(dtype).T
        self.layers = [
            self._layer(SETTINGS[config.setting].start, inputs, outputs, dtype)
            for inputs, outputs in itertools.pairwise([INPUTS, *[WIDTH] * (config.depth - 1), OUTPUTS])
        ]

    def _layer(self, start: str, inputs: int, outputs: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        weight, bias = torch.empty(outputs, inputs), torch.zeros(outputs)
        if start == "Xavier normal":
            nn.init.xavier_normal_(weight, generator=self.random)
        else:  # the default of nn.Linear
            nn.init.kaiming_uniform_(weight, a=math.sqrt(5), generator=self.random)
            nn.init.uniform_(bias, -1 / math.sqrt(inputs), 1 / math.sqrt(inputs), generator=self.random)
        return weight.to(dtype), bias.to(dtype)

    def batches(self, size: int) -> Iterator[Tensor]:
        while True:
            yield from torch.randperm(SAMPLES, generator=self.random).split(size)

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


class _Networks:
    """Networks of the same shape, side by side: H ← σ(W H + b), for H of features × samples.

    All layers but the last have the same shape, and they share a parameter too: layers × networks × rows.
    """

    def __init__(self, config: Config, seeds: list[_Seed]) -> None:
        self.activation = torch.tanh_ if SETTINGS[config.setting].activation == "tanh" else torch.relu_
        self.is_column = OPTIMIZERS[config.optimizer].weights == "column"
        self.count, layers = len(seeds), list(zip(*[seed.layers for seed in seeds], strict=True))
        self.weights, self.biases = [], []
        for alike in filter(None, (layers[:-1], layers[-1:])):
            # columns are the rows of the transpose
            weights = [weight.T if self.is_column else weight for layer in alike for weight, _ in layer]
            self.weights.append(nn.Parameter(torch.cat(weights)))
            self.biases.append(nn.Parameter(torch.stack([bias for layer in alike for _, bias in layer])))

    def __call__(self, h: Tensor) -> Tensor:
        layers: list[tuple[Tensor, Tensor]] = []
        for weights, biases in zip(self.weights, self.biases, strict=True):
            b = biases.view(-1, self.count, biases.shape[1], 1)
            w = weights.view(len(b), self.count, -1, weights.shape[1])
            layers += zip((w.transpose(2, 3) if self.is_column else w).unbind(), b.unbind(), strict=True)
        for number, (w, b) in enumerate(layers, 1):
            h = torch.baddbmm(b, w, h)
            if number < len(layers):
                h = self.activation(h)
        return h

    def optimizer(self, config: Config) -> Optimizer:
        scaling = OPTIMIZERS[config.optimizer]
        lr, betas, eps = config.lr * scaling.factor, (0.9, 0.9), config.eps
        if scaling.weights == "entry":
            return Adam([*self.weights, *self.biases], lr, betas, eps, fused=True)
        # the biases of one layer of one network are a row
        biases = {"params": self.biases, "geometry": "row" if scaling.biases == "whole" else "entry"}
        groups: list[dict[str, Any]] = [{"params": self.weights}, biases]
        return MatrixMomentum(groups, lr, geometry="row", betas=betas, eps=eps, reduction=scaling.reduction)


def _at(samples: Tensor, which: tuple[Tensor, ...]) -> Tensor:
    """The samples in each network's batch. If that is all of them, their order does not matter."""
    if len(which[0]) == SAMPLES:
        return samples
    return samples.gather(2, torch.stack(which)[:, None].expand(-1, samples.shape[1], -1))


def _finite(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf
