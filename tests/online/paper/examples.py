"""Remark 3, §4.3, App. F: where rows and columns do better than entries, and where they are the same."""

import functools
import itertools
import math
from typing import NamedTuple

import torch

from matrix_adagrad.domains import FrobeniusBall
from matrix_adagrad.geometry import Column, Entry, Row
from matrix_adagrad.online import AdaGrad, MirrorDescent, Motivating, RegretMeter
from tests.online.paper.cases import largest
from tests.online.paper.games import Run
from tests.online.paper.statements import identity, inequality


@identity("Remark 3, degeneration")
def with_one_column_row_wise_is_entry_wise_adagrad(c):
    domain, grads = FrobeniusBall(c.size), c.grads[:, :, :1]
    learners = [MirrorDescent(domain.project(c.X[:, :1]), g, domain, c.size, delta=c.delta) for g in ("row", "entry")]
    row, entry = (torch.stack([learner.update(grad) for grad in grads]) for learner in learners)
    yield row, entry
    yield Row().norm(c.X[:, :1]), c.X[:, 0].abs().max()
    yield domain.diameter(Row(), (len(c.X), 1)), domain.diameter(Entry(), (len(c.X), 1))
    yield learners[0].scheme.roots().sum(), grads.square().sum(0).sqrt().sum()


class Example(NamedTuple):
    m: int
    n: int
    K: int
    active: str

    @property
    def game(self):
        return Motivating(self.m, self.n, self.active)

    @property
    def run(self):
        return _example_run(self)


@functools.cache
def _example_run(example):
    return Run(example.game, AdaGrad(example.active), example.K * example.game.cycle, start=1e9)


EXAMPLES = [Example(*sizes) for sizes in itertools.product((1, 2, 5, 16), (1, 3, 9), (1, 4, 7), ("row", "column"))]


@identity("§4.3, App. F", EXAMPLES)
def each_gradient_is_one_row_or_column_of_signs(e):
    gradients = torch.zeros(e.run.rounds, e.m, e.n, dtype=torch.float64)
    for t in range(1, e.run.rounds + 1):
        lit = gradients[t - 1] if e.active == "row" else gradients[t - 1].T
        lit[(t - 1) % e.game.cycle] = (-1) ** (t + 1)
    yield torch.stack(e.run.played[2]), gradients


@inequality("§4.3, App. F", EXAMPLES)
def every_margin_is_violated(e):  # nearest to 1 where X is along D_t
    others, B = e.game.shape[e.active == "row"], e.game.radius
    along = torch.stack(e.run.played[2]) * B / math.sqrt(others)
    points = torch.cat([torch.stack(e.run.played[0]), along])
    margins = torch.einsum("tij,sij->ts", points, torch.stack(e.run.played[2])).abs()
    yield margins, B * math.sqrt(others)
    yield B * math.sqrt(others) * 2, 1.0  # the radius is half of what is allowed


@identity("§4.3, App. F", EXAMPLES)
def the_sums_of_roots_have_closed_forms(e):
    squares = torch.stack(e.run.played[2]).square().sum(0)
    yield squares.sqrt().sum(), e.m * e.n * math.sqrt(e.K)
    if e.active == "row":
        yield squares.sum(1).sqrt().sum(), e.m * math.sqrt(e.n * e.K)
    else:
        yield squares.sum(0).sqrt().sum(), e.n * math.sqrt(e.m * e.K)


@identity("§4.3, App. F", EXAMPLES)
def the_diameters_are_twice_the_radius(e):
    end = torch.zeros(e.game.shape, dtype=torch.float64)
    end[0, 0] = e.game.radius
    for g in (Row(), Column(), Entry()):
        yield e.game.domain.diameter(g, e.game.shape), 2 * e.game.radius
        yield largest(g, end - -end), 2 * e.game.radius


@identity("§4.3, App. F", EXAMPLES)
def the_bounds_and_their_ratio_have_closed_forms(e):
    meter = RegretMeter(e.run.learner(), bounds_for=(e.active, "entry"))
    promised = meter.play(e.game, e.run.rounds).geometry_bounds
    blocks, members = (e.m, e.n) if e.active == "row" else (e.n, e.m)
    yield promised["entry"], 2 * math.sqrt(2) * e.game.radius * e.m * e.n * math.sqrt(e.K)
    yield promised[e.active], 2 * math.sqrt(2) * e.game.radius * blocks * math.sqrt(members * e.K)
    yield promised["entry"] / promised[e.active], math.sqrt(members)


@inequality("§4.3, App. F", EXAMPLES, taken=0.3)
def the_examples_regret_is_at_most_that(e):
    blocks, members = (e.m, e.n) if e.active == "row" else (e.n, e.m)
    yield e.run.sums.regret, 2 * math.sqrt(2) * e.game.radius * blocks * math.sqrt(members * e.K)
