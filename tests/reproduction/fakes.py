"""Ratings that are drawn, and results that are made up."""

import math

import torch

from matrix_adagrad.datasets.movielens import Ratings
from reproduction import factorisation, identities, mlp, motivating, theorems


def ratings(users=30, items=20, count=400):
    random = torch.Generator().manual_seed(0)
    pairs = torch.randperm(users * items, generator=random)[:count].sort().values
    stars = torch.randint(1, 6, (count,), generator=random)
    return Ratings(pairs // items, pairs % items, stars, torch.zeros_like(stars), "a test", None)


class Fake:
    """Results of all cells: RMSE is a valley over log lr, losses are as the optimizer says.

    Args:
        rmse: by setting and geometry, the depth of the valley, 0.95 unless told.
        ratio: a function of a config of `mlp` to the loss over the linear fit's.
        movement: a function of the same, to how much its curve goes up and down.
        regret: a function of a config of `motivating` to the aligned geometry's regret, where entries regret 1.
        broken: a function of a config of `theorems` to whether its theorem is broken.
        off: how far the identities are off.
    """

    def __init__(self, **says):
        self.rmse = says.get("rmse", lambda _: 0.95)
        self.ratio = says.get("ratio", lambda _: 0.5)
        self.movement = says.get("movement", lambda _: 0.1)
        self.regret = says.get("regret", lambda _: 0.5)
        self.bound_ratio = says.get("bound_ratio", 1.0)
        self.broken = says.get("broken", lambda _: False)
        self.off = says.get("off", 0.0)
        self.best_lr = says.get("best_lr", {"row": 0.17, "entry": 0.042, "column": 1.3})

    def run(self, cell):
        return getattr(self, type(cell).__module__.rpartition(".")[2])(cell)

    def factorisation(self, config):
        noise = 1e-4 * math.sin(1 + config.fold)
        mirror = {"row": "column", "column": "row"}.get(config.geometry) if config.transposed else config.geometry
        ends = [self.rmse(config) + noise + 0.2 * math.log10(lr / self.best_lr[mirror]) ** 2 for lr in config.lrs]
        curves = tuple((*(end + 1 / (1 + epoch) for epoch in range(29)), end) for end in ends)
        state = {"row": 10500, "entry": 210000, "column": 160}[config.geometry]
        return factorisation.Result(config, curves, curves, tuple(end - 0.1 for end in ends), 1.12, state)

    def mlp(self, config):
        ratios = [self.ratio(config) * (1 + 1e-3 * math.sin(1 + seed)) for seed in config.seeds]
        size = self.movement(config)
        curves = tuple(
            tuple(r * math.exp(size * (k % 2) * (1 + 1e-3 * s)) for k in range(100)) for s, r in enumerate(ratios)
        )
        return mlp.Result(config, curves, tuple(ratios), (1.1,) * len(ratios), (1.0,) * len(ratios))

    def motivating(self, config):
        expected = math.sqrt(config.n if config.active == "row" else config.m)
        regret = 1.0 + self.off if expected == 1 else self.regret(config)
        return motivating.Result(config, 1.0, expected * self.bound_ratio, expected, regret, 1.0, True)

    def theorems(self, config):
        names = (
            *("regret ≤ general bound", "Σ‖G_t‖²_{H_t⁻¹} ≤ 2 Σ‖G_t‖²_{H_T⁻¹}", "the same, with the stabilizer's term"),
            *("regret ≤ (Δ²/2η + η) Σ_b √V_b", "regret ≤ √2 D Σ_b √V_b", "regret ≤ trace form"),
        )
        broken, promised = self.broken(config), config.delta < 1
        rows = [(name, "Thm 1", 2.0 if broken else 1.0, 1.5, not broken, promised, False) for name in names]
        return theorems.Result(config, tuple(rows))

    def identities(self, config):
        states = {"RowAdaGrad": 4 * config.m, "ColumnAdaGrad": 4 * config.n, "Adagrad": 4 * config.m * config.n}
        states = {name: round(size * (1 + self.off)) for name, size in states.items()}
        return identities.Result(config, self.off, self.off, tuple(states.items()))
