"""The bags of a call of `EmbeddingBags`, in all the forms that it takes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from matrix_adagrad.bags.batch import Feature
from matrix_adagrad.bags.parts import Tables

__all__ = ["TakesBags", "check_ascending", "check_ends"]


class TakesBags:
    """A module whose calls are turned into lists of indices, offsets and weights."""

    tables: Tables
    features: tuple[str, ...]
    _features: list[Feature]

    def _lists(
        self, indices: Any, offsets: Any = None, per_sample_weights: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        weights = per_sample_weights
        if weights is not None and any(feature.is_mean for feature in self._features):
            raise ValueError("per_sample_weights are for tables with mode='sum', and some have mode='mean'")
        if offsets is None:
            if weights is not None:
                raise ValueError("per_sample_weights come with a list of indices and offsets, and offsets are missing")
            if hasattr(indices, "weights_or_none"):
                return self._of_jagged(indices)
            if not isinstance(indices, Mapping):
                raise ValueError(
                    "give indices and offsets, or the bags of each feature by its name: offsets are missing, and "
                    f"indices are a {type(indices).__name__}"
                )
            return *_joined([self._bags_of(name, indices) for name in _ordered(self.features, indices)]), None
        index, starts = self._as_list("indices", indices), self._as_list("offsets", offsets)
        if len(starts) % len(self.features) != 1 % len(self.features) or not len(starts):
            raise ValueError(
                f"offsets must have one number more than {len(self.features)} features times the bags of each, "
                f"got {len(starts)}"
            )
        if weights is not None and weights.shape != index.shape:
            raise ValueError(
                f"per_sample_weights must have one number for each of the {len(index)} indices, got shape "
                f"{tuple(weights.shape)}"
            )
        return index, starts, weights

    def _bags_of(self, name: str, given: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        bags = given[name]
        if isinstance(bags, tuple) and len(bags) == 2:
            index, starts = (
                self._as_list(f"indices of {name!r}", bags[0]),
                self._as_list(f"offsets of {name!r}", bags[1]),
            )
            check_ends(f"offsets of {name!r}", starts, index)
            return index, starts
        matrix = self._as_integers(bags)
        if matrix.dim() != 2 or matrix.is_floating_point():
            raise ValueError(
                f"the bags of {name!r} must be a pair of indices and offsets, or a matrix of integers with a bag in "
                f"each row, got shape {tuple(matrix.shape)} and dtype {matrix.dtype}"
            )
        count, length = matrix.shape
        return matrix.reshape(-1), torch.arange(count + 1, device=matrix.device) * length

    def _as_integers(self, given: Any) -> Tensor:
        """A tensor as it is, or a list, which is where the tables are, whatever the default device is."""
        if isinstance(given, Tensor):
            return given
        found = torch.as_tensor(given, device=next(iter(self.tables.values())).device)
        return found if found.numel() or hasattr(given, "dtype") else found.long()

    def _as_list(self, what: str, given: Any) -> Tensor:
        found = self._as_integers(given)
        if found.dim() != 1 or found.is_floating_point() or found.dtype is torch.bool:
            raise ValueError(
                f"{what} must be a list of integers, got shape {tuple(found.shape)} and dtype {found.dtype}"
            )
        return found

    def _of_jagged(self, jagged: Any) -> tuple[Tensor, Tensor, Tensor | None]:
        """The lists of a `KeyedJaggedTensor`, in the order of our features. As in TorchRec, other keys are ignored."""
        if len(set(jagged.stride_per_key())) > 1:
            raise ValueError(f"all keys need the same number of bags, got {jagged.stride_per_key()} of {jagged.keys()}")
        keys = list(jagged.keys())
        names = _ordered(self.features, {key: None for key in keys if key in self.features})
        if keys != names:
            jagged = jagged.permute([keys.index(name) for name in names])
        return self._lists(jagged.values(), jagged.offsets(), jagged.weights_or_none())


def _ordered(features: Iterable[str], given: Mapping[str, Any]) -> list[str]:
    names = list(features)
    if set(names) != set(given):
        missing, unknown = sorted(set(names) - set(given)), sorted(set(given) - set(names))
        raise ValueError(f"bags must be given for the features {names}: {missing} are missing, {unknown} are unknown")
    return names


def _joined(lists: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    counts = {len(offsets) for _, offsets in lists}
    if len(counts) > 1:
        raise ValueError(f"all features need the same number of bags, got {sorted(count - 1 for count in counts)}")
    starts: Iterator[int] = itertools.accumulate((len(index) for index, _ in lists), initial=0)
    offsets = [own[:-1] + start for (_, own), start in zip(lists, starts, strict=False)]
    index = torch.cat([own for own, _ in lists])
    return index, torch.cat([*offsets, offsets[0].new_tensor([len(index)])])


def check_ends(what: str, starts: Tensor, index: Tensor) -> None:
    """Raise an error unless offsets go from the first index to the last."""
    if starts.is_meta or index.is_meta:
        return
    first, last = (int(starts[0]), int(starts[-1])) if len(starts) else (None, None)
    if first != 0 or last != len(index):
        raise ValueError(f"{what} must go from 0 to the {len(index)} indices, got {first} to {last}")


def check_ascending(starts: Tensor) -> None:
    """Raise an error if a bag ends before it starts."""
    if len(starts) > 1 and (shortest := int(starts.diff().min())) < 0:
        raise ValueError(f"offsets must never decrease, and one is {-shortest} less than the one before")
