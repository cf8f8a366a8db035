"""The rows that a module is about to read are brought up to date first."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn
from torch.optim import Optimizer

from matrix_adagrad.optim.catch_up import LazyOptimizer
from matrix_adagrad.optim.combined import CombinedOptimizer
from matrix_adagrad.torch_private import without_compiling

__all__ = ["ReadsRows", "RowsCurrent", "keep_rows_current"]


@runtime_checkable
class ReadsRows(Protocol):
    """A module that can say which rows of its parameters a call will read."""

    def rows_read(self, *args: Any, **kwargs: Any) -> Iterable[tuple[Tensor, Tensor]]:
        """Pairs of a parameter and row numbers, of any shape and with repeats, for a call with these arguments."""


class RowsCurrent:
    """A handle for the hooks that `keep_rows_current` installs. As a context manager, it removes them on exit."""

    def __init__(self, module: nn.Module, optimizer: Optimizer) -> None:
        parts = optimizer.optimizers if isinstance(optimizer, CombinedOptimizer) else (optimizer,)
        owners = {
            param: part
            for part in parts
            if isinstance(part, LazyOptimizer)
            for group in part.param_groups
            for param in group["params"]
        }
        readers = [own for own in module.modules() if isinstance(own, nn.Embedding | nn.EmbeddingBag | ReadsRows)]
        self.modules = [own for own in readers if any(param in owners for param in own.parameters(recurse=True))]
        if not self.modules:
            found = ", ".join(sorted({type(own).__name__ for own in readers})) or "none"
            raise ValueError(
                f"module must have an nn.Embedding, an nn.EmbeddingBag or a module with rows_read, whose parameters "
                f"are among those of a MatrixAdaGrad or MatrixMomentum; it has {found}"
            )
        hook = _Hook(owners)
        self._handles = [own.register_forward_pre_hook(hook, with_kwargs=True) for own in self.modules]

    def remove(self) -> None:
        """Undo `keep_rows_current`."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def __enter__(self) -> RowsCurrent:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


def keep_rows_current(module: nn.Module, optimizer: Optimizer) -> RowsCurrent:
    """With ``lazy="exact"``: before a forward pass reads rows of a table, catch up what they have missed.

    Call it once, after the optimizer is made. It finds every ``nn.Embedding``, ``nn.EmbeddingBag`` (also this package's
    `EmbeddingBag`) and module with a method ``rows_read`` in the module, and calls `MatrixAdaGrad.catch_up` with the
    rows of each call. Code that reads a weight in any other way calls ``catch_up`` itself, before it reads. Groups with
    ``lazy="touched"`` are left alone, so you may switch without touching the model.

    Args:
        module: the model, or one table.
        optimizer: the optimizer of its tables, or a `CombinedOptimizer` that has it.

    Returns:
        A handle. ``remove()`` undoes the change, and so does leaving a ``with`` block.

    Example:
        >>> import torch
        >>> from matrix_adagrad import RowAdaGrad, keep_rows_current
        >>> table = torch.nn.Embedding.from_pretrained(torch.ones(3, 1), freeze=False, sparse=True)
        >>> optimizer = RowAdaGrad(
        ...     table.parameters(), lr=0.1, weight_decay=5.0, decoupled_weight_decay=True, lazy="exact"
        ... )
        >>> handle = keep_rows_current(table, optimizer)
        >>> for _ in range(2):
        ...     optimizer.zero_grad()
        ...     (0 * table(torch.tensor([0]))).sum().backward()
        ...     optimizer.step()
        >>> table(torch.tensor([2])).item()  # the steps have halved it twice
        0.25
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"module must be an nn.Module, got {type(module).__name__}")
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}")
    return RowsCurrent(module, optimizer)


class _Hook:
    """References the optimizers weakly: a model does not keep its optimizer alive. A copied model has none."""

    def __init__(self, owners: Mapping[Tensor, LazyOptimizer]) -> None:
        self._owners = {id(param): weakref.ref(owner) for param, owner in owners.items()}

    @without_compiling
    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for param, rows in _rows_read(module, args, kwargs):
            owner = self._owners.get(id(param), lambda: None)()
            if owner is not None:
                owner.catch_up(param, rows)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Hook:
        return _Hook({})

    def __reduce__(self) -> tuple[Any, ...]:
        return _Hook, ({},)


def _rows_read(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterable[tuple[Tensor, Tensor]]:
    if isinstance(module, ReadsRows):
        return module.rows_read(*args, **kwargs)
    return [(module.weight, args[0] if args else kwargs["input"])]  # type: ignore[list-item]
