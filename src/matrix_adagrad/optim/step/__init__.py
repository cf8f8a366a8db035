"""One update rule and the ways to run it."""

from matrix_adagrad.optim.step.foreach import foreach
from matrix_adagrad.optim.step.reference import reference
from matrix_adagrad.optim.step.rule import Rule
from matrix_adagrad.optim.step.sparse import sparse

__all__ = ["Rule", "foreach", "reference", "sparse"]
