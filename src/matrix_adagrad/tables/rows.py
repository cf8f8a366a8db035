"""Tables that gain and lose rows during training, with all that an optimizer knows of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from matrix_adagrad.optim.base import MatrixOptimizer
from matrix_adagrad.optim.combined import CombinedOptimizer
from matrix_adagrad.optim.in_backward import InBackward
from matrix_adagrad.optim.step.update import are_plain, is_sharded
from matrix_adagrad.tables.files import empty_as

__all__ = ["Table", "evict", "resize_table", "table_of"]

Init = Callable[[Tensor], object]


def resize_table(
    module: nn.Module, optimizer: Optimizer | None, rows: int, *, name: str = "weight", init: Init | None = None
) -> None:
    """Give a table another number of rows: new ones at the end, or fewer.

    The parameter stays the same object. The optimizer's state follows: statistics, averages and counters that rows have
    of their own, but not those of columns or of the whole table. The state of a new row is that of a row which never
    had a gradient, and training goes on as if the table had had its size from the start.

    Call it between steps: the parameter's gradient is dropped. Wrap a model in `DistributedDataParallel` or
    `torch.compile` it after this, not before. Copies of the model, such as a moving average, need a call of their own.

    Args:
        module: `torch.nn.Embedding`, `torch.nn.EmbeddingBag`, `matrix_adagrad.EmbeddingBag`, or any other module that
            has a parameter with a row per item.
        optimizer: that trains it, from this package or `torch.optim`, also a `CombinedOptimizer`. ``None`` if there is
            none.
        rows: how many the table is to have.
        name: of the parameter in the module, such as ``"weight"`` or ``"tables.user"``.
        init: fills the new rows in place, such as ``lambda new: new.normal_(std=0.01)``. By default they start as the
            module's own do; modules other than embeddings need it.

    Example:
        >>> import torch
        >>> from matrix_adagrad import RowAdaGrad, resize_table
        >>> items = torch.nn.Embedding(1000, 16, sparse=True)
        >>> optimizer = RowAdaGrad(items.parameters(), lr=0.1)
        >>> items(torch.tensor([3, 5])).square().sum().backward()
        >>> optimizer.step()
        >>> resize_table(items, optimizer, 1200, init=torch.nn.init.zeros_)
        >>> items, optimizer.state[items.weight]["sum"].shape
        (Embedding(1200, 16, sparse=True), torch.Size([1200, 1]))
    """
    table = table_of(module, optimizer, name)
    if isinstance(rows, bool) or not hasattr(rows, "__index__") or rows < 0:
        raise ValueError(f"rows must be a whole number, at least 0, got {rows!r}")
    old, padding = table.rows, table.padding
    if padding is not None and padding >= rows:
        raise ValueError(f"rows must be more than {padding}, the table's padding_idx, got {rows!r}")
    table.catch_up()
    kept = slice(0, min(old, rows))
    x = _taken(table.param.detach(), kept, rows)
    if rows > old:
        with torch.no_grad():
            (init or table.default_init())(x[old:])
    table.replace(x, {key: _taken(value, kept, rows, fill) for key, value, fill in table.state_by_row()}, padding)


def evict(
    module: nn.Module, optimizer: Optimizer | None, keep: Tensor | Sequence[int], *, name: str = "weight"
) -> Tensor:
    """Keep some rows of a table, in the order given, and drop all others with their state.

    The same is true as for `resize_table`, which makes room for new items afterwards.

    Args:
        module: as in `resize_table`.
        optimizer: as in `resize_table`.
        keep: the rows that stay: their indices, or a mask with an entry per row. The padding row must be among them.
        name: as in `resize_table`.

    Returns:
        The new index of each old row, -1 for those that are gone: ``ids = new_ids[ids]`` translates a data set.

    Example:
        >>> import torch
        >>> from matrix_adagrad import RowAdaGrad, evict
        >>> items = torch.nn.Embedding(5, 16)
        >>> optimizer = RowAdaGrad(items.parameters(), lr=0.1)
        >>> evict(items, optimizer, torch.tensor([True, False, True, True, False]))
        tensor([ 0, -1,  1,  2, -1])
        >>> items
        Embedding(3, 16)
    """
    table = table_of(module, optimizer, name)
    index = _indices(keep, table.rows)
    new_ids = torch.full((table.rows,), -1, dtype=torch.int64, device="cpu")
    new_ids[index] = torch.arange(len(index), device="cpu")
    padding = table.padding
    if padding is not None:
        if new_ids[padding] < 0:
            raise ValueError(f"keep must have row {padding}, the table's padding_idx")
        padding = int(new_ids[padding])
    table.catch_up()
    state = {key: _taken(value, index, len(index)) for key, value, _ in table.state_by_row()}
    table.replace(_taken(table.param.detach(), index, len(index)), state, padding)
    return new_ids


def _indices(keep: Tensor | Sequence[int], rows: int) -> Tensor:
    index = torch.as_tensor(keep, device="cpu")
    if index.dim() == 1 and index.dtype is torch.bool:
        if len(index) != rows:
            raise ValueError(f"keep must have an entry for each of the {rows} rows, got a mask of {len(index)}")
        return index.nonzero()[:, 0]
    if index.dim() != 1 or (len(index) and (index.is_floating_point() or index.is_complex())):
        raise TypeError(f"keep must be a list of rows or a mask, got {index.dtype} of shape {tuple(index.shape)}")
    index = index.long()
    if len(index) and not 0 <= int(index.min()) <= int(index.max()) < rows:
        raise IndexError(f"keep must be rows 0 to {rows - 1}, got rows {int(index.min())} to {int(index.max())}")
    if len(index.unique()) != len(index):
        raise ValueError("keep must have each row once, and some are there twice")
    return index


def _taken(x: Tensor, kept: Tensor | slice, rows: int, fill: float | Tensor = 0) -> Tensor:
    """The rows that are kept, laid out as before, and then as many others as are needed."""
    taken = empty_as(x, (rows, *x.shape[1:]))
    if isinstance(kept, slice):
        taken[kept] = x[kept]
        taken[kept.stop :] = fill
    else:
        torch.index_select(x, 0, kept.to(x.device), out=taken)
    return taken


@dataclass(frozen=True)
class Table:
    """A parameter with a row per item: the module that holds it, and the optimizer and the group that have it."""

    name: str
    param: nn.Parameter
    holder: Any  # what has num_embeddings and padding_idx
    optimizer: Optimizer | None
    group: dict[str, Any]

    @property
    def rows(self) -> int:
        """How many there are."""
        return len(self.param)

    @property
    def padding(self) -> int | None:
        """The row that stands for nothing."""
        padding: int | None = getattr(self.holder, "padding_idx", None)
        return padding

    @property
    def state(self) -> dict[str, Any]:
        """What the optimizer keeps; nothing before the first step."""
        kept: dict[str, Any] = (self.optimizer.state.get(self.param) if self.optimizer is not None else None) or {}
        return kept

    def default_init(self) -> Init:
        """How the module itself starts rows."""
        holder = self.holder
        if hasattr(holder, "init_rows"):
            init: Init = holder.init_rows
            return init
        if not isinstance(holder, nn.Embedding | nn.EmbeddingBag) or self.param is not holder.weight:
            raise ValueError(
                f"init must say how new rows of {type(holder).__name__} start, such as torch.nn.init.zeros_"
            )

        def init_as_module(new: Tensor) -> None:
            small = copy.copy(holder)
            vars(small)["_parameters"] = {"weight": nn.Parameter(new, requires_grad=False)}
            vars(small).update(num_embeddings=len(new), padding_idx=None)
            small.reset_parameters()

        return init_as_module

    def catch_up(self) -> None:
        """Bring rows up to the last step, if the optimizer lets those without gradients fall behind."""
        catch_up = getattr(self.optimizer, "catch_up", None)
        if self.state and catch_up is not None:
            catch_up(self.param)

    def state_by_row(self) -> Iterator[tuple[str, Tensor, Any]]:
        """What is kept for each row, with the value for a new row."""
        for key, value in self.state.items():
            if isinstance(value, Tensor) and value.dim() and self._is_by_row(key, value):
                yield key, value, self.start(key, value)

    def _is_by_row(self, key: str, value: Tensor) -> bool:
        optimizer, shape = self.optimizer, self.param.shape
        shapes = optimizer.statistic_shapes(self.group, shape) if isinstance(optimizer, MatrixOptimizer) else {}
        if key not in shapes:
            return value.shape[0] == len(self.param)
        assert isinstance(optimizer, MatrixOptimizer)
        try:
            longer = optimizer.statistic_shapes(self.group, _longer(shape))[key]
        except ValueError:  # such as groups of rows
            longer = None
        if longer == shapes[key]:
            return False
        if longer != _longer(shapes[key]) or shapes[key][0] != len(self.param):
            raise ValueError(
                f"{self.name} has the geometry {self.group['geometry']}, which ties its rows together: they can "
                "neither grow nor shrink in number"
            )
        return True

    def start(self, key: str, value: Tensor | None = None) -> Any:
        """What a new row has, next to the others' values."""
        if isinstance(self.optimizer, MatrixOptimizer):
            if key == self.optimizer.AVERAGE:
                return 0
            if key in self.optimizer.statistic_shapes(self.group, self.param.shape):
                return self.group.get("initial_accumulator_value", 0)
            # A counter: a new row is as up to date as any other.
            return 0 if value is None or value.is_meta or not len(value) else value.amax()
        return self.group.get("initial_accumulator_value", 0) if key == "sum" else 0

    def replace(self, x: Tensor, state: dict[str, Tensor], padding: int | None) -> None:
        """Put other values in the place of all rows, and of what is kept for them. The parameter is the same object."""
        if isinstance(self.optimizer, MatrixOptimizer):
            self.optimizer.check_start(self.name, x, self.group)
        old, param = self.rows, self.param
        param.grad = None
        with torch.no_grad():
            # Autograd forgets what it knew of the old shape when the dtype changes.
            param.data = x.new_empty(0, dtype=torch.float32 if x.dtype is torch.float64 else torch.float64)
            param.data = x
        torch.autograd.graph.increment_version(param)
        self.state.update(state)
        for attribute in ("num_embeddings", "out_features"):
            if getattr(self.holder, attribute, None) == old and _is_weight(self.holder, param):
                setattr(self.holder, attribute, len(x))
        if padding is not None:
            self.holder.padding_idx = padding
        self._forget()

    def _forget(self) -> None:
        """Free the old memory, which the optimizers' caches still hold."""
        handle = vars(self.optimizer).get("_in_backward") if self.optimizer is not None else None
        for optimizer in (self.optimizer, *(handle.optimizers if isinstance(handle, InBackward) else ())):
            if isinstance(optimizer, MatrixOptimizer):
                optimizer.forget_last_step()


def table_of(module: nn.Module, optimizer: Optimizer | None, name: str) -> Table:
    """Find a table, and raise an error if its rows cannot be changed."""
    if not isinstance(module, nn.Module):
        raise TypeError(f"module must be an nn.Module, got {type(module).__name__}")
    if not isinstance(optimizer, Optimizer | None):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer or None, got {type(optimizer).__name__}")
    params = dict(module.named_parameters(remove_duplicate=False))
    if name not in params:
        raise ValueError(f"name must be that of a parameter of {type(module).__name__}, {[*params]}, got {name!r}")
    param = params[name]
    if is_sharded(param):
        raise ValueError(
            f"{name} is sharded, and its rows cannot be changed: do it before the model is sharded, or with a full "
            "state dict in a single process"
        )
    if is_lazy(param) or not param.dim() or not are_plain((param,)):
        raise ValueError(f"{name} must be a plain parameter with rows, got {type(param).__name__} {param!r:.40}")
    path, _, own_name = name.rpartition(".")
    holder: Any = module.get_submodule(path)
    if hasattr(holder, "table_holder"):
        holder = holder.table_holder(own_name)
    if optimizer is None:
        return Table(name, param, holder, None, {})
    for owner in optimizer.optimizers if isinstance(optimizer, CombinedOptimizer) else (optimizer,):
        for group in owner.param_groups:
            if any(own is param for own in group["params"]):
                return Table(name, param, holder, owner, group)
    raise ValueError(f"{name} of {type(module).__name__} is in no group of the optimizer: pass that which trains it")


def _longer(shape: Sequence[int]) -> tuple[int, ...]:
    return (shape[0] + 1, *shape[1:])


def _is_weight(holder: Any, param: Tensor) -> bool:
    return getattr(holder, "weight", param) is param
