"""The solver's certificate is true: no point of the domain is lower than it says."""

import numpy
import pytest
import torch

from matrix_adagrad.domains import Box, FrobeniusBall, L1Ball, RowBalls, RowSimplex
from matrix_adagrad.online import minimise
from matrix_adagrad.online.solver import inner
from tests.domains.table import draw

DOMAINS = (FrobeniusBall(1.0), RowBalls(0.5), Box(-0.2, 0.4), RowSimplex(), L1Ball(1.0))


def quadratic(seed, condition=100.0):
    """½⟨x, Ax⟩ + ⟨b, x⟩ on 5×4 matrices."""
    q, _ = torch.linalg.qr(draw(seed, (20, 20)))
    a = q @ torch.diag(torch.logspace(0, float(torch.tensor(condition).log10()), 20, dtype=torch.float64)) @ q.T
    b = 30 * draw(seed + 1, (20,))

    def objective(x, _):
        flat = x.reshape(-1)
        value = 0.5 * float(flat @ a @ flat + 2 * b @ flat)
        return value, value, (a @ flat + b).view(x.shape)

    return objective


@pytest.mark.parametrize("domain", DOMAINS, ids=repr)
def test_the_gap_is_reached_and_no_other_point_is_lower(domain):
    objective = quadratic(0)
    solution = minimise(objective, domain, torch.zeros(5, 4, dtype=torch.float64), tolerance=1e-8).certified()
    assert domain.contains(solution.x, 1e-12)
    assert solution.value == objective(solution.x, 0)[0]
    assert 0 <= solution.gap <= 1e-8
    for seed in range(200):
        other = domain.project(solution.x + 10.0 ** (-seed % 6) * draw(seed, (5, 4)))
        assert objective(other, 0)[0] >= solution.value - solution.gap - 1e-12


def test_a_solution_that_is_not_good_enough_is_refused():
    solution = minimise(
        quadratic(0, 1e6), FrobeniusBall(1.0), torch.zeros(5, 4, dtype=torch.float64), tolerance=1e-8, max_steps=3
    )
    assert solution.gap > solution.tolerance
    with pytest.raises(RuntimeError, match="stopped at a gap of .* was requested"):
        solution.certified()


def test_the_inner_product():
    assert inner(draw(1), draw(2)) == pytest.approx(float(numpy.vdot(draw(1).numpy(), draw(2).numpy())), rel=1e-14)
