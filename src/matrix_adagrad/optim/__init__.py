"""Optimizers for PyTorch."""

from matrix_adagrad.optim.adagrad import ColumnAdaGrad, MatrixAdaGrad, RowAdaGrad
from matrix_adagrad.optim.clip import clip_grad_norm_
from matrix_adagrad.optim.combined import CombinedOptimizer
from matrix_adagrad.optim.explain import state_bytes
from matrix_adagrad.optim.groups import geometry_groups
from matrix_adagrad.optim.in_backward import step_in_backward
from matrix_adagrad.optim.lookups import keep_rows_current
from matrix_adagrad.optim.momentum import ColumnMomentum, MatrixMomentum, RowMomentum
from matrix_adagrad.optim.recipes import matrix_optimizer
from matrix_adagrad.optim.steepest import SteepestDescent

__all__ = [
    "ColumnAdaGrad",
    "ColumnMomentum",
    "CombinedOptimizer",
    "MatrixAdaGrad",
    "MatrixMomentum",
    "RowAdaGrad",
    "RowMomentum",
    "SteepestDescent",
    "clip_grad_norm_",
    "geometry_groups",
    "keep_rows_current",
    "matrix_optimizer",
    "state_bytes",
    "step_in_backward",
]
