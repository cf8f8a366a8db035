"""Random matrices, metrics and gradients of every size, and what the statements say of them without the library."""

import functools
import itertools
import math
import zlib
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from matrix_adagrad.domains import Box, ColumnBalls, FrobeniusBall, RowBalls, RowSimplex
from matrix_adagrad.geometry import Blocks, Column, Entry, Full, Geometry, Row, Spectral, Whole
from matrix_adagrad.online import AdaGrad, ColumnWise, Proximal, RowWise, Scaled, Vectorised
from matrix_adagrad.online.solver import inner

GEOMETRIES = (Row(), Column(), Entry(), Whole(), Blocks(rows=2), Blocks(rows=2, columns=2))


@dataclass(frozen=True)
class Case:
    """Random matrices, metrics and gradients; all of them follow from what the case says of itself."""

    shape: tuple[int, int]
    size: float = 1.0  # of decisions
    slope: float = 1.0  # of gradients
    weight: float = 1.0  # of metrics
    condition: float = 100.0
    full: bool = True
    kind: str = "random"
    rounds: int = 8  # so many that full metrics of gradients have full rank

    def draw(self, name, *shape):
        random = torch.Generator().manual_seed(zlib.crc32(f"{self} {name}".encode()))
        return torch.randn(shape or self.shape, dtype=torch.float64, generator=random)

    def __getattr__(self, name):
        """Decisions X, Y, Z, a gradient G, and metrics C of rows, D of columns, B of all entries."""
        if name not in {*"XYZGCDB"}:
            raise AttributeError(name)
        if name in "CDB":
            value = self.metric(name, {"C": self.shape[0], "D": self.shape[1], "B": math.prod(self.shape)}[name])
        else:
            value = (self.slope if name == "G" else self.size) * self.draw(name)
        return self.__dict__.setdefault(name, value)

    @property
    def eta(self):
        """A step size at which a step is about as long as a decision."""
        return self.size * self.weight / self.slope

    @property
    def delta(self):
        return 1e-8 * self.slope

    @property
    def top(self):
        """The largest eigenvalue of the metrics: products with them round to its size."""
        return self.weight * math.sqrt(self.condition)

    @functools.cached_property
    def terms(self):
        """The size of the terms in ⟨X, HX⟩, ⟨Y, HY⟩ and ⟨X, HY⟩."""
        return self.top * (inner(self.X, self.X) + inner(self.Y, self.Y))

    def metric(self, name, n):
        """A positive definite matrix of the case's condition number."""
        half = math.log10(self.condition) / 2
        values = self.weight * torch.logspace(-half, half, n, dtype=torch.float64)
        if not self.full:
            return values[self.draw(name, n).argsort()].diag()
        turn = torch.linalg.qr(self.draw(name, n, n))[0]
        return ((turn * values) @ turn.T + ((turn * values) @ turn.T).T) / 2

    def given(self, metric):
        """The metric as the library takes it: a diagonal one as a vector."""
        return metric if self.full else metric.diagonal()

    @functools.cached_property
    def metrics(self):
        """Every kind of proximal function, with the matrix that it multiplies the stacked columns of X by."""
        (m, n), geometry = self.shape, self.geometries[zlib.crc32(repr(self).encode()) % len(self.geometries)]
        scale = replace(self, full=False).metric("s", geometry.scales(self.shape)).diagonal()
        each = scale.reshape(geometry.statistic_shape(self.shape))
        return [
            (RowWise(self.given(self.C)), torch.kron(eye(n), self.C)),
            (ColumnWise(self.given(self.D)), torch.kron(self.D, eye(m))),
            (Vectorised(self.given(self.B)), self.B),
            (Scaled(each, geometry), vec(geometry.spread(each, self.shape).expand(self.shape)).diag()),
        ]

    @property
    def proximals(self):
        return [psi for psi, _ in self.metrics]

    def domains(self, psi):
        """Sets of the decisions' size. A full metric that turns a set needs a solver, whose steps take time."""
        size = self.size
        sets = (FrobeniusBall(size), RowBalls(size), ColumnBalls(size), Box(-size / 2, size), RowSimplex(size))
        turned = getattr(psi, "metric", torch.empty(0)).dim() == 2
        # At a condition of 1e6 it gives up; and it starts with a curvature of 1: 1e-100 is 2000 steps away.
        solved = self.condition <= 100 and self.weight >= 1 and (self.kind == "random" or self.shape == (3, 5))
        return [d for d in sets if solved or not turned or d.is_invariant(psi.mixes, self.shape)]

    @functools.cached_property
    def geometries(self):
        m, n = self.shape
        return [g for g in GEOMETRIES if not isinstance(g, Blocks) or m % (g.rows or 1) == n % (g.columns or 1) == 0]

    @functools.cached_property
    def grads(self):
        grads = self.slope * self.draw("grads", self.rounds, *self.shape)
        if self.kind == "growing":  # by little, and by far in the end
            grads = self.slope * grads.sign() * 1.02 ** torch.arange(self.rounds, dtype=torch.float64)[:, None, None]
        if self.kind == "sparse":
            grads[:, ::2], grads[-1] = 0, 0
        return grads

    @functools.cached_property
    def gaps(self):
        """X* - X_t in rounds 1 to T + 1; in an aligned case every entry is equally far, in every round."""
        gaps = self.draw("gaps", self.rounds + 1, *self.shape)
        return self.size * (gaps.sign() if self.kind == "aligned" else gaps)

    @functools.cached_property
    def adagrads(self):
        """For each geometry the proximal functions ψ_1, ..., ψ_T of AdaGrad, and s_1, ..., s_T by the definition."""
        totals = {g: lengths2(g, self.grads).cumsum(0).sqrt() + self.delta for g in self.geometries}
        schemes = {g: AdaGrad(g, self.delta) for g in self.geometries}
        return [Evolution(g, [schemes[g].observe(grad) for grad in self.grads], totals[g]) for g in self.geometries]

    @functools.cached_property
    def evolutions(self):
        """Those, and full metrics for rows and for columns."""
        evolutions = []
        for side in ("row", "column"):
            scheme, scales = AdaGrad(Full(side), self.delta), full_roots(side, self.grads)[None] + self.delta
            evolutions.append(Evolution(None, [scheme.observe(grad) for grad in self.grads], scales))
        return self.adagrads + evolutions


class Evolution(NamedTuple):
    geometry: Geometry | None
    proximals: list[Proximal]
    scales: torch.Tensor  # s_1, ..., s_T by their definition; of a full metric the last round's eigenvalues alone


def eye(n):
    return torch.eye(n, dtype=torch.float64)


def vec(x):
    return x.T.reshape(-1)


def lengths2(geometry, x):
    """The squared lengths of the blocks of one or many matrices, without the library: all geometries are grids."""
    *many, m, n = x.shape
    grids = {Row(): (m, 1), Column(): (1, n), Entry(): (m, n), Whole(): (1, 1)}
    a, b = grids.get(geometry) or (geometry.rows or m, geometry.columns or n)
    return x.reshape(*many, a, m // a, b, n // b).square().sum((-3, -1)).flatten(-2)


def full_roots(side, grads):
    """The roots of the eigenvalues of ΣGGᵀ, or of ΣGᵀG: singular values of the gradients side by side."""
    stacked = torch.cat([*grads], 1).T if side == "row" else torch.cat([*grads])
    roots = torch.linalg.svdvals(stacked)
    roots = torch.cat([roots, roots.new_zeros(stacked.shape[1] - len(roots))])
    # An eigenvalue 0 of a sum of products comes out as rounding, and counts as much.
    return roots.clamp_min(math.sqrt(len(roots) * torch.finfo(roots.dtype).eps) * float(roots.max()))


def largest(geometry, x):
    """max_b ‖X_b‖₂, or σ_max: the norm of the geometry, over one or many matrices."""
    if isinstance(geometry, Spectral):
        return float(torch.linalg.matrix_norm(x, 2).max())
    return float(lengths2(geometry, x).max().sqrt())


def numbers(values):
    return torch.tensor([float(value) for value in values], dtype=torch.float64)


def dual2(psis, grads):
    return numbers(psi.dual_norm(grad) ** 2 for psi, grad in zip(psis, grads, strict=True))


SHAPES = ((1, 1), (1, 7), (7, 1), (3, 5), (5, 3), (6, 4), (8, 8))
SIZES = ((1.0, 1.0, 1.0), (1e-150, 1e150, 1.0), (1e100, 1e-150, 1.0), (1e-8, 1e8, 1e8), (1e8, 1e-8, 1e-100))
METRICS = ((100.0, True), (1e6, False), (1e6, True), (1.0, False))
MATRICES = [
    Case(shape, *sizes, *METRICS[(i + j) % 4])
    for (i, shape), (j, sizes) in itertools.product(enumerate(SHAPES), enumerate(SIZES))
]
MATRICES += [Case(shape, kind=kind) for shape in SHAPES for kind in ("aligned", "sparse")]
MATRICES += [Case((6, 4), kind="growing", rounds=300), Case((1, 1), kind="growing", rounds=300)]
