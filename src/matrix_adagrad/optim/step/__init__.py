"""One update rule and the ways to run it."""

from matrix_adagrad.optim.step.confine import confine
from matrix_adagrad.optim.step.foreach import foreach
from matrix_adagrad.optim.step.fused import fused
from matrix_adagrad.optim.step.reference import reference
from matrix_adagrad.optim.step.rule import Batch, Parts, Rule, are_plain, seen
from matrix_adagrad.optim.step.sparse import sparse
from matrix_adagrad.optim.step.way import way_in_parts, ways_to_run

__all__ = [
    "Batch",
    "Parts",
    "Rule",
    "are_plain",
    "confine",
    "foreach",
    "fused",
    "reference",
    "seen",
    "sparse",
    "way_in_parts",
    "ways_to_run",
]
