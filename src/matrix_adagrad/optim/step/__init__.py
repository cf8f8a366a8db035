"""One update rule and the ways to run it."""

from matrix_adagrad.optim.step.confine import confine
from matrix_adagrad.optim.step.foreach import foreach
from matrix_adagrad.optim.step.fused import fused
from matrix_adagrad.optim.step.reference import reference
from matrix_adagrad.optim.step.rule import Batch, Rule
from matrix_adagrad.optim.step.sparse import sparse
from matrix_adagrad.optim.step.way import ways_to_run

__all__ = ["Batch", "Rule", "confine", "foreach", "fused", "reference", "sparse", "ways_to_run"]
