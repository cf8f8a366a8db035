"""What `EmbeddingBags` is made of: its tables by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

__all__ = ["Mode", "Table", "Tables", "check_tables"]

Mode = Literal["sum", "mean"]


@dataclass(frozen=True)
class Table:
    """One table of `EmbeddingBags`.

    Args:
        rows: how many items it has.
        width: how many numbers each item has.
        mode: how the rows of a bag are pooled, ``"sum"`` or ``"mean"``. None: as the module says.
        features: the names of the features that look it up. None: one feature, with the table's name.
        padding_idx: a row that bags skip, and that is never updated. It starts as zeros.
        dtype: of the table. None: as the module says.
    """

    rows: int
    width: int
    mode: Mode | None = None
    features: tuple[str, ...] | None = None
    padding_idx: int | None = None
    dtype: torch.dtype | None = None


class Tables(nn.Module):
    """The tables by name, whatever the name. PyTorch's `ParameterDict` has no room for one that is called "items"."""

    def __init__(self, tables: Mapping[str, Tensor], padding: Mapping[str, int | None]) -> None:
        super().__init__()
        self._parameters.update({name: nn.Parameter(table) for name, table in tables.items()})
        self.padding = dict(padding)

    def table_holder(self, name: str) -> _Holder:
        """What `resize_table` and `evict` ask about a table."""
        return _Holder(self, name)

    def __getitem__(self, name: str) -> nn.Parameter:
        if name not in self._parameters:
            raise KeyError(f"there is no table {name!r}, only {', '.join(map(repr, self._parameters))}")
        return self._parameters[name]  # type: ignore[return-value]

    def __setitem__(self, name: str, table: nn.Parameter) -> None:
        self[name]  # there is one
        self._parameters[name] = table

    def __setattr__(self, name: str, value: Any) -> None:
        if name in vars(self).get("_parameters", {}) and isinstance(value, nn.Parameter):
            self._parameters[name] = value
        elif name in vars(self):  # such as `training`, which may be the name of a table too
            vars(self)[name] = value
        else:
            super().__setattr__(name, value)

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)

    def keys(self) -> Iterable[str]:
        """The names of the tables."""
        return self._parameters.keys()

    def values(self) -> Iterable[nn.Parameter]:
        """The tables."""
        return self._parameters.values()  # type: ignore[return-value]

    def items(self) -> Iterable[tuple[str, nn.Parameter]]:
        """The tables with their names."""
        return self._parameters.items()  # type: ignore[return-value]


@dataclass
class _Holder:
    tables: Tables
    name: str

    @property
    def padding_idx(self) -> int | None:
        """The row that bags skip."""
        return self.tables.padding[self.name]

    @padding_idx.setter
    def padding_idx(self, row: int | None) -> None:
        self.tables.padding[self.name] = row

    @staticmethod
    def init_rows(rows: Tensor) -> None:
        """How new rows start."""
        rows.normal_()


def check_tables(tables: Mapping[str, Table], mode: Any) -> None:
    """Raise an error unless tables can be made as they are described."""
    seen: set[str] = set()
    for name, own in tables.items():
        if "." in name or not name:
            raise ValueError(
                f"the name of a table must have letters and no dots, since state dicts use it, got {name!r}"
            )
        if own.rows < 0 or own.width < 1:
            raise ValueError(f"the table {name!r} must have rows ≥ 0 and width ≥ 1, got {own.rows} and {own.width}")
        if (own.mode or mode) not in ("sum", "mean"):
            raise ValueError(f"the mode of the table {name!r} must be 'sum' or 'mean', got {own.mode or mode!r}")
        if own.padding_idx is not None and not 0 <= own.padding_idx < own.rows:
            raise ValueError(
                f"padding_idx of the table {name!r} must be one of its {own.rows} rows, got {own.padding_idx}"
            )
        if own.features is not None and (not own.features or isinstance(own.features, str)):
            raise ValueError(f"features of the table {name!r} must be a tuple of names, got {own.features!r}")
        for feature in own.features or (name,):
            if feature in seen:
                raise ValueError(f"the feature {feature!r} reads two tables, or is listed twice: give it another name")
            seen.add(feature)
