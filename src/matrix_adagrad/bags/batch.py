"""A batch of bags of many features, and the gradients of the tables that they read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from matrix_adagrad import native
from matrix_adagrad.bags.gradient import BagGradient, Entries
from matrix_adagrad.torch_private import version_of

__all__ = ["BagBatch", "BagPart", "Feature", "out_of_range", "quoted", "refuse_bags"]


@dataclass(frozen=True)
class Feature:
    """Bags of rows of a table, whose sums are some columns of the output."""

    name: str
    table: int  # its number
    column: int  # of the output, the first
    width: int
    is_mean: bool = False
    table_name: str = ""


@dataclass(frozen=True, eq=False)
class BagBatch:
    """The gradient of a batch: bags of all features, and the gradients of their sums, side by side."""

    index: Tensor
    offsets: Tensor  # the bags of feature f start at offsets[f * bags]
    weights: Tensor | None
    values: Tensor  # (bags, sum of widths)
    features: Sequence[Feature]
    described: Tensor  # as a list of ``struct feature``
    versions: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "versions", self._versions())

    def _versions(self) -> tuple[int, ...]:
        return version_of(self.index), version_of(self.offsets), version_of(self.values)

    @property
    def bags(self) -> int:
        """The bags of each feature."""
        return len(self.values)

    def gradients(self, numbers: Sequence[int], shapes: Sequence[torch.Size]) -> list[BagGradient]:
        """The gradients of the features with these numbers, for tables of these shapes."""
        dtype, device = self.values.dtype, self.values.device
        return [
            BagGradient.of_part(BagPart(self, number, self.features[number].column), shape, dtype, device)
            for number, shape in zip(numbers, shapes, strict=True)
        ]

    def check_versions(self) -> None:
        """Raise an error if torch has seen writes to the lists or to the values since the backward pass."""
        if self._versions() != self.versions:
            raise RuntimeError(BagGradient.CHANGED)

    def check(self) -> None:
        """Raise an error, which names the table, if somebody has written to the lists and torch has not seen it."""
        wrong = native.load().matrix_adagrad_check_bags(
            *(self.described.data_ptr(), len(self.features), self.index.data_ptr(), len(self.index)),
            *(self.offsets.data_ptr(), self.bags, native.threads()),
        )
        if wrong:
            refuse_bags(self.features[wrong - 1], wrong - 1, self.described, self.index, self.offsets)


class BagPart(NamedTuple):
    """A feature of a batch, by its number, and the first column of its values."""

    batch: BagBatch
    number: int
    column: int

    def entries(self) -> Entries:
        """Index, offsets, weights and values of this feature alone."""
        batch, number, bags = self.batch, self.number, self.batch.bags
        batch.check_versions()
        if len(batch.features) == 1:
            return batch.index, batch.offsets, batch.weights, batch.values
        own = batch.offsets[number * bags : (number + 1) * bags + 1]
        first, last = int(own[0]), int(own[-1])
        if first < 0 or last > len(batch.index) or (bags and int(own.diff().min()) < 0):
            refuse_bags(batch.features[number], number, batch.described, batch.index, batch.offsets)
        place, width = slice(first, last), batch.features[number].width
        values = batch.values[:, self.column : self.column + width]
        return batch.index[place], own - own[0], None if batch.weights is None else batch.weights[place], values


def quoted(feature: Feature) -> str:
    """The name of a feature's table in an error, after a space. The single feature of an `EmbeddingBag` has none."""
    return f" {feature.table_name!r}" if feature.table_name else ""


def out_of_range(feature: Feature, rows: int, low: Tensor | int, high: Tensor | int) -> IndexError:
    """The error that says which table, and which feature if it has another name, has bags with other rows."""
    of_feature = f" of {feature.name!r}" if feature.name != feature.table_name else ""
    return IndexError(f"the table{quoted(feature)} has {rows} rows, and its bags{of_feature} have rows {low} to {high}")


def refuse_bags(feature: Feature, number: int, described: Tensor, index: Tensor, offsets: Tensor) -> None:
    """Say why the kernels refuse the bags of a feature, by its number among those that are described."""
    rows, bags = int(described[number, 1]), (len(offsets) - 1) // len(described)
    own, name = offsets[number * bags : (number + 1) * bags + 1], quoted(feature)
    if own[0] < 0 or own[-1] > len(index) or (own.diff() < 0).any():
        raise ValueError(
            f"offsets must never decrease and not exceed the {len(index)} indices, those of the table{name} are "
            f"from {own.min()} to {own.max()}"
        )
    low, high = index[own[0] : own[-1]].aminmax() if own[-1] > own[0] else (0, -1)
    if 0 <= low <= high < rows:
        raise IndexError(
            f"bags of a table with {rows} rows are out of range: were they written to while they were read?"
        )
    raise out_of_range(feature, rows, low, high)
