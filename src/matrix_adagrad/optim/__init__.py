"""Optimizers for PyTorch."""

from matrix_adagrad.optim.adagrad import ColumnAdaGrad, MatrixAdaGrad, RowAdaGrad
from matrix_adagrad.optim.groups import geometry_groups
from matrix_adagrad.optim.in_backward import step_in_backward
from matrix_adagrad.optim.momentum import ColumnMomentum, MatrixMomentum, RowMomentum

__all__ = [
    "ColumnAdaGrad",
    "ColumnMomentum",
    "MatrixAdaGrad",
    "MatrixMomentum",
    "RowAdaGrad",
    "RowMomentum",
    "geometry_groups",
    "step_in_backward",
]
