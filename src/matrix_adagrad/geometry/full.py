r"""The paper's proximal functions with a full metric, which couples rows or columns.

.. math:: \psi_C(X) = \tfrac12 \langle X, H X \rangle, \quad H = \big(\textstyle\sum_k G_k G_k^\top\big)^{1/2}
    \qquad\text{or}\qquad
    \psi_D(X) = \tfrac12 \langle X, X H \rangle, \quad H = \big(\textstyle\sum_k G_k^\top G_k\big)^{1/2}

The diagonal of the first is `Row`, that of the second `Column`.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, fields
from typing import Literal

import torch
from torch import Tensor

from matrix_adagrad.geometry.base import Geometry, Shape
from matrix_adagrad.geometry.partitions import Batched, Partition, Whole
from matrix_adagrad.geometry.spectral import Spectral
from matrix_adagrad.geometry.squares import wide_dtype

__all__ = ["Full", "RootWarning"]

Side = Literal["row", "column", "smaller"]


class RootWarning(UserWarning):
    """The root of a metric could not be computed, and that of its diagonal was taken instead."""


@dataclass(frozen=True, repr=False)
class Full(Geometry):
    """A full metric for one side of a matrix: one-sided Shampoo with the square root, or ASGO. It keeps k² numbers.

    Tensors of more than two dimensions are batches of matrices. Vectors and scalars are scaled entry by entry.

    The metric needs an eigendecomposition, which costs O(k³). Eigenvalues below the rounding error of the largest one
    are raised to that error. If a decomposition fails, say because products overflowed, a `RootWarning` says so, and
    the metric's diagonal is used until the next one.

    Args:
        side: ``"row"`` for H on the left, m×m; ``"column"`` for H on the right, n×n; ``"smaller"`` for the smaller one.
        every: the number of steps from one decomposition to the next. Above 1, eigenvalues and eigenvectors are kept:
            k² + k numbers more.
        block: the largest side that is taken as a whole. A larger one is cut into equal blocks of neighbouring rows or
            columns, which are not coupled with each other.

    Example:
        >>> Full("row").statistic_shapes((6, 4)), Full("smaller").statistic_shapes((6, 4))
        (((1, 6, 6),), ((1, 4, 4),))
        >>> Full("row", block=512).statistic_shapes((1024, 64))
        ((2, 512, 512),)
    """

    side: Side = "smaller"
    every: int = 1
    block: int = 2048

    def __repr__(self) -> str:
        changed = [f"{f.name}={getattr(self, f.name)}" for f in fields(self)[1:] if getattr(self, f.name) != f.default]
        return f"Full({', '.join([repr(self.side), *changed])})"

    def __post_init__(self) -> None:
        if self.side not in ("row", "column", "smaller"):
            raise ValueError(f"Full: side must be 'row', 'column' or 'smaller', got {self.side!r}")
        for name in ("every", "block"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"Full: {name} must be an int, got {value!r}")
            if value < 1:
                raise ValueError(f"Full: {name} must be at least 1, got {value}")

    def independent_blocks(self, shape: Shape) -> Partition:
        return Batched(Whole())

    @property
    def transpose(self) -> Full:
        other: Side = {"row": "column", "column": "row", "smaller": "smaller"}[self.side]  # type: ignore[assignment]
        return Full(other, self.every, self.block)

    def is_row(self, shape: Shape) -> bool:
        return self.side == "row" or (self.side == "smaller" and shape[-2] <= shape[-1])

    def _grid(self, shape: Shape) -> tuple[int, int]:
        """How many blocks there are, and their size."""
        size = shape[-2] if self.is_row(shape) else shape[-1]
        blocks = max(1, math.ceil(size / self.block))
        return blocks, math.ceil(size / blocks)

    def statistic_shapes(self, shape: Shape) -> tuple[tuple[int, ...], ...]:
        blocks, size = self._grid(shape)
        return ((*shape[:-2], blocks, size, size),)

    def entries(self, shape: Shape) -> tuple[int, ...]:
        return (shape[-1] if self.is_row(shape) else shape[-2],)

    def measure(self, g: Tensor) -> tuple[Tensor, ...]:
        blocks = self._blocks(g)
        return (blocks @ blocks.mH,)

    def precondition(self, direction: Tensor, lr: float | Tensor, eps: float, *statistics: Tensor) -> Tensor:
        roots, vectors = self._decomposed(statistics)
        s = roots[..., None] + eps
        return self._multiplied(direction, vectors, torch.where(s == 0, 0, lr / torch.where(s == 0, 1, s)))

    def weigh(self, x: Tensor, eps: float, *statistics: Tensor) -> Tensor:
        roots, vectors = self._decomposed(statistics)
        return self._multiplied(x, vectors, roots[..., None] + eps)

    @property
    def regret_geometry(self) -> Spectral:
        return Spectral(steps=None)

    def eigenvalues(self, *statistics: Tensor) -> Tensor:
        return self.derive(*statistics)[0].flatten()

    def one_sided(self, shape: Shape, *statistics: Tensor) -> tuple[int, Tensor, Tensor] | None:
        if len(shape) != 2 or self._grid(shape)[0] != 1:  # several matrices
            return None
        (roots,), (vectors,) = self.derive(*statistics)
        return (0 if self.is_row(shape) else 1), roots, vectors

    # ------------------------------------------------------------------------------------------------------ its root

    @property
    def derived(self) -> tuple[str, ...]:
        return ("roots", "vectors") if self.every > 1 else ()

    def derived_shapes(self, shape: Shape) -> tuple[tuple[int, ...], ...]:
        (square,) = self.statistic_shapes(shape)
        return (square[:-1], square) if self.every > 1 else ()

    def derive(self, *statistics: Tensor) -> tuple[Tensor, ...]:
        """The eigenvalues of H and its eigenvectors."""
        (products,) = statistics
        values, vectors = _eigh(products)
        found = values.isfinite().all(-1)  # infinite products may also raise no error
        self._warn_unless(found, products)
        rounding = values.shape[-1] * torch.finfo(values.dtype).eps * values[..., -1:].clamp(min=0)
        diagonal = products.diagonal(dim1=-2, dim2=-1).real
        values = torch.where(found[..., None], torch.maximum(values, rounding), diagonal.clamp(min=0))
        identity = torch.eye(values.shape[-1]).to(products)
        return values.sqrt(), torch.where(found[..., None, None], vectors, identity)

    def _warn_unless(self, found: Tensor, products: Tensor) -> None:
        is_readable = type(products) is Tensor and not products.is_meta  # a compiled step warns of nothing
        if torch.compiler.is_compiling() or not is_readable or found.all():
            return
        warnings.warn(
            f"{self!r}: no eigendecomposition of {found.numel() - int(found.sum())} of {found.numel()} "
            f"{products.shape[-1]}×{products.shape[-1]} metrics; the diagonal is taken "
            f"{'for this step' if self.every == 1 else f'until the next one, after {self.every} steps'}. "
            "Are there gradients whose squares are infinite?",
            RootWarning,
            stacklevel=3,
        )

    def _decomposed(self, statistics: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        roots, vectors = statistics[1:] if len(statistics) > 1 else self.derive(*statistics)
        return roots, vectors

    def _multiplied(self, x: Tensor, vectors: Tensor, factors: Tensor) -> Tensor:
        """V · diag(factors) · Vᵀ · x, block by block."""
        blocks: Tensor = vectors @ (factors * (vectors.mH @ self._blocks(x)))
        matrix = blocks.flatten(-3, -2)
        if self.is_row(x.shape):
            return matrix[..., : x.shape[-2], :]
        return matrix[..., : x.shape[-1], :].mH

    def _blocks(self, x: Tensor) -> Tensor:
        """The matrix with the side's entries as rows, cut into blocks; the last one is padded with zeros."""
        x = x.to(wide_dtype(x.dtype))
        matrix = x if self.is_row(x.shape) else x.mH
        blocks, size = self._grid(x.shape)
        padding = blocks * size - matrix.shape[-2]
        matrix = torch.nn.functional.pad(matrix, (0, 0, 0, padding)) if padding else matrix
        return matrix.reshape(*x.shape[:-2], blocks, size, matrix.shape[-1])


def _eigh(products: Tensor) -> tuple[Tensor, Tensor]:
    """The eigenvalues and eigenvectors of each matrix of a batch, and NaN where they cannot be computed."""
    try:
        values, vectors = torch.linalg.eigh(products)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        if products.dim() == 2:  # the others of a batch are not to blame
            return torch.full_like(products[0], torch.nan), torch.full_like(products, torch.nan)
        decomposed = [_eigh(matrix) for matrix in products]
        values, vectors = (torch.stack(part) for part in zip(*decomposed, strict=True))
    return values, vectors


torch.serialization.add_safe_globals([Full])  # for wrappers that save parameter groups as they are
