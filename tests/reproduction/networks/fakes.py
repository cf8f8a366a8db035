"""Losses of MLPs that are made up."""

import math
from dataclasses import dataclass

from reproduction.networks import mlp


@dataclass(frozen=True)
class Asked:
    """One run of a config."""

    setting: str
    depth: int
    optimizer: str
    lr: float


class Fake:
    """Losses are as the optimizer says.

    Args:
        ratio: a function of what is asked to the loss over the linear fit's.
        movement: a function of the same to how much its curve goes up and down.
        scatter: how far seeds are apart in both, each run by itself.
    """

    def __init__(self, ratio=lambda _: 0.5, movement=lambda _: 0.1, scatter=0.0):
        self.ratio, self.movement, self.scatter = ratio, movement, scatter

    def mlp(self, config):
        asked = [Asked(config.setting, config.depth, run.optimizer, run.lr) for run in config.runs]
        losses = tuple(
            tuple(self.ratio(each) * self.luck(each, seed) * (1 + 1e-3 * math.sin(1 + seed)) for seed in config.seeds)
            for each in asked
        )
        curves = tuple(
            tuple(
                _curve(loss, self.movement(each) * self.luck(each, seed) * (1 + 1e-3 * seed))
                for seed, loss in enumerate(own)
            )
            for each, own in zip(asked, losses, strict=True)
        )
        return mlp.Result(config, curves, losses, (1.1,) * len(config.seeds), (1.0,) * len(config.seeds))

    def luck(self, asked, seed):
        return 1 + self.scatter * math.sin(4 * seed + len(asked.optimizer) + asked.depth + 1000 * asked.lr)


def _curve(loss, size):
    return tuple(loss * math.exp(size * (k % 2)) for k in range(100))
