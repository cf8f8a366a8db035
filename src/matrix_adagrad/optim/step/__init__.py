"""One update rule and the ways to run it."""

from matrix_adagrad.optim.step.foreach import foreach
from matrix_adagrad.optim.step.reference import reference
from matrix_adagrad.optim.step.rule import Batch, Rule
from matrix_adagrad.optim.step.sparse import sparse

__all__ = ["Batch", "Rule", "foreach", "reference", "sparse"]
