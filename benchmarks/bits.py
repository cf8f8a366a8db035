"""Hashes of the results of every kind of step, to compare two versions of the code bit for bit.

    python -m benchmarks.bits write FILE [--only PREFIX] [--threads N]
    python -m benchmarks.bits compare FILE [--only PREFIX] [--threads N]

``write`` runs thousands of cases and writes a hash for each: of the parameter and all its state after a few steps, or
of the error that was raised. ``compare`` runs them again and exits with 1 if any hash differs or any case is missing.
PYTHONPATH decides which code runs; both commands print its location. ``--only sparse/`` runs only the cases whose names
start with that.

A name starts with the kind of case and ends with the parameter. Gradients depend only on the name; their rows and
columns differ by orders of magnitude. The hashes depend on torch and on the CPU, so a file is valid only on one
machine. They do not depend on ``--threads``: where torch's own sums over large tensors would, a case runs on one
thread. Cases under ``stochastic/`` draw random numbers. If they differ, this is reported, but it is not an error.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import functools
import hashlib
import io
import itertools
import json
import logging
import math
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Generator, Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn import Parameter

import matrix_adagrad as ours
from matrix_adagrad import Batched, Blocks, Column, CombinedOptimizer, Entry, MatrixAdaGrad, MatrixMomentum, Row, Whole
from matrix_adagrad import domains as sets

Options = dict[str, Any]
Tensors = dict[str, list[tuple[str, Tensor]]]  # what is hashed, for each parameter by its name
Case = tuple[str, Callable[[Generator], Tensors]]

FAMILIES: dict[str, Any] = {"AdaGrad": MatrixAdaGrad, "Momentum": MatrixMomentum}
GEOMETRIES = {
    **{str(geometry): geometry for geometry in (Row(), Column(), Entry(), Whole(), Blocks(rows=2), Blocks(columns=4))},
    **{str(geometry): geometry for geometry in (Blocks(rows=4, columns=2), Blocks(rows=2, columns=None))},
    **{str(geometry): geometry for geometry in map(Batched, (Row(), Column(), Blocks(rows=2)))},
}
MODES: dict[str, Options] = {
    "default": {},
    "fused": {"fused": True},
    "foreach": {"foreach": True},
    "loop": {"foreach": False},
    "differentiable": {"differentiable": True},
}
IN_TORCH = ("foreach", "loop")
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (torch.float32, torch.float64, torch.bfloat16)}
ALL_DTYPES = {**DTYPES, "float16": torch.float16, "complex64": torch.complex64}

COMMON: dict[str, Options] = {
    "mean": {"reduction": "mean"},
    "eps=0": {"eps": 0.0},
    "eps=1": {"eps": 1.0},
    "decay": {"weight_decay": 0.1},
    "decoupled": {"weight_decay": 0.1, "decoupled_weight_decay": True},
    "maximize": {"maximize": True, "weight_decay": 0.01},
    "lr=0": {"lr": 0.0},
    "lr=tensor": {"lr": torch.tensor(0.1)},
    "lr=float64": {"lr": torch.tensor([0.1], dtype=torch.float64), "weight_decay": 0.1, "decoupled_weight_decay": True},
    "capturable": {"capturable": True},
    "capturable,lr=tensor": {"capturable": True, "lr": torch.tensor(0.1)},
    "all": {"reduction": "mean", "eps": 0.0, "weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True},
    "default=float64": {"default": torch.float64},
}
# Of these kinds, only one case in this many is run, chosen by its name.
ONE_IN = {"dense": 4, "extreme": 2, "options": 6, "large": 3, "sparse": 4, "sparse options": 3, "large sparse": 4}
ONE_IN |= {"bags": 2, "domains": 6, "sparse domains": 4, "saved": 4, "models": 2}
ONE_IN |= {"sharded": 3, "sharded domains": 3, "stochastic": 3, "not stochastic": 3}
OWN: dict[str, dict[str, Options]] = {
    "AdaGrad": {"initial": {"initial_accumulator_value": 0.5}},
    "Momentum": {
        "biased": {"bias_correction": False},
        **{f"betas={a},{b}": {"betas": (a, b)} for a, b in ((0.0, 0.999), (0.9, 0.0), (0.0, 0.0), (0.5, 0.8))},
    },
}


class MemoryLayout(NamedTuple):
    """The shape of a parameter, and how it and its gradients lie in memory."""

    shape: tuple[int, ...]
    param: str = "contiguous"
    grad: str = "contiguous"


LAYOUTS = {
    **{
        "x".join(map(str, shape)): MemoryLayout(shape)
        for shape in ((12, 16), (13, 7), (1, 9), (9, 1), (1, 1), (33, 65))
    },
    **{
        "x".join(map(str, shape)): MemoryLayout(shape)
        for shape in ((4, 1030), (1030, 4), (4, 6, 8), (8, 4, 3, 3), (1, 6, 8))
    },
    **{name: MemoryLayout(shape) for name, shape in (("vector", (37,)), ("one", (1,)), ("scalar", ()))},
    **{f"empty {shape}": MemoryLayout(shape) for shape in ((0, 4), (4, 0), (0,), (2, 0, 4))},
    **{
        f"12x16 {how}": MemoryLayout((12, 16), how, how)
        for how in ("transposed", "apart", "rows apart", "padded", "shifted")
    },
    "12x16 transposed gradient": MemoryLayout((12, 16), "contiguous", "transposed"),
    "12x16 transposed parameter": MemoryLayout((12, 16), "transposed"),
    "12x16 expanded gradient": MemoryLayout((12, 16), "contiguous", "expanded"),
    "12x16 apart gradient": MemoryLayout((12, 16), "contiguous", "apart"),
    "vector apart": MemoryLayout((38,), "apart", "apart"),
    "4x6x8 transposed": MemoryLayout((4, 6, 8), "transposed", "transposed"),
    "4x6x8 reversed": MemoryLayout((4, 6, 8), "reversed", "reversed"),
    "8x4x3x3 channels_last": MemoryLayout((8, 4, 3, 3), "channels_last", "channels_last"),
    "8x4x3x3 channels_last parameter": MemoryLayout((8, 4, 3, 3), "channels_last"),
}
LARGE = {
    "3000x300": MemoryLayout((3000, 300)),
    "300x3000 transposed": MemoryLayout((300, 3000), "transposed", "transposed"),
    "4x1000x200": MemoryLayout((4, 1000, 200)),
}
FEW = ("12x16", "vector", "8x4x3x3 channels_last", "4x6x8")


def balls_and_boxes(rows: int) -> dict[str, sets.Domain]:
    """Domains for tensors with this many rows."""
    half = rows // 2
    products = {
        "rows product": sets.RowProduct(((half, sets.RowBalls(0.5)), (rows - half, sets.RowSimplex()))),
        "tied product": sets.RowProduct(((half, sets.FrobeniusBall(1.0)), (rows - half, sets.Box(-0.5, 0.1)))),
    }
    others = (sets.RowBalls(0.5), sets.ColumnBalls(0.5), sets.FrobeniusBall(1.0), sets.Balls(0.7, Blocks(rows=2)))
    others += (sets.Balls(0.7, Blocks(columns=4)), sets.Balls(0.3, Batched(Row())), sets.Balls(0.3, Entry()))  # type: ignore[assignment]
    sums = (sets.RowSimplex(), sets.ColumnSimplex(2.0), sets.Simplices(1.0, Whole()), sets.L1Ball(1.5))
    boxes = (sets.L1Balls(0.5), sets.L1Balls(0.5, Column()), sets.Box(-0.1, 0.3), sets.NonNegative(), sets.WholeSpace())
    return {**{repr(domain).replace("/", ":"): domain for domain in (*others, *sums, *boxes)}, **products}


# ------------------------------------------------------------------------------------------------------------- tensors


def spread(shape: Sequence[int], dtype: torch.dtype, generator: Generator) -> Tensor:
    """Random numbers, with rows and columns that differ by orders of magnitude. One row is 0."""
    x = torch.randn(shape, generator=generator, dtype=torch.complex64 if dtype.is_complex else torch.float64)
    for d, powers in ((0, 4), (-1, 2)) if shape else ():
        size = [1] * len(shape)
        size[d] = shape[d]
        x *= 10 ** (powers * (torch.rand(size, generator=generator, dtype=torch.float64) - 0.5))
    if shape and shape[0] > 2:
        x[1] = 0
    return x.to(dtype)


def laid_out(x: Tensor, how: str) -> Tensor:
    """The same numbers in another memory layout."""
    if how == "transposed":
        return x.mT.contiguous().mT
    if how == "reversed":
        order = tuple(reversed(range(x.dim())))
        return x.permute(order).contiguous().permute(order)
    if how == "channels_last":
        return x.contiguous(memory_format=torch.channels_last)
    if how == "apart":
        return x.new_zeros(*x.shape[:-1], 2 * x.shape[-1])[..., ::2].copy_(x)
    if how == "rows apart":
        return x.new_zeros(2 * len(x), *x.shape[1:])[::2].copy_(x)
    if how == "padded":
        return x.new_zeros(*x.shape[:-1], x.shape[-1] + 3)[..., :-3].copy_(x)
    if how == "shifted":  # by less than a cache line, or a vector register
        return x.new_zeros(x.numel() + 1)[1:].view(x.shape).copy_(x)
    return x[:1].expand(x.shape) if how == "expanded" else x


def made(layout: MemoryLayout, dtype: torch.dtype, generator: Generator) -> Parameter:
    """An initial parameter."""
    start = torch.randn(layout.shape, generator=generator, dtype=torch.complex64 if dtype.is_complex else torch.float32)
    return Parameter(laid_out(start.to(dtype), layout.param))


def state_of(optimizer: Any, params: Mapping[str, Tensor]) -> Tensors:
    """The parameters with their state."""
    return {name: [("param", x), *sorted(optimizer.state.get(x, {}).items())] for name, x in params.items()}


def hashed(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """A hash of the bits of tensors, with their names, dtypes and shapes."""
    sha = hashlib.sha256()
    for name, tensor in tensors:
        x = tensor.detach()
        x = x.full_tensor() if isinstance(x, DTensor) else x
        sha.update(f"{name} {x.dtype} {tuple(x.shape)};".encode())
        sha.update(x.reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()[:24]


# ------------------------------------------------------------------------------------------------------- kinds of runs


def dense(
    generator: Generator,
    family: str,
    layouts: Mapping[str, MemoryLayout],
    dtype: torch.dtype,
    options: Options,
    backend: str | None = None,
    threads: int | None = None,
    extreme: Sequence[float] = (),
) -> Tensors:
    """Three steps of parameters in one group. Their gradients contain the numbers in ``extreme``."""
    options = {"lr": 0.1, **options}
    torch.set_default_dtype(options.pop("default", torch.float32))
    torch.set_num_threads(threads or torch.get_num_threads())
    params: dict[str, Tensor] = {name: made(layout, dtype, generator) for name, layout in layouts.items()}
    recorded = options.get("differentiable", False)
    if recorded:
        params = {name: param.clone() for name, param in params.items()}
    optimizer = FAMILIES[family](list(params.values()), **options)
    step = optimizer.step if backend is None else torch.compile(optimizer.step, backend=backend, fullgraph=True)
    grads = []
    for _ in range(3):
        for name, param in params.items():
            grad = spread(param.shape, dtype, generator)
            grad.view(-1)[: len(extreme)] = torch.tensor(extreme).to(dtype)[: grad.numel()]
            param.grad = laid_out(grad, layouts[name].grad).requires_grad_(recorded)
            grads.append(param.grad)
        step()
    result = state_of(optimizer, params)
    if recorded:
        torch.stack([param.abs().square().sum() for param in params.values()]).sum().backward()
        next(iter(result.values())).extend(("derivative", grad.grad) for grad in grads if grad.grad is not None)
    return result


def groups_of(generator: Generator, family: str, dtype: torch.dtype, options: Options) -> Tensors:
    """Groups with different geometries, some missing gradients, a schedule, and a group that is added later."""
    params: dict[str, Parameter] = {}
    groups: list[Options] = []
    extras: Iterable[Options] = itertools.cycle(
        [{}, {"weight_decay": 0.1}, {"eps": 0.1, "lr": 0.3}, {"reduction": "mean"}]
    )
    for (name, geometry), extra in zip(GEOMETRIES.items(), extras, strict=False):
        some = {f"{name} {key}": made(layout, dtype, generator) for key, layout in fitting(geometry, FEW).items()}
        params |= some
        groups.append({"params": list(some.values()), "geometry": geometry, **extra})
    optimizer = FAMILIES[family](groups[:-1], lr=0.1, **options)
    for t in range(4):
        for i, param in enumerate(params.values()):
            grad = spread(param.shape, dtype, generator)
            param.grad = None if (i + t) % 5 == 0 else grad
        if t == 2:
            optimizer.add_param_group(groups[-1])
            optimizer.param_groups[0]["geometry"] = Row()
        for group in optimizer.param_groups:
            group["lr"] *= 0.7
        optimizer.step()
    return state_of(optimizer, params)


def reloaded(
    generator: Generator,
    family: str,
    layout: MemoryLayout,
    dtype: torch.dtype,
    how: str,
    options: Options,
    then: Options,
) -> Tensors:
    """Two steps, a checkpoint, and two more in another optimizer."""
    param = made(layout, dtype, generator)
    optimizer = FAMILIES[family]([("x", param)], lr=0.1, **options)
    for t in range(4):
        if t == 2 and how == "copy":
            param, optimizer = copy.deepcopy((param, optimizer))
        elif t == 2:
            saved = optimizer.state_dict()
            if how == "file":
                torch.save(saved, file := io.BytesIO())
                file.seek(0)
                saved = torch.load(file, weights_only=True)
            optimizer = FAMILIES[family]([param], **{**options, **then})
            optimizer.load_state_dict(saved)
            optimizer.param_groups[0].update(then)
        param.grad = spread(param.shape, dtype, generator)
        optimizer.step()
    return state_of(optimizer, {"x": param})


def sparse_gradient(kind: str, shape: Sequence[int], dtype: torch.dtype, generator: Generator) -> Tensor:
    """A gradient in some rows of a table."""
    rows, touched = shape[0], {"empty": 0, "repeated": 2 * shape[0]}.get(kind, shape[0] // 2)
    index = torch.randperm(rows, generator=generator)[:touched]
    if kind == "repeated":
        index = torch.randint(rows, (touched,), generator=generator)
    index = index.sort().values if kind == "coalesced" else index
    values = spread((touched, *shape[1:]), dtype, generator)
    sorted_ = kind in ("coalesced", "empty")
    return torch.sparse_coo_tensor(index[None], values, tuple(shape), is_coalesced=sorted_, check_invariants=False)


def sparse(
    generator: Generator,
    family: str,
    layout: MemoryLayout,
    dtype: torch.dtype,
    kind: str,
    options: Options,
    threads: int = 0,
) -> Tensors:
    """Three steps of a table. With the kind "mixed", the second has a dense gradient."""
    torch.set_num_threads(threads or torch.get_num_threads())
    param = made(layout, dtype, generator)
    optimizer = FAMILIES[family]([param], **{"lr": 0.1, **options})
    for t in range(3):
        if kind == "mixed" and t == 1:
            param.grad = spread(layout.shape, dtype, generator)
        else:
            param.grad = sparse_gradient("repeated" if kind == "mixed" else kind, layout.shape, dtype, generator)
        optimizer.step()
    return state_of(optimizer, {"x".join(map(str, layout.shape)): param})


def bags(generator: Generator, family: str, dtype: torch.dtype, kind: str, options: Options) -> Tensors:
    """Three steps of a table whose rows are summed in bags."""
    rows, mode = 30, "mean" if "mean" in kind else "sum"
    bag = ours.EmbeddingBag(rows, 9, mode=mode, sparse=True, padding_idx=3 if "padding" in kind else None, dtype=dtype)
    bag.weight.data.copy_(torch.randn(bag.weight.shape, generator=generator))
    optimizer = FAMILIES[family](bag.parameters(), **{"lr": 0.1, **options})
    for _ in range(3):
        optimizer.zero_grad()
        for _ in range(2 if "accumulated" in kind else 1):
            index, offsets = torch.randint(rows, (40,), generator=generator), torch.tensor([0, 3, 3, 10, 25, 40])
            out = bag(index, offsets) if "offsets" in kind else bag(index.view(8, 5))
            (out * spread(out.shape, dtype, generator)).sum().backward()
        optimizer.step()
    return state_of(optimizer, {"30x9": bag.weight})


class Model(nn.Module):
    """One layer of every kind, whose parameters get prescribed gradients."""

    def __init__(self, generator: Generator) -> None:
        super().__init__()
        self.table, self.tokens = nn.Embedding(20, 8, sparse=True), nn.Embedding(11, 8)
        self.bag = ours.EmbeddingBag(15, 8, mode="sum", sparse=True)
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.LayerNorm(8)
        self.hidden, self.experts = nn.Linear(8, 16), Parameter(torch.empty(3, 4, 8))
        self.head = nn.Linear(16, 5)
        for param in self.parameters():
            param.data.copy_(torch.randn(param.shape, generator=generator))

    def loss(self, generator: Generator) -> Tensor:
        """A loss whose gradients are random numbers."""
        indexed = self.table(torch.randint(20, (12,), generator=generator))
        bagged = self.bag(torch.randint(15, (6, 4), generator=generator))
        whole = [p for name, p in self.named_parameters() if not name.startswith(("table", "bag"))]
        terms = [(x * spread(x.shape, x.dtype, generator)).sum() for x in (indexed, bagged, *whole)]
        return torch.stack(terms).sum()


def optimizer_of(model: Model, kind: str, options: Options) -> Any:
    """An optimizer of a whole model."""
    family, _, rules = kind.partition(" ")
    tables = [model.table.weight, model.bag.weight]
    rest = [param for param in model.parameters() if all(param is not table for table in tables)]
    if family == "matrix_optimizer":
        return ours.matrix_optimizer(model, rules=rules or "balanced", weight_decay=0.1)
    if family == "combined":
        parts = [ours.RowAdaGrad(tables, lr=0.1, **options), ours.ColumnMomentum(rest[:5], lr=0.1, **options)]
        return CombinedOptimizer([*parts, torch.optim.SGD(rest[5:], lr=0.01)])
    if family in FAMILIES:
        own: Any = {"own": {"*.bias": "whole", nn.Linear: Blocks(rows=1, columns=4), "experts": Batched(Column())}}
        groups = ours.geometry_groups(model, own.get(rules, rules), weight_decay=0.05)
        return FAMILIES[family](groups, lr=0.1, **options)
    return getattr(ours, family)(model.parameters(), lr=0.1, **options)


def models(generator: Generator, kind: str, loop: str, options: Options) -> Tensors:
    """Four steps of a model, after or in the backward pass, with a checkpoint in between."""
    torch.set_num_threads(1)  # the spectral direction multiplies matrices
    model = Model(generator)
    optimizer = optimizer_of(model, kind, options)
    for t in range(4):
        if t == 2 and "saved" in loop:
            saved = copy.deepcopy(optimizer.state_dict())
            optimizer = optimizer_of(model, kind, options)
            optimizer.load_state_dict(saved)
        if "backward" in loop and t in (0, 2):
            handle = ours.step_in_backward(optimizer)
        model.loss(generator).backward()
        optimizer.step()
        optimizer.zero_grad()
        if "backward" in loop and t in (1, 3):
            handle.remove()
    return state_of(optimizer, dict(model.named_parameters()))


# --------------------------------------------------------------------------------------------------------------- cases


def fits(geometry: Any, shape: Any) -> bool:
    """Whether tensors of this shape can be cut into the geometry's blocks."""
    try:
        geometry.check_fits("x", shape)
    except (TypeError, ValueError):
        return False
    return True


def case(key: str, run: Callable[..., Tensors], **arguments: Any) -> Case:
    """A case and its name."""
    return key, functools.partial(run, **arguments)


def fitting(geometry: Any, keys: Iterable[str]) -> dict[str, MemoryLayout]:
    """Those of these layouts that fit the geometry."""
    return {key: layout for key, layout in LAYOUTS.items() if key in keys and fits(geometry, layout.shape)}


def dense_cases() -> Iterator[Case]:
    """Steps with dense gradients, in one group."""
    for family, (name, geometry), mode in itertools.product(FAMILIES, GEOMETRIES.items(), MODES):
        options, start = {"geometry": geometry, **MODES[mode]}, f"{family}/{name}/{mode}"
        run, keys = functools.partial(dense, family=family, options=options), FEW if mode == "fused" else LAYOUTS
        for (key, layout), dtype in itertools.product(fitting(geometry, keys).items(), ALL_DTYPES):
            setting: Options = {"layouts": {key: layout}, "dtype": ALL_DTYPES[dtype]}
            if key in FEW or "transposed" in key or dtype in ("float32", "bfloat16"):
                yield case(f"dense/{start}/{dtype}/{key}", run, **setting)
            for numbers in ((1e30, -1e-30), (math.inf,), (math.nan,), (-0.0,)) if key in FEW else ():
                if dtype == "float32":
                    yield case(f"extreme/{start}/{key}/{numbers}", run, extreme=numbers, **setting)
        for (extra, given), dtype in itertools.product((COMMON | OWN[family]).items(), ("float32", "bfloat16")):
            for key, layout in fitting(geometry, FEW).items():
                setting = {"layouts": {key: layout}, "dtype": DTYPES[dtype], "options": options | given}
                yield case(f"options/{start}/{extra}/{dtype}/{key}", dense, family=family, **setting)
        for key, layout in LARGE.items() if mode in ("default", "foreach") else ():
            for dtype in ("float32", "bfloat16") if key == "3000x300" else ("float32",):
                setting = {"layouts": {key: layout}, "dtype": DTYPES[dtype], "threads": 1 if mode in IN_TORCH else None}
                yield case(f"large/{start}/{dtype}/{key}", run, **setting)
        yield case(f"many/{start}", run, layouts=fitting(geometry, keys), dtype=torch.float32)


def sparse_cases() -> Iterator[Case]:
    """Steps with sparse gradients, and with those of bags."""
    kinds = ("coalesced", "unordered", "repeated", "empty", "mixed")
    tables = {
        "20x8": MemoryLayout((20, 8)),
        "22x7": MemoryLayout((22, 7)),
        "8x4x6": MemoryLayout((8, 4, 6)),
        "vector": MemoryLayout((20,)),
    }
    tables |= {f"20x8 {how}": MemoryLayout((20, 8), how) for how in ("transposed", "apart", "shifted")}
    bagged = ("sum", "mean offsets", "sum offsets padding", "sum offsets accumulated")
    for family, (name, geometry), mode in itertools.product(FAMILIES, GEOMETRIES.items(), list(MODES)[:4]):
        options, start = {"geometry": geometry, **MODES[mode]}, f"{family}/{name}/{mode}"
        run = functools.partial(sparse, family=family)
        for kind, dtype, (key, layout) in itertools.product(kinds, list(ALL_DTYPES)[:4], tables.items()):
            setting: Options = {"layout": layout, "dtype": ALL_DTYPES[dtype], "kind": kind}
            if fits(geometry, layout.shape) and (key == "20x8" or dtype in ("float32", "bfloat16")):
                yield case(f"sparse/{start}/{dtype}/{kind}/{key}", run, options=options, **setting)
            if (key, dtype, kind) in (("20x8", "float32", "repeated"), ("20x8", "bfloat16", "coalesced")):
                for extra, given in (COMMON | OWN[family]).items() if fits(geometry, layout.shape) else ():
                    if "default" not in given:
                        yield case(f"sparse options/{start}/{extra}/{dtype}", run, options=options | given, **setting)
        for dtype in ("float32", "bfloat16"):
            setting = {
                "layout": MemoryLayout((6000, 64)),
                "dtype": DTYPES[dtype],
                "kind": "repeated",
                "options": options,
            }
            yield case(f"large sparse/{start}/{dtype}", run, threads=int(mode in IN_TORCH), **setting)
        for kind, dtype in itertools.product(bagged, list(ALL_DTYPES)[:4]) if fits(geometry, (30, 9)) else ():
            setting = {"family": family, "dtype": ALL_DTYPES[dtype], "kind": kind, "options": options}
            yield case(f"bags/{start}/{dtype}/{kind}", bags, **setting)


def domain_cases() -> Iterator[Case]:
    """Steps that end with a projection."""
    for key, layout in (LAYOUTS | LARGE).items():
        modes = ("default", "foreach", "loop") if key == "12x16" else ("default",)
        if key not in (*FEW, "12x16 transposed", "33x65", "3000x300"):
            continue
        for family, (name, geometry), mode in itertools.product(FAMILIES, GEOMETRIES.items(), modes):
            for (shown, domain), dtype in itertools.product(balls_and_boxes(layout.shape[0]).items(), ALL_DTYPES):
                large = key == "3000x300" and not (geometry in (Row(), Column()) and isinstance(domain, sets.Balls))
                x = torch.empty(layout.shape, dtype=ALL_DTYPES[dtype], device="meta")
                if large or not fits(geometry, layout.shape) or not fits(domain, x):
                    continue
                options = {"geometry": geometry, "domain": domain, "project_start": True, **MODES[mode]}
                setting: Options = {"family": family, "dtype": ALL_DTYPES[dtype], "options": options}
                start = f"{family}/{name}/{mode}/{dtype}"
                if key == "12x16" or dtype == "float32":
                    setting["threads"] = 1 if key == "3000x300" else None
                    yield case(f"domains/{start}/{key}/{shown}", dense, layouts={key: layout}, **setting)
                if key == "12x16" and dtype in ("float32", "bfloat16"):
                    yield case(f"sparse domains/{start}/{shown}", sparse, layout=layout, kind="repeated", **setting)


def other_cases() -> Iterator[Case]:
    """Several groups, checkpoints, models, and random numbers."""
    balls = {"domain": sets.RowBalls(2.0), "project_start": True}
    for family, mode, dtype in itertools.product(FAMILIES, list(MODES)[:4], ("float32", "bfloat16")):
        setting: Options = {"family": family, "dtype": DTYPES[dtype]}
        for name, extra in (("free", {}), ("in balls", balls)):
            yield case(f"groups/{family}/{mode}/{dtype}/{name}", groups_of, options=MODES[mode] | extra, **setting)
        for (name, geometry), how in itertools.product(GEOMETRIES.items(), ("dict", "file", "copy", "loop")):
            setting["then"] = {"fused": None, "foreach": False} if how == "loop" else {}
            setting |= {"how": how, "options": {"geometry": geometry, **MODES[mode]}}
            for key, layout in fitting(geometry, FEW).items():
                yield case(f"saved/{family}/{name}/{mode}/{dtype}/{key}/{how}", reloaded, layout=layout, **setting)
        setting = {"family": family, "dtype": DTYPES[dtype]}
    kinds = [f"{family} {rules}" for family in FAMILIES for rules in ("balanced", "lean", "row", "own")]
    kinds += [
        "matrix_optimizer",
        "matrix_optimizer lean",
        "combined",
        "RowAdaGrad",
        "ColumnAdaGrad",
        "RowMomentum",
        "ColumnMomentum",
    ]
    for kind, loop in itertools.product(kinds, ("after", "after saved", "backward", "backward saved")):
        for mode in ("default",) if kind.startswith("matrix_optimizer") else ("default", "foreach", "loop"):
            yield case(f"models/{kind}/{loop}/{mode}", models, kind=kind, loop=loop, options=MODES[mode])
    for family, (name, geometry), mode in itertools.product(FAMILIES, GEOMETRIES.items(), list(MODES)[:4]):
        options = {"geometry": geometry, "stochastic_rounding": True, **MODES[mode]}
        for start, narrow in (("not stochastic", torch.float32), ("stochastic", torch.bfloat16)):
            setting = {"family": family, "dtype": narrow, "options": options}
            layouts, table = fitting(geometry, FEW), MemoryLayout((20, 8))
            yield case(f"{start}/dense/{family}/{name}/{mode}", dense, layouts=layouts, **setting)
            yield case(f"{start}/sparse/{family}/{name}/{mode}", sparse, layout=table, kind="repeated", **setting)


def compiled_cases() -> Iterator[Case]:
    """Steps that torch compiles, in one graph."""
    ball: Options = {"domain": sets.FrobeniusBall(1.0), "project_start": True}
    runs: list[tuple[str, str, Options]] = [("aot_eager", name, {"geometry": g}) for name, g in GEOMETRIES.items()]
    runs += [("eager", name, COMMON[name]) for name in ("all", "decay", "capturable", "default=float64")]
    runs += [("eager", "fused", {"fused": True}), ("eager", "loop", {"foreach": False}), ("eager", "ball", ball)]
    runs += [("inductor", "row", {}), ("inductor", "fused", {"fused": True})]
    for family, (backend, name, given) in itertools.product(FAMILIES, runs):
        setting: Options = {"layouts": fitting(given.get("geometry", Row()), FEW), "dtype": torch.float32, "threads": 1}
        options = {"lr": torch.tensor(0.1), **given}
        yield case(
            f"compiled/{backend}/{family}/{name}", dense, family=family, options=options, backend=backend, **setting
        )


# ------------------------------------------------------------------------------------------------------------- machines

MESHES: dict[str, tuple[tuple[int, ...], tuple[Any, ...]]] = {
    **{f"2 {placement}": ((2,), (placement,)) for placement in (Shard(0), Shard(1), Replicate())},
    "2x2 SR": ((2, 2), (Shard(0), Replicate())),
    "2x2 S0S1": ((2, 2), (Shard(0), Shard(1))),
    "2x2 S1S0": ((2, 2), (Shard(1), Shard(0))),
    "2x2 S0S0": ((2, 2), (Shard(0), Shard(0))),
}
SHARDED = {
    "x".join(map(str, shape)) or "scalar": shape for shape in ((12, 8), (10, 8), (2, 16), (7,), (), (6, 4, 3, 3))
}
mesh_of = functools.cache(functools.partial(init_device_mesh, "cpu"))


def shared(x: Tensor, mesh: DeviceMesh, placements: Iterable[Any]) -> DTensor:
    """A tensor that all ranks have, sharded. Placements for dimensions it does not have are ignored."""
    own = [Replicate() if isinstance(at, Shard) and at.dim >= x.dim() else at for at in placements]
    return distribute_tensor(x, mesh, own, src_data_rank=None)


def sharded(
    generator: Generator, family: str, mesh: str, dtype: torch.dtype, options: Options, partial: bool = False
) -> Tensors:
    """Three steps of sharded parameters. Gradients are sharded the same way, or partial sums."""
    over, placements = mesh_of(MESHES[mesh][0]), MESHES[mesh][1]
    shapes = {name: shape for name, shape in SHARDED.items() if fits(options["geometry"], shape)}
    if options.get("domain"):
        shapes = {name: shape for name, shape in shapes.items() if fits(options["domain"], torch.empty(shape))}
    params = {
        name: Parameter(shared(torch.randn(shape, generator=generator).to(dtype), over, placements))
        for name, shape in shapes.items()
    }
    optimizer = FAMILIES[family](list(params.values()), lr=0.1, **options)
    for _ in range(3):
        for param in params.values():
            grad = spread(param.shape, dtype, generator)
            if partial:
                param.grad = DTensor.from_local(grad, over, [Partial()] * over.ndim)
            else:
                param.grad = shared(grad, over, placements)
        optimizer.step()
    return state_of(optimizer, params)


def sharded_cases(world: int) -> Iterator[Case]:
    """Steps of sharded parameters on this many ranks. All ranks run the same cases."""
    few = (Row(), Column(), Whole(), Blocks(rows=2))
    domains: list[sets.Domain] = [sets.FrobeniusBall(1.0), sets.RowBalls(0.5), sets.ColumnBalls(0.5)]
    if world == 2:
        domains += [sets.RowSimplex(), sets.ColumnSimplex(), sets.L1Ball(1.5), sets.Box(-0.1, 0.3)]
        domains += [sets.Balls(0.7, Blocks(rows=2)), sets.Balls(0.3, Entry()), balls_and_boxes(12)["tied product"]]
    for mesh, family, (name, geometry) in itertools.product(MESHES, FAMILIES, GEOMETRIES.items()):
        if torch.Size(MESHES[mesh][0]).numel() != world or (world > 2 and geometry not in few):
            continue
        start, options = f"{mesh}/{family}/{name}", {"geometry": geometry}
        run = functools.partial(sharded, family=family, mesh=mesh)
        for mode in ("default", "foreach", "loop") if world == 2 else ("default",):
            yield case(f"sharded/{start}/{mode}", run, dtype=torch.float32, options=options | MODES[mode])
        yield case(f"sharded/{start}/bfloat16", run, dtype=torch.bfloat16, options=options)
        for extra in ("all", "decay") if world == 2 else ():
            given = options | COMMON[extra]
            yield case(f"sharded/{start}/{extra}", run, dtype=torch.float32, options=given, partial=extra == "decay")
        random = options | {"stochastic_rounding": True}
        yield case(f"stochastic/sharded/{start}", run, dtype=torch.bfloat16, options=random)
        for domain in domains if geometry in few else ():
            given = options | {"domain": domain, "project_start": True}
            yield case(f"sharded domains/{start}/{domain}", run, dtype=torch.float32, options=given)


def rank_main(rank: int, world: int, folder: str, only: str) -> None:
    """Run the cases of one rank."""
    torch.set_num_threads(1)
    quiet()
    dist.init_process_group(
        "gloo",
        rank=rank,
        world_size=world,
        init_method=f"file://{folder}/store",
        timeout=datetime.timedelta(seconds=60),
    )
    Path(f"{folder}/{rank}").write_text(json.dumps(record(sharded_cases(world), only)), encoding="utf-8")
    dist.destroy_process_group()


def on_ranks(world: int, only: str) -> dict[str, str]:
    """The sharded cases for this world size, in separate processes."""
    if not any(key.startswith(only) for key, _ in sharded_cases(world)):
        return {}
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(  # type: ignore[attr-defined, no-untyped-call]
            rank_main, (world, folder, only), nprocs=world
        )
        found = [json.loads(Path(f"{folder}/{rank}").read_text(encoding="utf-8")) for rank in range(world)]
    return {key: " ".join(dict.fromkeys(each[key] for each in found)) for key in found[0]}


# ---------------------------------------------------------------------------------------------------------- the command


def quiet() -> None:
    """Silence the warnings about slow projections, which thousands of cases would trigger."""
    logging.getLogger("matrix_adagrad").setLevel(logging.ERROR)


def record(cases: Iterable[Case], only: str) -> dict[str, str]:
    """The hashes of the results of cases."""
    found: dict[str, str] = {}
    threads = torch.get_num_threads()
    for key, run in cases:
        seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:7], "big")
        if not key.startswith(only) or seed % ONE_IN.get(key.split("/")[0], 1):
            continue
        torch.manual_seed(seed)
        try:
            result = run(torch.Generator().manual_seed(seed))
            new = {f"{key}/{name}" if len(result) > 1 else key: hashed(tensors) for name, tensors in result.items()}
        except Exception as error:
            new = {key: f"raises {type(error).__name__}"}
        finally:
            torch.set_default_dtype(torch.float32)
            torch.set_num_threads(threads)
        if key.startswith("compiled/"):
            torch.compiler.reset()
        assert not new.keys() & found.keys(), key
        found |= new
    return found


def everything(only: str) -> dict[str, str]:
    """Run all cases, and print the progress."""
    quiet()
    print(f"matrix_adagrad from {Path(ours.__file__).parent}, {torch.get_num_threads()} threads, {about()}")
    found: dict[str, str] = {}
    for cases in (dense_cases, sparse_cases, domain_cases, other_cases, compiled_cases):
        start = time.monotonic()
        new = record(cases(), only)
        print(f"{len(new)} {cases.__name__.replace('_', ' ')} in {time.monotonic() - start:.0f} s", flush=True)
        found |= new
    for world in (2, 4):
        start = time.monotonic()
        new = on_ranks(world, only)
        print(f"{len(new)} cases on {world} ranks in {time.monotonic() - start:.0f} s", flush=True)
        found |= new
    raised = Counter(key.split("/")[0] for key, value in found.items() if value.startswith("raises"))
    print(f"{len(found)} cases; errors raised: {dict(raised)}")
    return found


def about() -> str:
    """What the bits depend on besides the code."""
    return f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}"


def main() -> int:
    """Write, or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("write", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="", help="run only the cases whose names start with this")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found = everything(options.only)
    if options.what == "write":
        options.file.write_text(json.dumps({"about": about(), "cases": found}, indent=0), encoding="utf-8")
        return 0
    saved = json.loads(options.file.read_text(encoding="utf-8"))
    if saved["about"] != about():
        print(f"the file was written with {saved['about']}: its bits may differ for that reason")
    before = {key: value for key, value in saved["cases"].items() if key.startswith(options.only)}
    differing = [key for key in sorted(before.keys() | found.keys()) if before.get(key) != found.get(key)]
    for key in differing:
        print(f"{key}: {before.get(key, 'new')} → {found.get(key, 'missing')}")
    equal = len(before.keys() | found.keys()) - len(differing)
    random = sum(key.startswith("stochastic/") for key in differing)
    kinds = dict(Counter(key.split("/")[0] for key in differing))
    print(f"{equal} equal, {len(differing) - random} different or missing, plus {random} stochastic: {kinds}")
    return int(len(differing) > random)


if __name__ == "__main__":
    sys.exit(main())
