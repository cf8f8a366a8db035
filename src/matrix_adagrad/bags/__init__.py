"""Embedding bags, and a gradient for them that takes no more memory than the bags."""

from matrix_adagrad.bags.embedding import Embedding
from matrix_adagrad.bags.gradient import BagGradient
from matrix_adagrad.bags.module import EmbeddingBag
from matrix_adagrad.bags.parts import Table
from matrix_adagrad.bags.tables import EmbeddingBags

__all__ = ["BagGradient", "Embedding", "EmbeddingBag", "EmbeddingBags", "Table"]
