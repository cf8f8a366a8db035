"""Many embedding tables, looked up and updated together."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from matrix_adagrad.bags.arguments import TakesBags, check_ascending, check_ends
from matrix_adagrad.bags.batch import Feature, out_of_range
from matrix_adagrad.bags.lookup import Lookup, is_covered, without_padding
from matrix_adagrad.bags.parts import Mode, Table, Tables, check_tables
from matrix_adagrad.torch_private import is_transformed

__all__ = ["EmbeddingBags"]


class EmbeddingBags(TakesBags, nn.Module):
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
        check_tables(specs, mode)
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
                self.tables.table_holder(name).init_rows(table)
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
        check_ends("offsets", starts, index)
        if any(row is not None for row in self.tables.padding.values()):
            check_ascending(starts)
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

    # ------------------------------------------------------------------------------------------- what is not covered

    def _by_torch(self, tables: Sequence[Tensor], index: Tensor, starts: Tensor, weights: Tensor | None) -> Tensor:
        """The same in PyTorch's operators, feature by feature. Tables of several dtypes are widened at the end."""
        check_ends("offsets", starts, index)
        if not starts.is_meta:
            check_ascending(starts)
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
