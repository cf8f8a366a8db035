"""The compact gradient of an embedding table behind an `EmbeddingBag`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from matrix_adagrad.geometry import wide_dtype
from matrix_adagrad.torch_private import (
    empty_wrapper,
    no_torch_function,
    sparse_indices,
    sparse_values,
    tree_flatten,
    tree_map,
    tree_unflatten,
    version_of,
    written_arguments,
)

if TYPE_CHECKING:
    from matrix_adagrad.bags.batch import BagPart

__all__ = ["BagGradient", "Entries", "concatenated"]

Entries = tuple[Tensor, Tensor | None, Tensor | None, Tensor]

aten = torch.ops.aten


class BagGradient(Tensor):
    """The sparse gradient of a table, stored once per bag, because all rows of a bag have the same values.

    It represents the sparse tensor with rows ``index``, where rows ``offsets[b]`` to ``offsets[b + 1]`` have the values
    ``values[b]``, each times its weight if there are weights. The sparse tensor would repeat these for every row: for a
    bag of 20 rows, it stores them 20 times instead of once. The optimizers in this package use it directly. To
    everything else it is a sparse gradient, and it turns into that sparse tensor when asked for its values. Added or
    scaled gradients stay compact.

    Args:
        index: the rows of the table, in any order and with repeats.
        offsets: where each bag starts in ``index``, and where the last one ends. None if every row has its own values.
        values: the gradient of each bag's sum.
        shape: the shape of the table.
        weights: of each row in ``index``, in the compute dtype (float32, or float64 for a float64 table).
        check: whether to check that these belong together and that the table has the rows. Otherwise they are trusted.

    Example:
        >>> import torch
        >>> from matrix_adagrad.bags import BagGradient
        >>> grad = BagGradient(torch.tensor([3, 0, 3]), torch.tensor([0, 2, 3]), torch.eye(2), (4, 2))
        >>> grad
        BagGradient(2 bags with 3 of 4 rows, width 2)
        >>> grad.to_dense()
        tensor([[1., 0.],
                [0., 0.],
                [0., 0.],
                [1., 1.]])
    """

    __torch_function__ = no_torch_function

    CHANGED = (
        "the indices of an EmbeddingBag, or the gradient of its output, were changed in place after the "
        "backward pass, but the table's gradient needs them: step the optimizer first, or change a copy"
    )

    part: BagPart | None  # of a batch of bags, which the gradient is as long as nobody changes it
    _own: Entries | None  # made when they are asked for
    _versions: dict[int, int]

    @staticmethod
    def __new__(
        cls,
        index: Tensor,
        offsets: Tensor | None,
        values: Tensor,
        shape: Sequence[int],
        *,
        weights: Tensor | None = None,
        check: bool = True,
    ) -> BagGradient:
        if check:
            _check(index, offsets, values, shape, weights)
        self: BagGradient = empty_wrapper(cls, shape, values.dtype, values.device)
        self._set(index, offsets, weights, values)
        return self

    @classmethod
    def of_part(cls, part: BagPart, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> BagGradient:
        """The gradient of one feature of a batch. It has entries of its own once they are asked for."""
        self: BagGradient = empty_wrapper(cls, shape, dtype, device)
        self.part, self._own = part, None
        return self

    def _set(self, index: Tensor, offsets: Tensor | None, weights: Tensor | None, values: Tensor) -> None:
        self.part = None
        self._keep((index, offsets, weights, values))

    def _keep(self, entries: Entries) -> None:
        self._own = entries
        self._versions = {part: version_of(tensor) for part, tensor in enumerate(entries) if tensor is not None}

    def entries(self) -> Entries:
        """Index, offsets (None if every row has its own values), weights (None if all are 1) and values.

        Raises:
            RuntimeError: if other code that shares the index or the values has since written to them. Torch does not
                see writes through NumPy or ``.data``.
        """
        entries = self._entries
        for part, version in self._versions.items():
            tensor = entries[part]
            if tensor is not None and version_of(tensor) != version:
                raise RuntimeError(self.CHANGED)
        return entries

    @property
    def _entries(self) -> Entries:
        if self._own is None:
            assert self.part is not None
            self._keep(self.part.entries())
        return self._own  # type: ignore[return-value]

    # ----------------------------------------------------------------------------- what is asked of a sparse gradient

    is_sparse = True
    layout = torch.sparse_coo

    def untyped_storage(self) -> Any:
        """There is none."""
        raise NotImplementedError("a BagGradient has no storage: use to_sparse()")

    data_ptr = untyped_storage

    def sparse_dim(self) -> int:
        """1: rows."""
        return 1

    def dense_dim(self) -> int:
        """The dimensions of a row."""
        return self.dim() - 1

    def is_coalesced(self) -> bool:
        """Always false: rows may appear several times."""
        return False

    def _nnz(self) -> int:
        return self._entries[0].numel()

    def _indices(self) -> Tensor:
        return self.entries()[0][None]

    def _values(self) -> Tensor:
        """The values of every row. Writing to them changes this gradient."""
        values = self._spread()
        self._set(self._entries[0], None, None, values)
        del self._versions[3]
        return values

    def _spread(self) -> Tensor:
        if self.requires_grad and torch.is_grad_enabled():
            raise RuntimeError("the gradient of an EmbeddingBag cannot be differentiated")
        _, offsets, weights, values = self.entries()
        if offsets is not None:
            values = values.repeat_interleave(offsets.diff(), 0, output_size=self._nnz())
        return values if weights is None else (values * weights[:, None]).to(values.dtype)

    def to_sparse(self, *_: Any, **__: Any) -> Tensor:
        """The sparse tensor that this gradient represents."""
        return torch.sparse_coo_tensor(self._indices(), self._spread(), self.shape, check_invariants=False)

    def coalesce(self) -> Tensor:
        """A sparse tensor with each row once."""
        return self.to_sparse().coalesce()

    def to_dense(self, *arguments: Any, **keywords: Any) -> Tensor:
        """A dense tensor with all rows."""
        return self.to_sparse().to_dense(*arguments, **keywords)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        _, offsets, _, values = self._entries
        of = f"{len(values)} bags with " if offsets is not None else ""
        return f"BagGradient({of}{self._nnz()} of {self.shape[0]} rows, width {self.shape[1]})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        memo[id(self)] = copied = self.clone()
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.to_sparse().__reduce_ex__(protocol)

    # --------------------------------------------------------------------------------------------- torch's operators

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func.namespace in ("c10d", "_c10d_functional"):  # the received data would be lost
            raise RuntimeError("a BagGradient cannot be sent: send .grad.coalesce(), and set .grad to what comes back")
        own = _OWN.get(func)
        result = NotImplemented if own is None else own(*args, **(kwargs or {}))
        return _on_sparse(func, args, kwargs or {}) if result is NotImplemented else result


def _check(index: Tensor, offsets: Tensor | None, values: Tensor, shape: Sequence[int], weights: Tensor | None) -> None:
    if len(shape) != 2 or values.dim() != 2 or values.shape[1] != shape[1]:
        raise ValueError(
            f"values of shape {tuple(values.shape)} do not match the rows of a table of shape {tuple(shape)}"
        )
    if index.dim() != 1 or index.dtype != torch.int64:
        raise ValueError(f"index must be a list of int64, got shape {tuple(index.shape)} and dtype {index.dtype}")
    if index.device != values.device or (offsets is not None and offsets.device != values.device):
        raise ValueError("index, offsets and values must be on one device")
    if offsets is None:
        if len(values) != len(index):
            raise ValueError(f"without offsets each of the {len(index)} rows has values, and there are {len(values)}")
        offsets = _bags_of_one(index)
    if offsets.dtype != torch.int64 or offsets.shape != (len(values) + 1,):
        raise ValueError(
            f"offsets must be a list of int64, one more than the {len(values)} bags, got shape {tuple(offsets.shape)} "
            f"and dtype {offsets.dtype}"
        )
    if offsets[0] != 0 or offsets[-1] != len(index) or (offsets.diff() < 0).any():
        raise ValueError(f"offsets must go from 0 to the {len(index)} entries of the index and never decrease")
    if weights is not None and (weights.shape != index.shape or weights.dtype is not wide_dtype(values.dtype)):
        raise ValueError(
            f"weights must be a list of {len(index)} numbers of {wide_dtype(values.dtype)}, got shape "
            f"{tuple(weights.shape)} and dtype {weights.dtype}"
        )
    if len(index) and not 0 <= index.min() <= index.max() < shape[0]:
        raise IndexError(f"the table has {shape[0]} rows, and the index has rows {index.min()} to {index.max()}")


def _on_sparse(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run an operator on the sparse tensors that gradients represent. In-place writes carry over to the gradient."""
    flat, spec = tree_flatten((tuple(args), dict(kwargs)))
    stands_for = {id(leaf): (leaf, leaf.to_sparse()) for leaf in flat if isinstance(leaf, BagGradient)}
    args, kwargs = tree_unflatten([stands_for.get(id(leaf), (None, leaf))[1] for leaf in flat], spec)
    result = func(*args, **kwargs)
    written, _ = tree_flatten(written_arguments(func, args))
    for gradient, sparse in stands_for.values():
        if any(sparse is leaf for leaf in written):
            gradient._set(sparse_indices(sparse)[0].clone(), None, None, sparse_values(sparse))
    of_sparse = {id(sparse): gradient for gradient, sparse in stands_for.values()}
    return tree_map(lambda leaf: of_sparse.get(id(leaf), leaf), result)


def _with_values(gradient: BagGradient, change: Callable[[Tensor], Tensor]) -> BagGradient:
    index, offsets, weights, values = gradient.entries()
    return BagGradient(index, offsets, change(values), gradient.shape, weights=weights, check=False)


def _share(gradient: BagGradient) -> BagGradient:
    if gradient.part is not None:
        return BagGradient.of_part(gradient.part, gradient.shape, gradient.dtype, gradient.device)
    return _with_values(gradient, lambda values: values)


def _clone(gradient: BagGradient, **_: Any) -> BagGradient:
    index, offsets, weights, values = gradient.entries()
    return BagGradient(index.clone(), offsets, values.clone(), gradient.shape, weights=weights, check=False)


def _copy(_: Any, other: Any, *__: Any) -> Any:
    return _clone(other) if isinstance(other, BagGradient) else NotImplemented


def _scaled(func: Any) -> Callable[..., Any]:
    def scale(gradient: Any, other: Any) -> Any:
        is_number = not isinstance(other, Tensor) or other.dim() == 0
        if not (isinstance(gradient, BagGradient) and is_number):
            return NotImplemented
        scaled = _with_values(gradient, lambda values: func(values, other))
        return scaled if scaled.dtype == gradient.dtype else NotImplemented

    return scale


def _in_bags(gradient: BagGradient) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Index, offsets, weights and values. Rows with their own values become bags of one."""
    index, offsets, weights, values = gradient.entries()
    return index, _bags_of_one(index) if offsets is None else offsets, weights, values


def _bags_of_one(index: Tensor) -> Tensor:
    return torch.arange(len(index) + 1, device=index.device)


def _add(one: Any, other: Any, alpha: Any = 1) -> Any:
    if not (isinstance(one, BagGradient) and isinstance(other, Tensor) and alpha == 1 and one.dtype == other.dtype):
        return NotImplemented
    if not isinstance(other, BagGradient):  # torch adds sparse to dense, not the other way round
        return NotImplemented if other.is_sparse else other + one.to_sparse()
    return concatenated([one, other]) if one.shape == other.shape else NotImplemented


def concatenated(gradients: Sequence[BagGradient]) -> BagGradient:
    """The sum of gradients of one table: their bags, one after another."""
    indices, all_offsets, all_weights, values = zip(*map(_in_bags, gradients), strict=True)
    starts = itertools.accumulate(map(len, indices), initial=0)
    offsets = [own[:-1] + start for own, start in zip(all_offsets, starts, strict=False)]
    end = all_offsets[0].new_tensor([sum(map(len, indices))])
    weights = None
    if any(own is not None for own in all_weights):
        dtype = wide_dtype(values[0].dtype)
        ones = [torch.ones(len(index), dtype=dtype, device=index.device) for index in indices]
        weights = torch.cat([one if own is None else own for one, own in zip(ones, all_weights, strict=True)])
    return BagGradient(
        torch.cat(indices),
        torch.cat([*offsets, end]),
        torch.cat(values),
        gradients[0].shape,
        weights=weights,
        check=False,
    )


def _norm(gradient: BagGradient, order: Any = 2, dim: Any = None, keepdim: bool = False, **keywords: Any) -> Any:
    """The norm over all entries. The zeros of other rows do not change a norm of positive order."""
    if order <= 0 or dim is not None or keepdim:
        return aten.linalg_vector_norm.default(gradient.to_dense(), order, dim, keepdim, **keywords)
    values = gradient.coalesce().values()
    return aten.linalg_vector_norm.default(values if len(values) else values.new_zeros(1), order, **keywords)


def _in_place(make: Callable[..., Any]) -> Callable[..., Any]:
    """An in-place version: the first argument becomes the result."""

    def become(gradient: Any, *others: Any, **keywords: Any) -> Any:
        result = make(gradient, *others, **keywords)
        if result is NotImplemented or not isinstance(gradient, BagGradient):
            return NotImplemented
        if isinstance(result, BagGradient):
            gradient._set(*result.entries())
        else:  # dense: every row has values
            gradient._set(torch.arange(len(gradient), device=gradient.device), None, None, result)
        return gradient

    return become


_OWN: dict[Any, Callable[..., Any]] = {
    aten.detach.default: _share,
    aten.alias.default: _share,
    aten.clone.default: _clone,
    aten.new_empty_strided.default: lambda gradient, *_, **__: _clone(gradient),  # a target to copy to
    aten.copy_.default: _in_place(_copy),
    aten.add.Tensor: _add,
    aten.add_.Tensor: _in_place(_add),
    aten.mul.Tensor: _scaled(torch.mul),
    aten.mul_.Tensor: _in_place(_scaled(torch.mul)),
    aten.div.Tensor: _scaled(torch.div),
    aten.div_.Tensor: _in_place(_scaled(torch.div)),
    aten.linalg_vector_norm.default: _norm,
}
