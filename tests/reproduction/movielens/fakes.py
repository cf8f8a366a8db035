"""Ratings that are drawn, and RMSEs that are made up."""

import math

import torch

from matrix_adagrad.datasets.movielens import Ratings
from reproduction.movielens import factorisation


def ratings(users=30, items=20, count=400):
    random = torch.Generator().manual_seed(0)
    pairs = torch.randperm(users * items, generator=random)[:count].sort().values
    stars = torch.randint(1, 6, (count,), generator=random)
    return Ratings(pairs // items, pairs % items, stars, torch.zeros_like(stars), "a test", None)


class Fake:
    """RMSE is a valley over log lr, at the same place for all epochs.

    Args:
        rmse: a function of a config and a geometry to the depth of its valley at the end, 0.95 unless told. With
            transposed storage, the geometry is that of the mirrored run.
        early: a function of the same to how far above that its curve starts, 1 unless told.
        train: a function of the same to the final RMSE on training ratings, 0.8 unless told.
        best_lr: by geometry, where the valley is.
        scatter: how far the starts of a fold are apart.
    """

    def __init__(self, rmse=None, early=None, train=None, best_lr=None, scatter=1e-4):
        self.rmse = rmse or (lambda *_: 0.95)
        self.early = early or (lambda *_: 1.0)
        self.train = train or (lambda *_: 0.8)
        self.best_lr = best_lr or {"row": 0.17, "entry": 0.042, "column": 1.3}
        self.scatter = scatter

    def factorisation(self, config):
        held_out = [
            [[self.curve(config, run, lr, fold) for lr in run.lrs] for fold in run.held_out] for run in config.runs
        ]
        train = [
            [[self.train(config, self.mirror(config, run)) + self.noise(run, run.held_out[0]) for _ in config.trained]]
            * len(run.lrs)
            for run in config.runs
        ]
        sizes = {"row": 10500, "entry": 210000, "column": 160}
        states = tuple(sizes[run.geometry] for run in config.runs)
        return factorisation.Result(config, frozen(held_out), frozen(train), (1.12,) * len(config.runs), states)

    def curve(self, config, run, lr, fold):
        geometry = self.mirror(config, run)
        end = self.rmse(config, geometry) + 0.2 * math.log10(lr / self.best_lr[geometry]) ** 2
        above = self.early(config, geometry)
        return [end + above * (1 / epoch - 1 / 30) + self.noise(run, fold) for epoch in config.measured]

    def noise(self, run, fold):
        geometry = len(run.geometry)  # paired differences vary too
        return self.scatter * (math.sin(1 + fold) + 0.5 * math.sin(7 * run.seed + fold + geometry))

    @staticmethod
    def mirror(config, run):
        return {"row": "column", "column": "row"}.get(run.geometry, "entry") if config.transposed else run.geometry


def frozen(value):
    return tuple(map(frozen, value)) if isinstance(value, list) else value
