"""Losses, regrets and costs that are made up."""

import math

from reproduction.structure import cost, regret, training
from reproduction.structure.tuned import GEOMETRIES


class Fake:
    """Scores and costs as they are told.

    Args:
        score: a function of a config of `training` or `regret` and of a geometry to its loss or regret, 1 unless told.
        noise: how much scores differ between seeds, by themselves.
        state: a function of a shape and of a geometry of `cost` to its bytes.
        roots: the same, to the matrix roots of a step.
    """

    def __init__(self, score=lambda *_: 1.0, noise=1e-3, state=None, roots=None):
        self.score, self.noise = score, noise
        self.state, self.roots = state or self.usual_state, roots or (lambda _, name: int("full" in name))

    @staticmethod
    def usual_state(shape, name):
        side = shape[0] if "row" in name else shape[1]
        return 4 * (side**2 if "full" in name else side)

    def training(self, config):
        return training.Result(config, (0.1,) * len(GEOMETRIES), self._scores(config))

    def regret(self, config):
        return regret.Result(config, (0.1,) * len(GEOMETRIES), self._scores(config))

    def _scores(self, config):
        own = sum(map(ord, str(config.structure)))  # each structure has its own luck

        def scatter(seed, k):
            return math.exp(self.noise * math.sin(own + 3 * seed + k))

        return tuple(
            tuple(self.score(config, name) * scatter(seed, k) for seed in range(config.seeds))
            for k, name in enumerate(GEOMETRIES)
        )

    def cost(self, config):
        shape = (config.m, config.n)
        state, roots = (tuple(each(shape, name) for name in cost.GEOMETRIES) for each in (self.state, self.roots))
        return cost.Result(config, state, tuple(100 * count for count in roots), roots, (1.0,) * len(roots))
