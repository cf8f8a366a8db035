"""§4.4: columns are the rows of the transpose."""

import functools
from dataclasses import dataclass, replace

from matrix_adagrad.domains import Simplices, WholeSpace
from matrix_adagrad.domains.balls import Balls
from matrix_adagrad.geometry import Column, Row
from matrix_adagrad.online import AdaGrad, Adversarial, ColumnWise, Game, RowWise, Solution
from matrix_adagrad.online.solver import inner
from tests.online.paper.cases import GEOMETRIES
from tests.online.paper.games import using
from tests.online.paper.statements import identity


def mirrored(domain):
    """The set of the transposed matrices."""
    if isinstance(domain, Balls):
        return Balls(domain.radius, domain.geometry.transpose)
    return Simplices(domain.total, domain.geometry.transpose) if isinstance(domain, Simplices) else domain


@dataclass(frozen=True, eq=False)
class Transposed(Game):
    """f'(X') = f(X'ᵀ)."""

    game: Game

    @property
    def shape(self):
        return self.game.shape[::-1]

    @functools.cached_property
    def domain(self):
        return mirrored(self.game.domain)

    def loss(self, t, x):
        loss, grad = self.game.loss(t, x.T)
        return loss, grad.T

    def best(self, rounds, gradients):
        best = self.game.best(rounds, gradients.T)
        return Solution(best.x.T, best.value, best.gap)


@identity("§4.4")
def the_column_wise_function_is_the_row_wise_one_of_the_transpose(c):
    column, row = ColumnWise(c.given(c.D)), RowWise(c.given(c.D))
    X, Y, G = c.X, c.Y, c.G
    yield inner(X, Y), inner(X.T, Y.T), X.norm() * Y.norm()
    yield column.value(X), row.value(X.T), c.top * inner(X, X)
    yield column.gradient(X).T, row.gradient(X.T), c.top * X.norm()
    yield column.bregman(X, Y), row.bregman(X.T, Y.T), c.top * (inner(X, X) + inner(Y, Y))
    yield Column().norm(X), Row().norm(X.T)
    scales = [AdaGrad(g, c.delta).observe(grad).scale for g, grad in (("column", G), ("row", G.T))]
    yield scales[0].T, scales[1]


@identity("§4.4")
def the_row_wise_step_transposed_is_the_column_wise_step(c):
    column, row = ColumnWise(c.given(c.D)), RowWise(c.given(c.D))
    for domain in [*c.domains(column), WholeSpace()]:
        x = domain.project(c.X)
        after = column.step(x, c.G, c.eta, domain)
        yield row.step(x.T, c.G.T, c.eta, mirrored(domain)).T, after, c.top / c.weight * after.norm()


# Not for an adversary: near 0 rounding decides on the direction that he takes.
@identity("§4.4", [run for run in using(*GEOMETRIES) if not isinstance(run.game, Adversarial)])
def a_game_and_its_transpose_have_the_same_regret_and_bounds(run):
    scheme = AdaGrad(run.scheme.geometry.transpose, run.scheme.delta)
    other = replace(run, game=Transposed(run.game), scheme=scheme)
    size = sum(map(abs, run.played[1])) + abs(run.regret.best.value)
    yield other.played[-1].T, run.played[-1]
    yield other.regret.regret, run.regret.regret, size
    for inequality, mirrored_inequality in zip(run.regret.inequalities, other.regret.inequalities, strict=True):
        yield mirrored_inequality.right, inequality.right, size
