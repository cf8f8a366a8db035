"""Adaptive optimizers for matrix-shaped parameters, where a whole row or a whole column shares one scale."""

from matrix_adagrad.bags import EmbeddingBag
from matrix_adagrad.geometry import (
    Batched,
    Blocks,
    Column,
    Diagonal,
    Entry,
    Factored,
    Full,
    Geometry,
    Partition,
    Row,
    Spectral,
    Whole,
)
from matrix_adagrad.optim import (
    ColumnAdaGrad,
    ColumnMomentum,
    CombinedOptimizer,
    MatrixAdaGrad,
    MatrixMomentum,
    RowAdaGrad,
    RowMomentum,
    SteepestDescent,
    geometry_groups,
    muon_with_rows,
    step_in_backward,
)
from matrix_adagrad.version import __version__

__all__ = [
    "Batched",
    "Blocks",
    "Column",
    "ColumnAdaGrad",
    "ColumnMomentum",
    "CombinedOptimizer",
    "Diagonal",
    "EmbeddingBag",
    "Entry",
    "Factored",
    "Full",
    "Geometry",
    "MatrixAdaGrad",
    "MatrixMomentum",
    "Partition",
    "Row",
    "RowAdaGrad",
    "RowMomentum",
    "Spectral",
    "SteepestDescent",
    "Whole",
    "__version__",
    "geometry_groups",
    "muon_with_rows",
    "step_in_backward",
]
