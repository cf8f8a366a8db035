"""Projections and best decisions next to those that a convex solver finds."""

import math
import os

import pytest
import torch

from matrix_adagrad.domains import Balls, Box, FrobeniusBall, L1Balls, RowBalls, RowProduct, Simplices
from matrix_adagrad.domains.base import _labels
from matrix_adagrad.online import ExampleStream, Hinge, Logistic
from tests.domains.table import SHAPE, draw, draw_scale
from tests.domains.test_projection import both

if "INTEGRATIONS" not in os.environ:
    pytest.skip("it needs cvxpy: make test-integrations", allow_module_level=True)

cvxpy, numpy = pytest.importorskip("cvxpy"), pytest.importorskip("numpy")


def constraints(domain, y):
    """The same set in the words of cvxpy."""
    if isinstance(domain, RowProduct):
        ends = numpy.cumsum([0, *(rows for rows, _ in domain.parts)])
        return [
            c
            for (_, part), low, high in zip(domain.parts, ends, ends[1:], strict=False)
            for c in constraints(part, y[low:high])
        ]
    if isinstance(domain, Box):
        return [y >= domain.low] * math.isfinite(domain.low) + [y <= domain.high] * math.isfinite(domain.high)
    labels = _labels(domain.geometry, y.shape).reshape(y.shape).numpy()
    rules = []
    for block in range(labels.max() + 1):
        entries = cvxpy.hstack([y[i, j] for i, j in zip(*numpy.nonzero(labels == block), strict=True)])
        if isinstance(domain, Balls):
            rules.append(cvxpy.norm(entries, 2) <= domain.radius)
        elif isinstance(domain, L1Balls):
            rules.append(cvxpy.norm(entries, 1) <= domain.radius)
        elif isinstance(domain, Simplices):
            rules += [entries >= 0, cvxpy.sum(entries) == domain.total]
    return rules


@both
def test_a_solver_finds_the_same_point(domain, kind):
    x, scale = 2 * draw(7), draw_scale(kind, 7)
    y = cvxpy.Variable(SHAPE)
    weights = numpy.sqrt(scale.expand(SHAPE).numpy())
    distance = cvxpy.sum_squares(cvxpy.multiply(weights, y - x.numpy()))
    least = cvxpy.Problem(cvxpy.Minimize(distance), constraints(domain, y)).solve(solver="CLARABEL")
    ours = domain.project(x, scale)
    assert float((scale * (x - ours).square()).sum()) == pytest.approx(least, rel=1e-6, abs=1e-6)
    # The solver stops at a gap of 1e-8: in the metric its point is within the root of that.
    torch.testing.assert_close(ours, torch.from_numpy(y.value), rtol=0, atol=2e-4)


@pytest.mark.parametrize("kind", [Hinge, Logistic])
@pytest.mark.parametrize("domain", [FrobeniusBall(2.0), Box(-1.0, 1.0), RowBalls(1.5)], ids=repr)
def test_another_solver_finds_the_same_value(kind, domain):
    stream = ExampleStream.random(4, 3, 120, seed=3)
    game = kind(stream, domain)
    solution = game.best(120, torch.zeros(4, 3, dtype=torch.float64))
    x = cvxpy.Variable((4, 3))
    features = (stream.labels[:, None] * stream.features).numpy()
    margins = cvxpy.hstack([features[t] @ x[int(stream.tasks[t])] for t in range(120)])
    losses = cvxpy.sum(cvxpy.pos(1 - margins) if kind is Hinge else cvxpy.logistic(-margins))
    if isinstance(domain, Box):
        rules = [x >= domain.low, x <= domain.high]
    elif isinstance(domain, FrobeniusBall):
        rules = [cvxpy.norm(x, "fro") <= domain.radius]
    else:
        rules = [cvxpy.norm(x[i]) <= domain.radius for i in range(4)]
    least = cvxpy.Problem(cvxpy.Minimize(losses), rules).solve(solver="CLARABEL")
    assert solution.gap <= 1e-6 * 120
    assert solution.value - solution.gap - 1e-6 <= least <= solution.value + 1e-6
    total = sum(game.loss(t, solution.x)[0] for t in range(120))
    assert total == pytest.approx(solution.value, rel=1e-12)
