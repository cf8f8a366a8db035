"""Lookups of many features at once: one native call, one autograd node, and gradients that are stored per bag."""

from __future__ import annotations

import operator
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from matrix_adagrad import native
from matrix_adagrad.bags.batch import BagBatch, Feature, quoted, refuse_bags
from matrix_adagrad.bags.gradient import BagGradient, concatenated
from matrix_adagrad.geometry import wide_dtype
from matrix_adagrad.torch_private import (
    accumulates,
    gradient_hooks,
    has_free_memory,
    has_no_other_owner,
    has_tensor_hooks,
    is_transformed,
)

__all__ = ["Lookup", "is_covered", "is_index", "without_padding"]


# For a hundred tables, loops in Python take longer than the kernels.
_shape, _dtype, _is_cpu = map(operator.attrgetter, ("shape", "dtype", "is_cpu"))


class StepsBags(Protocol):
    """Steps tables in the backward pass from a batch, without a gradient for each table."""

    def step_bags(self, tables: Sequence[Tensor], features: Sequence[int], batch: BagBatch) -> set[int]:
        """Step those of the tables that can be. Returns the numbers of the features that read them."""


class _Call:
    """One forward pass whose backward pass has not run yet."""

    is_alone = True


class Lookup:
    """The features of a batch, and what is known about their tables from the last call.

    Args:
        features: which table each reads, and its columns of the output.
    """

    def __init__(self, features: Sequence[Feature]) -> None:
        self.features, self.width = tuple(features), sum(feature.width for feature in features)
        readers = [feature.table for feature in features]
        self._unshared = [i for i, table in enumerate(readers) if readers.count(table) == 1]
        self._calls: weakref.WeakSet[_Call] = weakref.WeakSet()
        self._rooms: list[Tensor] = []
        self._lock = threading.Lock()
        self._described: tuple[list[Any], Tensor] | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Lookup:
        return Lookup(self.features)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Lookup, (self.features,)

    def __call__(
        self, tables: Sequence[Tensor], index: Tensor, offsets: Tensor, sample_weights: Tensor | None = None
    ) -> Tensor:
        """The sums of all bags: (bags, sum of widths)."""
        sums: Tensor = _SumBags.apply(self, index, offsets, sample_weights, *tables)  # type: ignore[no-untyped-call]
        return sums

    def sums(
        self, described: Tensor, dtype: torch.dtype, index: Tensor, offsets: Tensor, weights: Tensor | None
    ) -> Tensor:
        """The same, not recorded, for tables that are described, all of this dtype."""
        bags = (len(offsets) - 1) // len(self.features)
        out = self._output(bags, dtype)
        wrong = native.load().matrix_adagrad_sum_bags(
            *(described.data_ptr(), len(self.features), native.DTYPES[dtype]),
            *(index.data_ptr(), len(index), 0 if weights is None else weights.data_ptr()),
            *(offsets.data_ptr(), bags, out.data_ptr(), self.width, native.threads()),
        )
        if wrong == native.NO_MEMORY:
            raise MemoryError(f"no memory was left to sum bags of {len(index)} rows")
        if wrong:
            refuse_bags(self.features[wrong - 1], wrong - 1, described, index, offsets)
        return out

    def _output(self, bags: int, dtype: torch.dtype) -> Tensor:
        """Memory for the sums. That of an earlier call is used again once nobody else holds it: new pages are slow."""
        needed = bags * self.width * dtype.itemsize
        out = torch.empty(0, dtype=dtype, device="cpu")  # not a view: users may write to it
        with self._lock:
            free = [room for room in self._rooms if room.numel() == needed and has_free_memory(room)]
            room = free[0] if free else torch.empty(needed, dtype=torch.uint8, device="cpu")
            out.set_(room.untyped_storage(), 0, (bags, self.width), (self.width, 1))
            # Two, since a training loop holds the last output until it has the next.
            self._rooms = [room, *[other for other in self._rooms if other is not room][:1]]
        return out

    def described(self, tables: Sequence[Tensor]) -> Tensor:
        """The features as a list of ``struct feature``."""
        known = [*map(Tensor.data_ptr, tables), *map(_shape, tables), *map(Tensor.stride, tables)]
        described = self._described  # another thread may replace it
        if described is None or described[0] != known:
            fields = []
            for feature in self.features:
                table = tables[feature.table]
                rows, columns = table.shape
                if columns != feature.width:
                    raise ValueError(
                        f"the table{quoted(feature)} was made with width {feature.width}, and is {columns} wide now: "
                        "make a new module"
                    )
                fields.append((table.data_ptr(), rows, columns, table.stride(0), feature.column, int(feature.is_mean)))
            described = self._described = known, torch.tensor(fields, dtype=torch.int64, device="cpu")
        return described[1]

    # ----------------------------------------------------------------------------------------------- the backward pass

    def begin(self) -> _Call:
        """A forward pass. Those whose backward passes may run together are marked: their gradients have to be added."""
        call = _Call()
        with self._lock:
            for other in self._calls:
                other.is_alone = call.is_alone = False
            self._calls.add(call)
        return call

    def finish(self, call: _Call) -> bool:
        """The backward pass of a call. Returns whether it runs by itself."""
        with self._lock:
            self._calls.discard(call)
        return call.is_alone

    def values_of(self, grad: Tensor, offsets: Tensor) -> Tensor:
        """The gradients of all sums, from those of the output: means are divided by the lengths of their bags."""
        means = [i for i, feature in enumerate(self.features) if feature.is_mean]
        if not means:
            return grad
        bags = len(grad)
        lengths = offsets.diff().view(len(self.features), bags).clamp_(min=1)
        values = grad.clone(memory_format=torch.contiguous_format)
        for i in means:
            feature = self.features[i]
            values[:, feature.column : feature.column + feature.width].div_(lengths[i][:, None])
        return values

    def gradients(self, tables: Sequence[Tensor], batch: BagBatch, done: set[int]) -> list[Tensor | None]:
        """The gradients of the tables, except for those that are done."""
        found: list[list[BagGradient]] = [[] for _ in tables]
        numbers = [i for i, feature in enumerate(self.features) if feature.table not in done]
        readers = [self.features[i].table for i in numbers]
        shapes = [tables[table].shape for table in readers]
        for table, gradient in zip(readers, batch.gradients(numbers, shapes), strict=True):
            found[table].append(gradient)
        return [parts[0] if len(parts) == 1 else concatenated(parts) if parts else None for parts in found]

    def stepped(self, tables: Sequence[Tensor], nodes: Sequence[Any], batch: BagBatch) -> set[int]:
        """Step the tables whose optimizer does so in the backward pass. Returns their numbers.

        Args:
            tables: all of them.
            nodes: of autograd, that their gradients would go to; None for a frozen table.
            batch: the gradients of the features' sums.
        """
        steppers: dict[StepsBags, list[int]] = {}
        is_tied = len(set(map(id, tables))) < len(tables)
        for i in () if is_tied else self._unshared:
            number = self.features[i].table
            table = tables[number]
            hooks = list(gradient_hooks(table)) if table.is_leaf and table.grad is None else []
            stepper = getattr(hooks[0], "bag_stepper", None) if len(hooks) == 1 else None
            if stepper is not None and accumulates(nodes[number]) and not has_tensor_hooks(table):
                steppers.setdefault(stepper, []).append(i)
        done: set[int] = set()
        if any(len(numbers) < len(self.features) for numbers in steppers.values()):
            batch.check()  # before one moves and another does not
        for stepper, numbers in steppers.items():
            stepped = stepper.step_bags([tables[self.features[i].table] for i in numbers], numbers, batch)
            done.update(self.features[i].table for i in stepped)
        return done


class _SumBags(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, lookup: Lookup, index: Tensor, offsets: Tensor, sample_weights: Tensor | None, *tables: Tensor
    ) -> Tensor:
        weights = None if sample_weights is None else sample_weights.detach().to(wide_dtype(tables[0].dtype))
        weights = None if weights is None else weights.contiguous()
        described = lookup.described(tables)
        out = lookup.sums(described, tables[0].dtype, index, offsets, weights)
        weigh = sample_weights is not None and ctx.needs_input_grad[3]
        ctx.save_for_backward(index, offsets, weights, *(tables if weigh else ()))
        ctx.lookup, ctx.tables, ctx.described, ctx.call = lookup, tables, described, lookup.begin()
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        lookup: Lookup = ctx.lookup
        is_ours = has_no_other_owner(grad)
        index, offsets, weights, *weighed = ctx.saved_tensors
        by_sample = _of_weights(lookup, weighed, index, offsets, grad) if weighed else None
        values = lookup.values_of(grad.detach().contiguous(), offsets)
        batch = BagBatch(index, offsets, weights, values, lookup.features, ctx.described)
        nodes = [node for node, _ in ctx.next_functions[-len(ctx.tables) :]]
        done = lookup.stepped(ctx.tables, nodes, batch) if lookup.finish(ctx.call) and len(grad) else set()
        if not done:
            batch.check()
        # As in torch's gradient accumulation: take over a tensor that nobody else holds, copy any other.
        if len(done) < len(ctx.tables) and values.data_ptr() == grad.data_ptr() and not is_ours:
            batch = replace(batch, values=values.clone())
        return None, None, None, by_sample, *lookup.gradients(ctx.tables, batch, done)


def _of_weights(lookup: Lookup, tables: Sequence[Tensor], index: Tensor, offsets: Tensor, grad: Tensor) -> Tensor:
    """The gradient of each sample's weight: its row times the gradient of its bag's sum."""
    bags, found = len(grad), torch.zeros(len(index), dtype=grad.dtype)
    for i, feature in enumerate(lookup.features):
        own = offsets[i * bags : (i + 1) * bags + 1]
        first, last = int(own[0]), int(own[-1])
        values = grad[:, feature.column : feature.column + feature.width].repeat_interleave(own.diff(), 0)
        found[first:last] = (tables[feature.table].detach()[index[first:last]] * values).sum(1)
    return found


# -------------------------------------------------------------------------------------------------- what is covered


def is_index(x: Tensor) -> bool:
    """Whether these are plain indices or offsets on a CPU."""
    return type(x) is Tensor and x.is_cpu and x.dtype in (torch.int64, torch.int32) and not x.is_nested


def is_covered(tables: Sequence[Tensor], lists: Sequence[Tensor | None], weights: Tensor | None) -> bool:
    """Whether the kernels take these tables, indices, offsets and weights, here and now."""
    if torch.compiler.is_compiling() or is_transformed():
        return False
    arrays = tables if weights is None else [*tables, weights]
    dtypes = set(map(_dtype, arrays))
    return (
        set(map(type, arrays)) <= {Tensor, torch.nn.Parameter}
        and (all(map(_is_cpu, arrays)) and not any(map(Tensor.is_neg, arrays)))
        and (len(dtypes) == 1 and dtypes <= native.DTYPES.keys())
        and {stride[1] for stride in map(Tensor.stride, tables)} == {1}
        and max(shape[0] for shape in map(_shape, tables)) < native.MOST_ROWS
        and all(is_index(x) for x in lists if x is not None)
        and not native.missing()
    )


def without_padding(
    padding: Sequence[int | None], index: Tensor, offsets: Tensor, weights: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The lists without the padding rows of each feature."""
    bags, keep = (len(offsets) - 1) // len(padding), torch.ones_like(index, dtype=torch.bool)
    for i, row in enumerate(padding):
        if row is not None:
            own = slice(int(offsets[i * bags]), int(offsets[(i + 1) * bags]))
            keep[own] = index[own] != row
    kept = torch.cat([offsets.new_zeros(1), keep.cumsum(0)])
    return index[keep], kept[offsets], None if weights is None else weights[keep]
