"""What each parameter gets and why, as a table, and how much an optimizer keeps for it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from matrix_adagrad.geometry import Geometry
from matrix_adagrad.optim.adagrad import MatrixAdaGrad
from matrix_adagrad.optim.choices import Choice, grouped
from matrix_adagrad.optim.combined import CombinedOptimizer
from matrix_adagrad.optim.momentum import MatrixMomentum
from matrix_adagrad.optim.steepest import SteepestDescent
from matrix_adagrad.optim.step.update import local
from matrix_adagrad.text import columns, folded, size
from matrix_adagrad.torch_private import tree_leaves

__all__ = ["explained_groups", "explained_optimizer", "state_bytes"]

Choices = Sequence[Choice]


def state_bytes(optimizer: Optimizer) -> int:
    """The bytes of all tensors in an optimizer's state, also in nested lists and dicts.

    Step counters count too, 4 bytes per parameter. Of a sharded tensor, the shard of this process counts.

    Example:
        >>> import torch
        >>> from matrix_adagrad import RowAdaGrad, state_bytes
        >>> table = torch.nn.Embedding(1000, 16)
        >>> for cls in (torch.optim.AdamW, RowAdaGrad):
        ...     optimizer = cls(table.parameters())
        ...     table(torch.tensor([3])).sum().backward()
        ...     optimizer.step()
        ...     print(state_bytes(optimizer))
        128004
        4004
    """
    return _bytes([optimizer.state[param] for param in optimizer.state])


def _bytes(state: Any) -> int:
    return sum(local(value).nbytes for value in tree_leaves(state) if isinstance(value, Tensor))


class _StateSize(NamedTuple):
    optimizer: str
    nbytes: int


def _state_sizes(make: Callable[[Choices], CombinedOptimizer], choices: Choices) -> list[_StateSize]:
    """Each parameter's optimizer and the bytes of its state, as made for such parameters on the meta device.

    Of a sharded parameter, the whole counts.
    """
    keys = [
        (choice.kind, choice.geometry, choice.param.shape, choice.param.dtype, choice.param.requires_grad)
        for choice in choices
    ]
    twins = {
        key: choice._replace(param=_without_memory(choice.param)) for key, choice in zip(keys, choices, strict=True)
    }
    optimizer = make(list(twins.values()))
    optimizer.init_state()
    names = {
        param: type(part).__name__ + ", β₁=0" * (group.get("betas", (None,))[0] == 0)
        for part in optimizer.optimizers
        for group in part.param_groups
        for param in group["params"]
    }
    kept = {key: _StateSize(names[twin.param], _bytes(optimizer.state.get(twin.param))) for key, twin in twins.items()}
    return [kept[key] for key in keys]


def _without_memory(param: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(torch.empty(param.shape, dtype=param.dtype, device="meta"), param.requires_grad)


def _sizes_with(cls: Any, choices: Choices) -> list[int]:
    """The bytes that one optimizer of this class would keep for each parameter."""
    return [kept.nbytes for kept in _state_sizes(lambda twins: CombinedOptimizer([cls(grouped(twins))]), choices)]


def explained_groups(choices: Choices, idle: Sequence[str]) -> str:
    """A table of the choices with their scales, and the state of the families that take them, next to AdamW's."""
    shapes = [choice.param.shape for choice in choices]
    geometries = [choice.geometry.on(shape) for choice, shape in zip(choices, shapes, strict=True)]
    scales = [
        geometry.scales(shape) if choice.param.requires_grad else 0
        for choice, geometry, shape in zip(choices, geometries, shapes, strict=True)
    ]
    lines = [_table(choices, {}, {"scales": scales}, "{:,}".format)]
    has_norms_alone = any(not geometry.statistics for geometry in geometries)
    families = (SteepestDescent,) if has_norms_alone else (MatrixAdaGrad, MatrixMomentum)
    sizes = []
    for cls in families:
        with contextlib.suppress(ValueError):  # some of the geometries are not for this family
            sizes.append(f"{cls.__name__} {size(sum(_sizes_with(cls, choices)))}")
    if choices:
        adamw = f"AdamW {size(sum(_sizes_with(AdamW, choices)))}"
        lines.append(f"state: {'; '.join([*filter(None, [' or '.join(sizes)]), adamw])}")
    return "\n".join([*lines, *_remarks(idle if choices else ())])


def explained_optimizer(choices: Choices, idle: Sequence[str], make: Callable[[Choices], CombinedOptimizer]) -> str:
    """A table of the choices, with each parameter's optimizer and the bytes that it keeps, next to AdamW's."""
    optimizers, kept = zip(*_state_sizes(make, choices), strict=True)
    adamw = _sizes_with(AdamW, choices)
    share = f"{sum(kept) / sum(adamw):.0%} of AdamW's state" if sum(adamw) else ""
    table = _table(choices, {"optimizer": optimizers}, {"state": kept, "AdamW": adamw}, size, share)
    return "\n".join([table, *_remarks(idle)])


def _table(
    choices: Choices,
    words: Mapping[str, Sequence[str]],
    numbers: Mapping[str, Sequence[int]],
    shown: Callable[[int], str],
    remark: str = "",
) -> str:
    """The choices with these columns. Parameters that differ only in the number of their layer share a line.

    A line has the sum of its parameters' numbers. The last one has the total.
    """
    header = ("parameter", "shape", *words, "geometry", *numbers, "reason")
    alike: dict[tuple[tuple[str, ...], str, tuple[int, ...]], dict[str, int]] = {}
    for i, choice in enumerate(choices):
        shape = " × ".join(map(str, choice.param.shape)) or "scalar"
        own = (shape, *(column[i] for column in words.values()), _written(choice.geometry))
        key = (own, choice.reason, tuple([column[i] for column in numbers.values()]))
        alike.setdefault(key, {})[choice.name] = i
    lines: dict[int, tuple[str, ...]] = {}
    for (own, reason, values), places in alike.items():
        for pattern, names in folded(places).items():
            title = pattern if len(names) == 1 else f"{pattern} × {len(names)}"
            sums = [shown(len(names) * value) for value in values]
            lines[min(places[name] for name in names)] = (title, *own, *sums, reason)
    entries = sum(choice.param.numel() for choice in choices if choice.param.requires_grad)
    sums = [shown(sum(column)) for column in numbers.values()]
    total = ("total", f"{entries:,}", *[""] * len(words), "", *sums, remark)
    is_number = [name in numbers for name in header]
    rows = [*(lines[i] for i in sorted(lines)), total]
    return columns(header, rows, left=[i for i, right in enumerate(is_number) if not right])


def _written(geometry: Geometry) -> str:
    """As you would write it."""
    own: Any = geometry
    if not fields(own):
        return str(geometry)
    is_default = all(getattr(own, field.name) == field.default for field in fields(own))
    return f"{type(geometry).__name__}()" if is_default else repr(geometry)


def _remarks(idle: Iterable[str]) -> list[str]:
    return [f"rule {rule} never applies: earlier rules match first" for rule in idle]
