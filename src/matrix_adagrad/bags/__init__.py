"""Embeddings whose rows are summed by bags, and a gradient of theirs that takes no more room than the bags."""

from matrix_adagrad.bags.gradient import BagGradient
from matrix_adagrad.bags.module import EmbeddingBag

__all__ = ["BagGradient", "EmbeddingBag"]
