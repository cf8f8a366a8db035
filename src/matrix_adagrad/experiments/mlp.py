"""Stacked MLPs of growing depth without normalisation or residuals (Figures 2 and 3).

What the paper leaves open is set here to tanh, Xavier normal weights, zero biases, batches of 64 and 100 epochs, with
the same eps for both optimizers.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Adam, Optimizer

from matrix_adagrad.optim import RowMomentum

__all__ = ["OPTIMIZERS", "Config", "Result", "run"]

WIDTH, INPUTS, OUTPUTS, SAMPLES = 20, 20, 5, 640

# The sum over a row divides the step by about √width, so each scaling is shown at both sizes of step.
OPTIMIZERS = ("adam", "adam, lr/√width", "row, mean", "row, sum")


@dataclass(frozen=True)
class Config:
    """One training run."""

    optimizer: str = "row, sum"
    depth: int = 15
    lr: float = 0.01
    seed: int = 0
    epochs: int = 100
    batch: int = 64


@dataclass(frozen=True)
class Result:
    """The mean squared error on the training set: at the end, and of the best constant and the best linear fit."""

    config: Config
    loss: float
    constant_loss: float
    linear_loss: float

    @property
    def trained(self) -> bool:
        """Whether the network beats the best linear fit of its own data."""
        return self.loss < self.linear_loss


def run(config: Config) -> Result:
    """Train one network on noise; everything is drawn from the seed, whichever the optimizer."""
    random = torch.Generator().manual_seed(config.seed)
    x = torch.randn(SAMPLES, INPUTS, generator=random)
    y = torch.randn(SAMPLES, OUTPUTS, generator=random)
    model = _mlp(config.depth, random)
    optimizer = _optimizer(config, model)
    for _ in range(config.epochs):
        for rows in torch.randperm(SAMPLES, generator=random).split(config.batch):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x[rows]), y[rows]).backward()
            optimizer.step()
    with torch.no_grad():
        loss = nn.functional.mse_loss(model(x), y).item()
    centred = y - y.mean(0)
    with_constant = torch.cat([x, torch.ones(SAMPLES, 1)], 1)
    residual = y - with_constant @ torch.linalg.lstsq(with_constant, y).solution
    return Result(config, loss, centred.square().mean().item(), residual.square().mean().item())


def _mlp(depth: int, random: torch.Generator) -> nn.Sequential:
    widths = [INPUTS, *[WIDTH] * (depth - 1), OUTPUTS]
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layer = nn.Linear(inputs, outputs)
        nn.init.xavier_normal_(layer.weight, generator=random)
        nn.init.zeros_(layer.bias)
        layers += [layer, nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def _optimizer(config: Config, model: nn.Module) -> Optimizer:
    params, betas, eps = model.parameters(), (0.9, 0.9), 1e-8
    match config.optimizer:
        case "adam":
            return Adam(params, config.lr, betas, eps)
        case "adam, lr/√width":
            return Adam(params, config.lr / math.sqrt(WIDTH), betas, eps)
        case "row, mean":
            return RowMomentum(params, config.lr, betas=betas, eps=eps, reduction="mean")
        case "row, sum":
            return RowMomentum(params, config.lr, betas=betas, eps=eps)
        case other:
            raise ValueError(f"optimizer must be one of {OPTIMIZERS}, got {other!r}")
