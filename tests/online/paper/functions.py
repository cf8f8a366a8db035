"""§2, App. A, C and D: proximal functions, their divergences and their norms."""

import math

import torch

from matrix_adagrad.online import ColumnWise, RowWise, Scaled, Vectorised
from matrix_adagrad.online.solver import inner
from tests.online.paper.cases import eye, numbers, vec
from tests.online.paper.statements import identity, inequality


@identity("§2")
def the_inner_product_sums_over_entries_rows_columns_and_is_a_trace(c):
    size = c.X.norm() * c.Y.norm()
    yield inner(c.X, c.Y), sum(x * y for x, y in zip(vec(c.X).tolist(), vec(c.Y).tolist(), strict=True)), size
    yield inner(c.X, c.Y), sum(torch.dot(x, y) for x, y in zip(c.X, c.Y, strict=True)), size
    yield inner(c.X, c.Y), sum(torch.dot(x, y) for x, y in zip(c.X.T, c.Y.T, strict=True)), size
    yield inner(c.X, c.Y), (c.X.T @ c.Y).trace(), size


@identity("§2.1")
def a_vectors_proximal_function_is_a_double_sum(c):
    x = c.X[:, :1]
    yield Vectorised(c.given(c.C)).value(x), 0.5 * torch.einsum("ij,i,j", c.C, x[:, 0], x[:, 0]), c.top * inner(x, x)


@identity("§2")
def a_proximal_function_is_half_the_squared_norm(c):
    for psi, H in c.metrics:
        yield psi.value(c.X), 0.5 * torch.einsum("i,ij,j", vec(c.X), H, vec(c.X)), c.terms
        yield psi.norm(c.X), math.sqrt(2 * psi.value(c.X))


@identity("§2.2, App. A.1")
def the_row_wise_function_weights_inner_products_of_rows(c):
    psi = RowWise(c.given(c.C))
    yield psi.gradient(c.X), torch.stack([sum(c.C[i, j] * c.X[j] for j in range(len(c.C))) for i in range(len(c.C))])
    yield psi.value(c.X), 0.5 * torch.einsum("ij,ik,jk", c.C, c.X, c.X), c.terms


@identity("§2.3, App. A.2")
def the_column_wise_function_weights_inner_products_of_columns(c):
    psi = ColumnWise(c.given(c.D))
    columns = [sum(c.D[i, j] * c.X[:, i] for i in range(len(c.D))) for j in range(len(c.D))]
    yield psi.gradient(c.X), torch.stack(columns, 1)
    yield psi.value(c.X), 0.5 * torch.einsum("ij,ki,kj", c.D, c.X, c.X), c.terms


@identity("§2")
def the_identity_metric_gives_half_the_squared_frobenius_norm(c):
    m, n = c.shape
    for psi in (RowWise(eye(m)), ColumnWise(eye(n)), Vectorised(eye(m * n)), Scaled(eye(1), "whole")):
        yield psi.value(c.X), 0.5 * torch.linalg.matrix_norm(c.X) ** 2


@identity("§2")
def a_diagonal_metric_weights_each_row_or_column_alone(c):
    rows, columns = c.C.diagonal(), c.D.diagonal()
    yield RowWise(rows).value(c.X), 0.5 * sum(s * torch.dot(x, x) for s, x in zip(rows, c.X, strict=True))
    yield ColumnWise(columns).value(c.X), 0.5 * sum(s * torch.dot(x, x) for s, x in zip(columns, c.X.T, strict=True))
    yield Scaled(rows[:, None], "row").value(c.X), RowWise(rows).value(c.X)
    yield Scaled(columns[None], "column").value(c.X), ColumnWise(columns).value(c.X)


@identity("§2.1 with §2.2 and §2.3")
def the_vectorised_function_of_a_kronecker_productis_row_or_column_wise(c):
    m, n = c.shape
    yield Vectorised(torch.kron(eye(n), c.C)).value(c.X), RowWise(c.given(c.C)).value(c.X), c.terms
    yield Vectorised(torch.kron(c.D, eye(m))).value(c.X), ColumnWise(c.given(c.D)).value(c.X), c.terms


@identity("§4.1")
def the_gradient_is_the_metric_times_x(c):
    for psi, H in c.metrics:
        x = c.X.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(0.5 * vec(x) @ H @ vec(x), x)
        yield psi.gradient(c.X), gradient, c.top * c.X.norm()


@identity("App. C")
def the_divergence_has_a_compact_form(c):
    for psi, H in c.metrics:
        gap = vec(c.X - c.Y)
        yield psi.bregman(c.X, c.Y), psi.divergence(c.X, c.Y), c.terms
        yield psi.divergence(c.X, c.Y), 0.5 * gap @ H @ gap, c.terms


@identity("§4.1, App. C")
def the_divergence_in_trace_form(c):
    def trace(A, B):
        return (A.T @ c.C @ B).trace()

    X, Y, psi = c.X, c.Y, RowWise(c.given(c.C))
    yield psi.bregman(X, Y), trace(X, X) / 2 - trace(Y, Y) / 2 - trace(Y, X - Y), c.terms
    yield psi.divergence(X, Y), trace(X - Y, X - Y) / 2, c.terms


@inequality("App. D")
def the_dual_norm_is_the_least_upper_bound(c):  # attained at X = H⁻¹G
    for psi in c.proximals:
        for G in (c.G, psi.gradient(c.Y)):
            best = psi.inverse(G)
            tried = [inner(G, X) / psi.norm(X) for X in (c.X, c.Y, c.Z, best)]
            yield numbers(tried), psi.dual_norm(G), c.top * best.norm() / psi.dual_norm(G) * best.norm()


@identity("App. D")
def the_dual_norm_is_that_of_the_inverse_metric(c):
    for psi, H in c.metrics:
        for G in (c.G, psi.gradient(c.Y)):  # a rounding of H is seen at the size of H⁻¹G: for HY it is as small as Y
            size = c.top * psi.inverse(G).norm() / psi.dual_norm(G) * psi.inverse(G).norm()
            yield psi.dual_norm(G), math.sqrt(vec(G) @ torch.linalg.solve(H, vec(G))), size
            yield psi.dual_norm(G), math.sqrt(vec(G) @ torch.linalg.inv(H) @ vec(G)), size


@identity("App. D")
def the_norm_is_the_frobenius_norm_behind_the_root_of_the_metric(c):
    for psi, H in c.metrics:
        values, vectors = torch.linalg.eigh(H)
        behind = (vectors * values.sqrt()) @ vectors.T @ vec(c.X)
        yield psi.norm(c.X) ** 2, behind.square().sum(), c.terms
