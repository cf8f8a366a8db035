"""Convex sets for parameters, with exact projections in a geometry's metric."""

import torch

from matrix_adagrad.domains.balls import Balls, ColumnBalls, FrobeniusBall, RowBalls
from matrix_adagrad.domains.base import Domain
from matrix_adagrad.domains.boxes import Box, NonNegative, WholeSpace
from matrix_adagrad.domains.product import RowProduct
from matrix_adagrad.domains.simplices import ColumnSimplex, L1Ball, L1Balls, RowSimplex, Simplices

# As with geometries: parameter groups saved as they are can be loaded with weights_only=True.
torch.serialization.add_safe_globals(
    [
        *(Balls, FrobeniusBall, RowBalls, ColumnBalls),
        *(Simplices, RowSimplex, ColumnSimplex, L1Balls, L1Ball),
        *(Box, NonNegative, WholeSpace, RowProduct),
    ]
)

__all__ = [
    "Balls",
    "Box",
    "ColumnBalls",
    "ColumnSimplex",
    "Domain",
    "FrobeniusBall",
    "L1Ball",
    "L1Balls",
    "NonNegative",
    "RowBalls",
    "RowProduct",
    "RowSimplex",
    "Simplices",
    "WholeSpace",
]
