"""§3, App. B: divergences and the one step."""

import functools
import itertools

import torch

from matrix_adagrad.domains import FrobeniusBall, WholeSpace
from matrix_adagrad.online.solver import inner
from tests.online.paper.cases import largest, lengths2, numbers
from tests.online.paper.statements import identity, inequality


@inequality("§3.1, Def. 1")
def a_divergence_is_not_negative(c):  # as: a tangent lies below, and touches where X = Y
    for psi in c.proximals:
        tangent = [psi.value(c.Y) + inner(psi.gradient(c.Y), x - c.Y) for x in (c.X, c.Y)]
        yield numbers(tangent), numbers(map(psi.value, (c.X, c.Y))), c.terms


@identity("App. B, three-point identity")
def three_points(c):
    for psi in c.proximals:
        X, Y, Z = c.X, c.Y, c.Z
        terms = psi.bregman(Z, X), psi.bregman(X, Y), psi.bregman(Z, Y)
        yield terms[0] + terms[1] - terms[2], inner(psi.gradient(Y) - psi.gradient(X), Z - X), c.terms


@identity("App. B, one-step bound")
def an_unconstrained_step_moves_the_gradient_of_the_proximal_function_by_eta_g(c):
    for psi in c.proximals:
        after = psi.step(c.X, c.G, c.eta)
        size = c.top * (c.X.norm() + after.norm())
        yield psi.gradient(after) - psi.gradient(c.X), -c.eta * c.G, size


@functools.cache
def steps(c, psi):
    """From a point of each domain, and last of the whole space, one step: the domain, X_t and X_{t+1}."""
    starts = [(domain, domain.project(c.X)) for domain in (*c.domains(psi), WholeSpace())]
    return [(domain, before, psi.step(before, c.G, c.eta, domain)) for domain, before in starts]


@inequality("App. B, first-order optimality")
def no_point_of_the_domain_improves_on_the_step(c):  # with ⟨∇J, U⟩ least: equality, since the step itself is as good
    for psi in c.proximals:
        for domain, before, after in steps(c, psi)[:-1]:
            force = c.eta * c.G + psi.gradient(after) - psi.gradient(before)
            size = (c.eta * c.G.norm() + c.top * (after.norm() + before.norm())) * after.norm()
            yield inner(-force, domain.argmin(force)), inner(-force, after), size


@identity("App. B, one-step bound")
def the_proof_splits_the_linear_loss_in_three(c):
    for psi in c.proximals:
        before, U = c.X, c.Y
        after = psi.step(before, c.G, c.eta, FrobeniusBall(c.size))
        move = psi.gradient(after) - psi.gradient(before)
        parts = inner(move, U - after), inner(-move - c.eta * c.G, U - after), inner(c.eta * c.G, before - after)
        yield c.eta * inner(c.G, before - U), sum(parts), sum(map(abs, parts))


@inequality("App. B, one-step bound")
def one_step(c):  # without a constraint: equality
    for psi in c.proximals:
        left, right, size = [], [], 0.0
        for domain, before, after in steps(c, psi):
            U = domain.project(c.Y)
            terms = psi.divergence(U, before), -psi.divergence(U, after), (c.eta * psi.dual_norm(c.G)) ** 2 / 2
            left.append(c.eta * inner(c.G, before - U))
            right.append(sum(terms))
            size = max(size, *map(abs, terms), c.top * inner(after, after))
        yield numbers(left), numbers(right), size


@inequality("App. B, Young's inequality for matrices")
def young(c):  # with B = H⁻¹A/λ: equality
    for psi, size in itertools.product(c.proximals, (0.3, 1.0, 40.0)):
        lam = size * c.eta**-1
        matrices = c.Y, psi.inverse(c.G) / lam
        left = [inner(c.G, B) for B in matrices]
        yield numbers(left), numbers(psi.dual_norm(c.G) ** 2 / (2 * lam) + lam / 2 * psi.norm(B) ** 2 for B in matrices)


@inequality("App. B, Young's inequality for matrices")
def young_in_the_norms_of_geometries(c):  # with each block of B along A's, of the length ‖A‖*/λ: equality
    lam = c.slope / c.size
    for g in c.geometries:
        along = c.G / g.spread(g.statistic(c.G).sqrt(), c.shape) * g.dual_norm(c.G) / lam
        left = [inner(c.G, B) for B in (c.Y, along)]
        dual = lengths2(g, c.G).sqrt().sum()
        yield numbers(left), numbers(dual**2 / (2 * lam) + lam / 2 * largest(g, B) ** 2 for B in (c.Y, along))


@inequality("§4.1, App. B, strong convexity")
def a_proximal_function_is_1_strongly_convex_in_its_own_norm(c):  # quadratic: equality
    for psi in c.proximals:
        tangent, length = psi.value(c.Y) + inner(psi.gradient(c.Y), c.X - c.Y), psi.norm(c.X - c.Y)
        yield tangent + psi.strong_convexity / 2 * length**2, psi.value(c.X), c.terms


@inequality("Cor. 1, strong convexity")
def in_the_frobenius_norm_it_is_so_by_the_least_eigenvalue(c):  # along that eigenvector: equality
    for psi, H in c.metrics:
        flat = torch.linalg.eigh(H)[1][:, 0].reshape(c.shape[::-1]).T * c.size
        left = [psi.least_curvature() / 2 * inner(Z, Z) for Z in (flat, c.X - c.Y)]
        yield numbers(left), numbers([psi.divergence(flat, 0 * flat), psi.bregman(c.X, c.Y)]), c.terms


@identity("App. B, rearrangement")
def the_sum_of_divergences_telescopes_but_for_the_changes_of_metric(c):
    for _, psis, _ in c.evolutions:
        here = numbers(psi.value(gap) for psi, gap in zip(psis, c.gaps, strict=False))  # B_{ψ_t}(X*; X_t)
        there = numbers(psi.value(gap) for psi, gap in zip(psis, c.gaps[1:], strict=True))  # B_{ψ_t}(X*; X_{t+1})
        yield (here - there).sum(), here[0] - there[-1] + (here[1:] - there[:-1]).sum(), here.sum()
