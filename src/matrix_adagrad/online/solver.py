"""Minimises convex functions over a domain, with a certificate of how far from the minimum the answer can be."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from matrix_adagrad.domains import Domain

__all__ = ["Objective", "Solution", "inner", "minimise"]


def inner(x: Tensor, y: Tensor) -> float:
    """The Frobenius inner product ⟨X, Y⟩."""
    return float(torch.dot(x.reshape(-1), y.reshape(-1)))


# (X, μ) ↦ f(X), plus the value and the gradient at X of a smooth convex f_μ ≤ f that converges to f as μ → 0. If f is
# smooth, f_μ may be f itself.
Objective = Callable[[Tensor, float], tuple[float, float, Tensor]]


@dataclass(frozen=True)
class Solution:
    """A point of the domain, the function's value there, and a bound on how much lower the minimum can be."""

    x: Tensor
    value: float
    gap: float
    tolerance: float = math.inf

    def certified(self) -> Solution:
        """This solution, if its gap is within the requested tolerance. Otherwise an error is raised."""
        if not self.gap <= self.tolerance:
            raise RuntimeError(
                f"the solver stopped at a gap of {self.gap:.3g}, but {self.tolerance:.3g} was requested: "
                "the problem is too ill-conditioned; use a larger stabilizer or a coarser tolerance"
            )
        return self


def minimise(
    objective: Objective, domain: Domain, start: Tensor, *, tolerance: float, max_steps: int = 20_000
) -> Solution:
    r"""A point of a bounded domain that minimises a convex function, up to a certified gap.

    This is the accelerated projected gradient method with restarts, on less and less smooth minorants. Since
    :math:`f(Y) \ge f_\mu(X) + \langle \nabla f_\mu(X), Y - X \rangle`, the minimum of the right-hand side over the
    domain is a lower bound on the minimum of f. The gap is the difference between the best value and the best bound.

    Args:
        objective: the function and its smooth minorants.
        domain: a bounded domain.
        start: any point.
        tolerance: the gap to stop at.
        max_steps: the number of steps to stop after, with whatever gap was reached.
    """
    x = y = domain.project(start)
    momentum, smoothing = 1.0, 1.0
    best, best_x, lower = math.inf, x, -math.inf
    current = objective(x, smoothing)
    curvature = _curvature(objective, x, current[2], domain.argmin(current[2]), smoothing)
    for _ in range(max_steps):
        value, smooth, gradient = current
        bound = smooth + inner(gradient, domain.argmin(gradient) - x)
        lower = max(lower, bound)
        if value - bound <= tolerance:  # by its own bound: the gradient is right at x, too
            best, best_x = value, x
            break
        if value < best:
            best, best_x = value, x
        if smooth - bound <= 0.5 * (value - smooth):  # what is left is due to the smoothing
            smoothing, momentum, y = smoothing / 4, 1.0, x
        _, smooth, gradient = objective(y, smoothing)
        curvature *= 0.9
        while True:  # a step so short that a parabola of this curvature lies above the function
            z = domain.project(y - gradient / curvature)
            current = objective(z, smoothing)
            parabola = smooth + inner(gradient, z - y) + 0.5 * curvature * inner(z - y, z - y)
            if current[1] <= parabola + 1e-12 * abs(parabola) or curvature > 1e30:
                break
            curvature *= 2
        if inner(y - z, z - x) > 0:  # the momentum points uphill: restart
            momentum = 1.0
        following = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        y = z + (momentum - 1) / following * (z - x)
        x, momentum = z, following
    return Solution(best_x, best, max(0.0, best - lower), tolerance)


def _curvature(objective: Objective, x: Tensor, gradient: Tensor, far: Tensor, smoothing: float) -> float:
    """How fast the gradient changes across the domain: an initial guess, in the problem's own units."""
    length = float((far - x).norm())
    change = float((objective(far, smoothing)[2] - gradient).norm())
    return change / length if length > 0 and change > 0 else 1.0
