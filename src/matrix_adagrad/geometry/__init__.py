"""How a tensor is measured: the idea that everything else in this package builds on."""

from matrix_adagrad.geometry.base import Diagonal, Geometry, Shape, Unscaled
from matrix_adagrad.geometry.factored import Factored
from matrix_adagrad.geometry.full import Full, RootWarning
from matrix_adagrad.geometry.names import as_geometry, as_partition
from matrix_adagrad.geometry.partitions import Batched, Blocks, Column, Entry, Partition, Row, Whole
from matrix_adagrad.geometry.spectral import Spectral
from matrix_adagrad.geometry.squares import lean_sum_squares, sum_squares, wide_dtype

__all__ = [
    "Batched",
    "Blocks",
    "Column",
    "Diagonal",
    "Entry",
    "Factored",
    "Full",
    "Geometry",
    "Partition",
    "RootWarning",
    "Row",
    "Shape",
    "Spectral",
    "Unscaled",
    "Whole",
    "as_geometry",
    "as_partition",
    "lean_sum_squares",
    "sum_squares",
    "wide_dtype",
]
