"""Tables that are larger than memory."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from matrix_adagrad.optim.base import MatrixOptimizer
from matrix_adagrad.optim.combined import without_hooks
from matrix_adagrad.tables.files import empty_in_file, folder_of
from matrix_adagrad.tables.rows import Init, Table, table_of

__all__ = ["map_table"]

_PIECE_BYTES = 1 << 24


def map_table(
    module: nn.Module,
    optimizer: Optimizer | None,
    folder: str | Path,
    *,
    name: str = "weight",
    init: Init | None = None,
) -> None:
    """Keep a table, and what the optimizer keeps for its rows, in files that are mapped into memory.

    The system reads rows from the disk when they are used, and writes them back when it needs the memory. With sparse
    gradients, a step touches the rows of the batch alone, so table and state may be larger than memory. A table that
    never was in memory is made on the device ``"meta"`` and mapped before its optimizer exists; its state is mapped by
    a second call, before the first step.

    The files are memory, not checkpoints: they have no names, and are gone with the process. Save with
    ``Checkpoints(…, share_unchanged=True)``, which writes and reads a piece at a time. If the disk gets full, the
    system kills the process.

    Args:
        module: as in `resize_table`, which keeps a mapped table mapped.
        optimizer: as in `resize_table`. State that does not exist yet is created, if the optimizer is of this package.
        folder: where the files are, on a fast local disk. It exists.
        name: as in `resize_table`.
        init: how rows of a table on ``"meta"`` start, as in `resize_table`. New files contain zeros.

    Example:
        >>> import tempfile, torch
        >>> from matrix_adagrad import EmbeddingBag, RowAdaGrad
        >>> from matrix_adagrad.tables import map_table
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     bags = EmbeddingBag(1_000_000, 16, mode="sum", sparse=True, device="meta")
        ...     map_table(bags, None, folder, init=lambda new: None)  # zeros, for which the disk needs no room
        ...     optimizer = RowAdaGrad(bags.parameters(), lr=0.1)
        ...     map_table(bags, optimizer, folder)
        ...     (1 - bags(torch.tensor([[3, 5]]))).square().sum().backward()
        ...     optimizer.step()
        ...     bags.weight[5, 0].item() > 0
        True
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise NotADirectoryError(f"folder must be a folder, got {folder}")
    table = table_of(module, optimizer, name)
    if table.param.is_meta:
        if optimizer is not None:
            raise ValueError(f'{name} is on the device "meta": map it with optimizer=None, and make the optimizer then')
        _make(module, table, folder, init)
        return
    if not table.param.is_cpu:
        raise ValueError(f"{name} must be in the memory of the CPU, and is on {table.param.device}")
    if folder_of(table.param) is None:
        table.replace(_copied(table.param.detach(), folder), {}, table.padding)
    if isinstance(table.optimizer, MatrixOptimizer) and not table.state:
        table.optimizer.state[table.param] = _new_state(table, table.optimizer, folder)
    by_row = [(key, value) for key, value, _ in table.state_by_row() if folder_of(value) is None]
    table.state.update({key: _copied(value, folder) for key, value in by_row})


def _make(module: nn.Module, table: Table, folder: Path, init: Init | None) -> None:
    x = empty_in_file(folder, table.param.shape, table.param.dtype)
    fill = init or table.default_init()
    with torch.no_grad():
        for piece in _pieces(x):
            fill(piece)
        if init is None and table.padding is not None:
            x[table.padding] = 0
    path, _, attribute = table.name.rpartition(".")
    setattr(module.get_submodule(path), attribute, nn.Parameter(x, requires_grad=table.param.requires_grad))


def _pieces(x: Tensor) -> tuple[Tensor, ...]:
    return x.split(max(1, _PIECE_BYTES * len(x) // max(1, x.nbytes))) if len(x) else ()


def _copied(x: Tensor, folder: Path) -> Tensor:
    return empty_in_file(folder, x.shape, x.dtype, x).copy_(x)


def _new_state(table: Table, optimizer: MatrixOptimizer, folder: Path) -> dict[str, Any]:
    """What the optimizer would create for a parameter like this one, the rows' own in files."""
    twin = nn.Parameter(torch.empty_like(table.param, device="meta"))
    maker: Any = without_hooks(optimizer)
    maker.state, maker.param_groups = defaultdict(dict), [{**table.group, "params": [twin], "param_names": None}]
    maker.init_state()
    twin_table = Table(table.name, twin, table.holder, maker, maker.param_groups[0])
    by_row = {key for key, _, _ in twin_table.state_by_row()}
    made = {}
    for key, value in twin_table.state.items():
        if not value.is_meta:
            made[key] = value
            continue
        made[key] = empty_in_file(folder, value.shape, value.dtype, value) if key in by_row else _zeros(value)
        if start := twin_table.start(key):
            made[key].fill_(start)
    return made


def _zeros(value: Tensor) -> Tensor:
    return torch.zeros_like(value, device="cpu")
