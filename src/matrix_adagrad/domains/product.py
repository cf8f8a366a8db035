"""Different sets for different rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from matrix_adagrad.domains.base import Domain
from matrix_adagrad.geometry import Geometry, Shape, as_geometry

__all__ = ["RowProduct"]


@dataclass(frozen=True)
class RowProduct(Domain):
    """The first rows in one set, the next in another. Each part is a pair: a number of rows, and their set.

    Example:
        Two rows of bounded norm together, then three rows that are distributions:

        >>> import torch
        >>> from matrix_adagrad.domains import FrobeniusBall, RowSimplex
        >>> domain = RowProduct(((2, FrobeniusBall(1.0)), (3, RowSimplex())))
        >>> y = domain.project(torch.ones(5, 4))
        >>> round(y[:2].norm().item(), 6), y[2:].sum(1)
        (1.0, tensor([1., 1., 1.]))
    """

    parts: tuple[tuple[int, Domain], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(self.parts))
        for part in self.parts:
            if not isinstance(part, tuple) or len(part) != 2:
                raise TypeError(f"RowProduct: each part must be a pair of a number of rows and a Domain, got {part!r}")
            rows, domain = part
            if isinstance(rows, bool) or not isinstance(rows, int) or rows < 0:
                raise ValueError(f"RowProduct: a number of rows must be an int, at least 0, got {rows!r}")
            if not isinstance(domain, Domain):
                raise TypeError(
                    f"RowProduct: each part must be a pair of a number of rows and a Domain, got {domain!r}"
                )

    def project(self, x: Tensor, scale: Tensor | float = 1.0) -> Tensor:
        s = torch.as_tensor(scale, device=x.device)
        rows_share = s.dim() < x.dim() or s.shape[0] == 1
        return self._each(x, lambda domain, rows: domain.project(x[rows], s if rows_share else s[rows]))

    def excess(self, x: Tensor) -> Tensor:
        self.check_fits("a tensor", x)
        return torch.stack([domain.excess(x[rows]) for domain, rows in self._slices() if rows.stop > rows.start]).amax()

    def argmin(self, g: Tensor) -> Tensor:
        return self._each(g, lambda domain, rows: domain.argmin(g[rows]))

    def diameter(self, geometry: Geometry | str, shape: Shape) -> float:
        geometry = as_geometry(geometry).norm_partition
        if geometry.cut(shape)[0] != shape[0]:
            raise ValueError(f"{geometry!r} groups rows, which may lie in different parts of a RowProduct")
        widths = [domain.diameter(geometry, (rows, *shape[1:])) for rows, domain in self.parts if rows]
        if 0 in geometry.dims(shape):  # a block spans all parts, which are independent
            return math.sqrt(math.fsum(width**2 for width in widths))
        return max(widths, default=0.0)

    def check_fits(self, name: str, x: Tensor) -> None:
        if x.dim() == 0 or sum(rows for rows, _ in self.parts) != len(x):
            counts = " + ".join(str(rows) for rows, _ in self.parts)
            raise ValueError(f"{name} has shape {tuple(x.shape)}, and the parts of its RowProduct have {counts} rows")
        for domain, rows in self._slices():
            domain.check_fits(name, x[rows])

    def is_separable_by_rows(self, shape: Shape) -> bool:
        return all(domain.is_separable_by_rows((rows, *shape[1:])) for rows, domain in self.parts)

    def of_rows(self, rows: Tensor, shape: Shape) -> Domain:
        parts = []
        for domain, part in self._slices():
            first, last = torch.searchsorted(rows, torch.tensor([part.start, part.stop], device=rows.device)).tolist()
            inside = domain.of_rows(rows[first:last] - part.start, (part.stop - part.start, *shape[1:]))
            parts.append((last - first, inside))
        return RowProduct(tuple(parts))

    def _slices(self) -> Iterator[tuple[Domain, Any]]:
        start = 0
        for rows, domain in self.parts:
            yield domain, slice(start, start + rows)
            start += rows

    def _each(self, x: Tensor, work: Callable[[Domain, Any], Tensor]) -> Tensor:
        self.check_fits("a tensor", x)
        parts = [work(domain, rows) for domain, rows in self._slices() if rows.stop > rows.start]
        return torch.cat(parts) if parts else x
