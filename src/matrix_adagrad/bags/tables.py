"""Many embedding tables, looked up and updated together."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from matrix_adagrad.bags.batch import Feature, out_of_range
from matrix_adagrad.bags.lookup import Lookup, is_covered, without_padding
from matrix_adagrad.torch_private import is_transformed

__all__ = ["EmbeddingBags", "Table"]

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


class EmbeddingBags(nn.Module):
    r"""Embedding bags of many tables: one native call looks all of them up, and one updates them.

    For the bag :math:`B` of a feature, in the table X that it reads, the output has :math:`\sum_{i \in B} X_i`, or the
    mean. The columns of the first feature come first, then those of the second, and so on, in the order of the tables.
    Gradients are stored once per bag (see `matrix_adagrad.bags.BagGradient`), and every optimizer of this package takes
    them. With `step_in_backward`, all tables are updated by one call in the backward pass, and no gradient is stored.

    The tables are ordinary parameters, ``bags.tables["user"]``: with parameter groups, each may have its own learning
    rate, geometry or domain. The state dict has them by name, ``tables.user``.

    Other devices, `torch.compile`, `torch.func` and `DistributedDataParallel` run PyTorch's own operators, table by
    table. The output is kept for the next call once nobody else holds it, because new memory is slow to get.

    Args:
        tables: by name, a `Table`, or its number of rows and width.
        mode: how bags are pooled, for the tables that do not say.
        device, dtype: of the tables, as in PyTorch.

    Attributes:
        tables: the parameters, by name.
        features: the names of the features, in the order of the output.
        widths: how many columns of the output each feature has.

    Example:
        >>> import torch
        >>> from matrix_adagrad import EmbeddingBags, RowAdaGrad, Table
        >>> bags = EmbeddingBags({"user": (1000, 8), "item": Table(5000, 4, features=("seen", "bought"))})
        >>> optimizer = RowAdaGrad(bags.parameters(), lr=0.1)
        >>> out = bags({"user": [[7], [8]], "seen": [[1, 2, 3], [4, 5, 6]], "bought": [[2], [9]]})
        >>> out.shape  # two bags of each feature
        torch.Size([2, 16])
        >>> out.square().sum().backward()
        >>> optimizer.step()

        The same with all indices in one list, the bags of one feature after those of another:

        >>> indices, offsets = torch.tensor([7, 8, 1, 2, 3, 4, 5, 6, 2, 9]), torch.tensor([0, 1, 2, 5, 8, 9, 10])
        >>> bags(indices, offsets).shape
        torch.Size([2, 16])
    """

    def __init__(
        self,
        tables: Mapping[str, Table | tuple[int, int]],
        mode: Mode = "sum",
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not tables:
            raise ValueError("tables must name at least one table, got none")
        specs = {name: given if isinstance(given, Table) else Table(*given) for name, given in tables.items()}
        _check(specs, mode)
        self.mode, self._specs = mode, specs
        self.tables = Tables(
            {
                name: torch.empty(own.rows, own.width, device=device, dtype=own.dtype or dtype)
                for name, own in specs.items()
            },
            {name: own.padding_idx for name, own in specs.items()},
        )
        self.features = tuple(itertools.chain.from_iterable(own.features or (name,) for name, own in specs.items()))
        self._features, column = [], 0
        for number, (name, own) in enumerate(specs.items()):
            for feature in own.features or (name,):
                is_mean = (own.mode or mode) == "mean"
                self._features.append(Feature(feature, number, column, own.width, is_mean, name))
                column += own.width
        self.widths = tuple(feature.width for feature in self._features)
        self._lookup = Lookup(self._features)
        self.reset_parameters()

    @classmethod
    def from_modules(
        cls,
        modules: Mapping[str, nn.EmbeddingBag] | nn.ModuleDict,
        features: Mapping[str, Sequence[str]] | None = None,
    ) -> EmbeddingBags:
        """The tables of PyTorch's modules, as one module. The parameters are the same objects: optimizers go on.

        Gradients are sparse from now on, whatever the modules had.

        Args:
            modules: by the name of the table, with ``mode="sum"`` or ``"mean"``, without ``max_norm`` and
                ``scale_grad_by_freq``.
            features: the names of the features of a table, for those that do not have one with the table's name.

        Example:
            >>> import torch
            >>> from matrix_adagrad import EmbeddingBags, RowAdaGrad
            >>> user, item = torch.nn.EmbeddingBag(1000, 8, mode="sum"), torch.nn.EmbeddingBag(5000, 4)
            >>> optimizer = RowAdaGrad([user.weight, item.weight], lr=0.1)
            >>> bags = EmbeddingBags.from_modules({"user": user, "item": item}, {"item": ["seen", "bought"]})
            >>> bags
            EmbeddingBags(
              user, seen → item, bought → item
              (tables): Tables()
            )
            >>> bags({"user": [[7]], "seen": [[1, 2]], "bought": [[2]]}).sum().backward()
            >>> optimizer.step()

            A state dict of separate modules is loaded by name:

            >>> saved = torch.nn.ModuleDict({"user": user, "item": item}).state_dict()
            >>> bags.load_state_dict({f"tables.{name}": saved[f"{name}.weight"] for name in bags.tables})
            <All keys matched successfully>
        """
        given, specs, seen = dict(features or {}), {}, dict[int, str]()
        if not given.keys() <= set(modules):
            raise ValueError(f"features names the tables {list(given)}, and the modules are {list(modules)}")
        for name, module in modules.items():
            if not isinstance(module, nn.EmbeddingBag):
                raise TypeError(f"modules[{name!r}] must be an nn.EmbeddingBag, got {type(module).__name__}")
            for option in ("max_norm", "scale_grad_by_freq"):
                value = getattr(module, option)
                if value not in (None, False):
                    raise ValueError(f"modules[{name!r}] has {option}={value}, which EmbeddingBags does not support")
            other = seen.setdefault(id(module.weight), name)
            if other != name:
                raise ValueError(
                    f"modules {other!r} and {name!r} share a table: give one, and features={{{other!r}: [...]}}"
                )
            own = tuple(given[name]) if name in given else None
            (rows, width), mode = module.weight.shape, cast(Mode, module.mode)
            specs[name] = Table(rows, width, mode, own, module.padding_idx, module.weight.dtype)
        bags = cls(specs, device="meta")
        for name, module in modules.items():
            bags.tables[name] = cast(nn.Parameter, module.weight)
        return bags

    def to_modules(self) -> dict[str, nn.EmbeddingBag]:
        """PyTorch's modules by the names of the tables. The parameters are the same objects.

        Gradients are sparse. They take offsets as this module does, with the end of the last bag.

        Example:
            >>> from matrix_adagrad import EmbeddingBags
            >>> bags = EmbeddingBags({"user": (1000, 8), "item": (5000, 4)})
            >>> modules = bags.to_modules()
            >>> modules["item"]
            EmbeddingBag(5000, 4, mode='sum')
            >>> modules["item"].weight is bags.tables["item"]
            True
        """
        modules = {}
        for (name, own), weight in zip(self._specs.items(), self.tables.values(), strict=True):
            options: dict[str, Any] = {"mode": own.mode or self.mode, "padding_idx": self.tables.padding[name]}
            modules[name] = nn.EmbeddingBag.from_pretrained(
                weight.detach(), sparse=True, include_last_offset=True, **options
            )
            modules[name].weight = weight
        return modules

    def reset_parameters(self) -> None:
        """Draw all rows from the standard normal distribution, as PyTorch's module does. Padding rows are zeros."""
        with torch.no_grad():
            for name, table in self.tables.items():
                _Holder.init_rows(table)
                if (row := self.tables.padding[name]) is not None:
                    table[row].zero_()

    def extra_repr(self) -> str:
        """The features, with the tables that they read."""
        names = list(self._specs)
        return ", ".join(
            feature.name if feature.name == names[feature.table] else f"{feature.name} → {names[feature.table]}"
            for feature in self._features
        )

    def forward(
        self,
        indices: Any,
        offsets: Tensor | Sequence[int] | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        """Pool the bags of all features.

        Args:
            indices: the ids of all features, the bags of one feature after those of another. Or a mapping from each
                feature's name to its bags: a pair of indices and offsets, with one offset more than there are bags, or
                a matrix with a bag in each row. Or TorchRec's `KeyedJaggedTensor`.
            offsets: with a list of ids: where each bag starts, and where the last one ends; one more than there are
                features times bags.
            per_sample_weights: with a list of ids: what each row is multiplied by. Tables with ``mode="mean"`` take
                none.

        Returns:
            (bags of a feature, sum of widths).
        """
        index, starts, weights = self._lists(indices, offsets, per_sample_weights)
        tables = list(self.tables.values())
        if not is_covered(tables, [index, starts], weights):
            return self._by_torch(tables, index, starts, weights)
        index, starts = index.long().contiguous(), starts.long().contiguous()
        _check_ends("offsets", starts, index)
        if any(row is not None for row in self.tables.padding.values()):
            _check_ascending(starts)
            index, starts, weights = without_padding(self._padding(), index, starts, weights)
        return self._lookup(tables, index, starts, weights)

    @property
    def features_by_table(self) -> dict[str, tuple[str, ...]]:
        """The names of the features that read each table."""
        return {name: own.features or (name,) for name, own in self._specs.items()}

    def _padding(self) -> list[int | None]:
        rows = list(self.tables.padding.values())
        return [rows[feature.table] for feature in self._features]

    def rows_read(self, *args: Any, **keywords: Any) -> list[tuple[Tensor, Tensor]]:
        """The rows of each table that a call with these arguments reads, for `keep_rows_current`."""
        index, starts, _ = self._lists(*args, **keywords)
        tables, bags = list(self.tables.values()), (len(starts) - 1) // len(self.features)
        ends = starts[::bags].tolist() if bags else [0] * (len(self.features) + 1)
        pairs = zip(self._features, itertools.pairwise(ends), strict=True)
        return [(tables[feature.table], index[first:last]) for feature, (first, last) in pairs]

    def by_feature(self, pooled: Tensor) -> dict[str, Tensor]:
        """The columns of each feature in an output of this module."""
        return dict(zip(self.features, pooled.split(self.widths, dim=1), strict=True))

    # ------------------------------------------------------------------------------------------------- what is given

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
            _check_ends(f"offsets of {name!r}", starts, index)
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

    # ------------------------------------------------------------------------------------------- what is not covered

    def _by_torch(self, tables: Sequence[Tensor], index: Tensor, starts: Tensor, weights: Tensor | None) -> Tensor:
        """The same in PyTorch's operators, feature by feature. Tables of several dtypes are widened at the end."""
        _check_ends("offsets", starts, index)
        if not starts.is_meta:
            _check_ascending(starts)
        # Other devices check rows themselves: a look at them here would wait for the device.
        is_checked = index.is_cpu and not (torch.compiler.is_compiling() or is_transformed())
        count, pooled = (len(starts) - 1) // len(self.features), []
        for i, (feature, padding) in enumerate(zip(self._features, self._padding(), strict=True)):
            own = starts[i * count : (i + 1) * count + 1]
            first, last = (0, len(index)) if starts.is_meta else (int(own[0]), int(own[-1]))
            table = tables[feature.table]
            if is_checked and last > first:
                low, high = index[first:last].aminmax()
                if low < 0 or high >= len(table):
                    raise out_of_range(feature, len(table), low, high)
            pooled.append(
                functional.embedding_bag(
                    index[first:last],
                    table,
                    own - own[0],
                    mode="mean" if feature.is_mean else "sum",
                    sparse=True,
                    per_sample_weights=None if weights is None else weights[first:last].to(table.dtype),
                    include_last_offset=True,
                    padding_idx=padding,
                )
            )
        widest = pooled[0].dtype
        for part in pooled:
            widest = torch.promote_types(widest, part.dtype)
        return torch.cat([part.to(widest) for part in pooled], dim=1)


def _check(tables: Mapping[str, Table], mode: Any) -> None:
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


def _check_ends(what: str, starts: Tensor, index: Tensor) -> None:
    if starts.is_meta or index.is_meta:
        return
    first, last = (int(starts[0]), int(starts[-1])) if len(starts) else (None, None)
    if first != 0 or last != len(index):
        raise ValueError(f"{what} must go from 0 to the {len(index)} indices, got {first} to {last}")


def _check_ascending(starts: Tensor) -> None:
    if len(starts) > 1 and (shortest := int(starts.diff().min())) < 0:
        raise ValueError(f"offsets must never decrease, and one is {-shortest} less than the one before")
