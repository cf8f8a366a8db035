"""Geometries that are not partitions, as a user would write them."""

from dataclasses import dataclass

import torch

from matrix_adagrad import Column, Diagonal, Geometry, Row


@dataclass(frozen=True)
class RowPlusColumn(Diagonal):
    """s_ij = √(r_i + c_j), from the squares of row i and of column j: m + n numbers for an m×n matrix."""

    statistics = ("row", "column")

    def statistic_shapes(self, shape):
        return Row().statistic_shape(shape), Column().statistic_shape(shape)

    def measure(self, g):
        return Row().statistic(g), Column().statistic(g)

    def scale(self, row, column):
        return (row + column).sqrt()


@dataclass(frozen=True)
class SumOfPartitions(Diagonal):
    """The same from the partitions alone."""

    statistics, partitions = ("row", "column"), (Row(), Column())

    def scale(self, row, column):
        return (row + column).sqrt()


@dataclass(frozen=True)
class RelativeToMean(SumOfPartitions):
    """s_ij = √(r_i c_j / mean r): the scale of an entry depends on all rows."""

    def scale(self, row, column):
        return (row * column / row.mean()).sqrt()


@dataclass(frozen=True)
class FullRows(Geometry):
    """The paper's ψ_C with a full metric H = (Σ GGᵀ)^½: m² numbers."""

    def statistic_shapes(self, shape):
        return ((shape[0], shape[0]),)

    def entries(self, shape):
        return (shape[1],)

    def measure(self, g):
        return (g @ g.T,)

    def precondition(self, direction, lr, eps, products):
        values, vectors = self._eigen(products)
        return lr * vectors @ ((vectors.T @ direction) / (values + eps)[:, None])

    def weigh(self, x, eps, products):
        values, vectors = self._eigen(products)
        return vectors @ ((values + eps)[:, None] * (vectors.T @ x))

    @staticmethod
    def _eigen(products):
        values, vectors = torch.linalg.eigh(products)
        return values.clamp(min=0).sqrt(), vectors
