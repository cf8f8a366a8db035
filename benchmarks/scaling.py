"""Memory per rank and communication when parameters are sharded: formulas, and their values on 1,024 GPUs.

python -m benchmarks.scaling [--write]

What each dimension of a mesh divides comes from `matrix_adagrad.optim.sharding`. tests/distributed counts the bytes of
real steps and checks these functions against them. ``--write`` puts the tables into docs/scaling.md.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

from benchmarks.markdown import DOCS, markdown_table, update_page
from matrix_adagrad.geometry import Blocks, Column, Diagonal, Entry, Factored, Partition, Row, Whole, wide_dtype
from matrix_adagrad.optim.sharding import statistic_layout
from matrix_adagrad.torch_private import StridedShard

PAGE = DOCS / "scaling.md"

Mesh = Sequence[int]  # the sizes of its dimensions


@dataclass(frozen=True)
class ParameterSpec:
    """``count`` parameters of this full shape with these placements."""

    shape: tuple[int, ...]
    placements: tuple[Placement, ...]
    dtype: torch.dtype = torch.float32
    count: int = 1


@dataclass(frozen=True)
class OptimizerSpec:
    """What an optimizer keeps: the statistics of a geometry, and averages of the parameter's own shape."""

    name: str
    geometry: Diagonal | None
    averages: int = 0

    def partitions(self, p: ParameterSpec) -> tuple[Partition, ...]:
        """The partitions whose sums are kept for a parameter."""
        return () if self.geometry is None else self.geometry.on(p.shape).partitions


def adagrad(geometry: Diagonal) -> OptimizerSpec:
    """MatrixAdaGrad, or MatrixMomentum without an average."""
    return OptimizerSpec(f"AdaGrad, {_name(geometry)}", geometry)


def momentum(geometry: Diagonal) -> OptimizerSpec:
    """MatrixMomentum."""
    return OptimizerSpec(f"momentum, {_name(geometry)}", geometry, averages=1)


def _name(geometry: Diagonal) -> str:
    return f"`{geometry!r}`" if isinstance(geometry, Blocks) else str(geometry)


SGD = OptimizerSpec("SGD", None)
ADAM = OptimizerSpec("Adam", Entry(), averages=1)
# Adafactor's statistics. Clipping its updates would cost a few more numbers.
FACTORED = OptimizerSpec("`Factored()`, as in Adafactor", Factored())


# ------------------------------------------------------------------------------------------------------ memory per rank


def local_shape(
    shape: Sequence[int], mesh: Mesh, placements: Sequence[Placement], at: Sequence[int] | None = None
) -> tuple[int, ...]:
    """The shape of the shard on the rank ``at`` these coordinates. The default is the first rank, which has the most.

    >>> local_shape((10, 6), (4,), (Shard(0),)), local_shape((10, 6), (4,), (Shard(0),), at=(3,))
    ((3, 6), (1, 6))
    """
    sizes = list(shape)
    for placement, ranks, i in zip(placements, mesh, at or [0] * len(mesh), strict=True):
        if isinstance(placement, StridedShard):
            factor = int(placement.split_factor)
            pieces = [_chunk(sizes[placement.dim], factor, piece) for piece in range(factor)]
            sizes[placement.dim] = sum(_chunk(piece, ranks, i) for piece in pieces)
        elif isinstance(placement, Shard):
            sizes[placement.dim] = _chunk(sizes[placement.dim], ranks, i)
    return tuple(sizes)


def _chunk(size: int, parts: int, i: int) -> int:
    """The size of chunk ``i``, as torch.chunk makes them."""
    step = -(-size // parts)
    return max(0, min(size, step * (i + 1)) - step * i)


def parameter_bytes(params: Iterable[ParameterSpec], mesh: Mesh, at: Sequence[int] | None = None) -> int:
    """The bytes of the parameters on one rank, which are also those of their gradients."""
    return sum(p.count * math.prod(local_shape(p.shape, mesh, p.placements, at)) * p.dtype.itemsize for p in params)


def state_bytes(
    params: Iterable[ParameterSpec], optimizer: OptimizerSpec, mesh: Mesh, at: Sequence[int] | None = None
) -> int:
    """The bytes of the optimizer's state on one rank, without the step counts."""
    total = 0
    for p in params:
        average = math.prod(local_shape(p.shape, mesh, p.placements, at)) * wide_dtype(p.dtype).itemsize
        statistics = sum(_statistic_bytes(p, geometry, mesh, at) for geometry in optimizer.partitions(p))
        total += p.count * (optimizer.averages * average + statistics)
    return total


def _statistic_bytes(p: ParameterSpec, geometry: Partition, mesh: Mesh, at: Sequence[int] | None) -> int:
    layout = statistic_layout(geometry, torch.Size(p.shape), p.placements)
    local = local_shape(geometry.statistic_shape(p.shape), mesh, layout.placements, at)
    return math.prod(local) * wide_dtype(p.dtype).to_real().itemsize


# ------------------------------------------------------------------------------------------------------- communication


def payloads(
    params: Iterable[ParameterSpec], optimizer: OptimizerSpec, mesh: Mesh, at: Sequence[int] | None = None
) -> dict[int, int]:
    """What a step all-reduces: the bytes of one call for each mesh dimension that divides blocks."""
    total: Counter[int] = Counter()
    for p in params:
        for geometry in optimizer.partitions(p):
            for dim in statistic_layout(geometry, torch.Size(p.shape), p.placements).divided:
                if mesh[dim] > 1:
                    total[dim] += p.count * _statistic_bytes(p, geometry, mesh, at)
    return dict(total)


def ring_all_reduce(payload: int, ranks: int) -> float:
    """The bytes that each rank sends to all-reduce a payload in a ring."""
    return 2 * (ranks - 1) / ranks * payload


def sent(params: Iterable[ParameterSpec], optimizer: OptimizerSpec, mesh: Mesh) -> float:
    """The bytes that a rank sends for a step of the optimizer."""
    return sum(ring_all_reduce(payload, mesh[dim]) for dim, payload in payloads(params, optimizer, mesh).items())


class FsdpTraffic(NamedTuple):
    """The bytes that FSDP2 sends from each rank for a forward and a backward pass."""

    gathered: int  # parameters, forward and backward
    scattered: int  # gradients
    replicas: float  # gradients, over the replicas of HSDP

    @property
    def total(self) -> float:
        """The total."""
        return self.gathered + self.scattered + self.replicas


def fsdp_traffic(
    params: Iterable[ParameterSpec],
    mesh: Mesh,
    shards: int,
    replicas: int | None = None,
    param_dtype: torch.dtype = torch.bfloat16,
    reduce_dtype: torch.dtype = torch.float32,
) -> FsdpTraffic:
    """FSDP2's own traffic, with the padding of uneven shards. ``shards`` and ``replicas`` are mesh dimensions."""
    numbers = sum(p.count * math.prod(local_shape(p.shape, mesh, p.placements)) for p in params)
    others = mesh[shards] - 1
    over = 0.0 if replicas is None else ring_all_reduce(numbers * reduce_dtype.itemsize, mesh[replicas])
    return FsdpTraffic(2 * others * numbers * param_dtype.itemsize, others * numbers * reduce_dtype.itemsize, over)


# ------------------------------------------------------------------------------------------------ a large transformer


@dataclass(frozen=True)
class Parallelism:
    """A mesh, and how FSDP2 uses its dimensions."""

    name: str
    mesh: tuple[int, ...]
    shards: int
    replicas: int | None = None

    def placements(self, parallel: str) -> tuple[Placement, ...]:
        """The placements of a weight whose "rows", "columns" or nothing ("") tensor parallelism divides."""
        if len(self.mesh) == 1:
            return (Shard(0),)
        if self.replicas is not None:
            return (Replicate(), Shard(0))
        if parallel == "rows":
            return (StridedShard(0, split_factor=self.mesh[1]), Shard(0))
        return (Shard(0), Shard(1) if parallel else Replicate())

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return math.prod(self.mesh)


PARALLELISMS = (
    Parallelism("FSDP2, 1,024", (1024,), shards=0),
    Parallelism("HSDP, 8 × 128", (8, 128), shards=1, replicas=0),
    Parallelism("FSDP2 × TP, 128 × 8", (128, 8), shards=0),
)
LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, MLP, VOCABULARY = 80, 8192, 64, 8, 128, 28672, 128256
# Name, shape, count, and what tensor parallelism divides.
LLAMA: tuple[tuple[str, tuple[int, ...], int, str], ...] = (
    ("embedding", (VOCABULARY, HIDDEN), 1, "rows"),
    ("query", (HEADS * HEAD_DIM, HIDDEN), LAYERS, "rows"),
    ("key, value", (KV_HEADS * HEAD_DIM, HIDDEN), 2 * LAYERS, "rows"),
    ("attention's output", (HIDDEN, HEADS * HEAD_DIM), LAYERS, "columns"),
    ("gate, up", (MLP, HIDDEN), 2 * LAYERS, "rows"),
    ("down", (HIDDEN, MLP), LAYERS, "columns"),
    ("norms", (HIDDEN,), 2 * LAYERS + 1, ""),
    ("output", (VOCABULARY, HIDDEN), 1, "rows"),
)
GEOMETRIES: tuple[Partition, ...] = (Row(), Column(), Blocks(rows=8), Whole(), Entry())
BANDWIDTH = 50e9  # bytes that each GPU sends per second
MESSAGE = 10e-6  # seconds from one GPU to the next


def llama(setup: Parallelism) -> list[ParameterSpec]:
    """The parameters of Llama 3 70B."""
    return [ParameterSpec(shape, setup.placements(parallel), count=count) for _, shape, count, parallel in LLAMA]


def _llama_shapes() -> str:
    rows = [
        [name, f"{count:,}", " × ".join(f"{size:,}" for size in shape), f"{count * math.prod(shape):,}"]
        for name, shape, count, _ in LLAMA
    ]
    total = sum(count * math.prod(shape) for _, shape, count, _ in LLAMA)
    tensors = sum(count for _, _, count, _ in LLAMA)
    return markdown_table(["", "tensors", "shape", "numbers"], [*rows, ["total", f"{tensors:,}", "", f"**{total:,}**"]])


def _llama_state() -> str:
    params = {setup: llama(setup) for setup in PARALLELISMS}

    def row(name: str, size: Callable[[Parallelism], int]) -> list[str]:
        return [name, *(_bytes(size(setup)) for setup in PARALLELISMS)]

    def states(optimizer: OptimizerSpec, name: str = "") -> list[str]:
        adam = {setup: state_bytes(params[setup], ADAM, setup.mesh) for setup in PARALLELISMS}
        held = {setup: state_bytes(params[setup], optimizer, setup.mesh) for setup in PARALLELISMS}
        cells = [f"{_bytes(held[setup])} ({_share(held[setup] / adam[setup])})" for setup in PARALLELISMS]
        return [name or optimizer.name, *cells]

    rows = [
        row("parameters", lambda setup: parameter_bytes(params[setup], setup.mesh)),
        row("gradients", lambda setup: parameter_bytes(params[setup], setup.mesh)),
        states(ADAM),
        states(SGD),
        states(FACTORED),
        *(states(adagrad(geometry)) for geometry in GEOMETRIES),
        *(states(momentum(geometry)) for geometry in GEOMETRIES),
    ]
    return markdown_table(["on the GPU with the most", *(setup.name for setup in PARALLELISMS)], rows)


def _llama_fsdp() -> str:
    rows = []
    for setup in PARALLELISMS:
        moved = fsdp_traffic(llama(setup), setup.mesh, setup.shards, setup.replicas)
        cells = [_bytes(moved.gathered), _bytes(moved.scattered), _bytes(moved.replicas) if moved.replicas else "–"]
        rows.append([setup.name, *cells, _bytes(moved.total), _time(moved.total / BANDWIDTH)])
    head = ["sent by each GPU", "all-gathers", "reduce-scatters", "all-reduces", "total", _at_bandwidth()]
    return markdown_table(head, rows)


def _llama_wire() -> str:
    rows = []
    for setup in PARALLELISMS:
        params = llama(setup)
        own = fsdp_traffic(params, setup.mesh, setup.shards, setup.replicas).total
        for optimizer in [*map(_either, GEOMETRIES[:-1]), OptimizerSpec("entry, Adam, SGD", Entry()), FACTORED]:
            bytes_of = payloads(params, optimizer, setup.mesh)
            if not bytes_of:
                rows.append([setup.name, optimizer.name, "0", "–", "–", "–", "–", "–"])
                continue
            through = sent(params, optimizer, setup.mesh)
            calls = " + ".join(f"{_bytes(size)} over {setup.mesh[dim]:,}" for dim, size in sorted(bytes_of.items()))
            hops = sum(2 * (setup.mesh[dim] - 1) for dim in bytes_of)
            cells = [_bytes(through), _share(through / own), _time(through / BANDWIDTH), _time(hops * MESSAGE)]
            rows.append([setup.name, optimizer.name, str(len(bytes_of)), calls, *cells])
    head = [
        "",
        "scales",
        "all-reduces",
        "payload",
        "sent",
        "relative to FSDP2",
        _at_bandwidth(),
        f"messages, {_time(MESSAGE)} each",
    ]
    return markdown_table(head, rows)


def _either(geometry: Partition) -> OptimizerSpec:
    """AdaGrad or momentum, which send the same."""
    return OptimizerSpec(_name(geometry), geometry)


# ---------------------------------------------------------------------------------------------------- a large table

TABLE, WIDTH, GPUS_PER_MACHINE, MACHINES = 10 * 10**12, 128, 8, (32, 64, 128)


def embedding_table() -> ParameterSpec:
    """An embedding table sharded by rows."""
    return ParameterSpec((TABLE // (WIDTH * torch.float32.itemsize), WIDTH), (Shard(0),))


def _large_table() -> str:
    p, rows = embedding_table(), []
    for machines in MACHINES:
        mesh = (machines * GPUS_PER_MACHINE,)
        optimizers = (adagrad(Row()), adagrad(Entry()), momentum(Row()), ADAM)
        states = [state_bytes([p], optimizer, mesh) for optimizer in optimizers]
        sizes = [f"{machines} × {GPUS_PER_MACHINE}", f"{local_shape(p.shape, mesh, p.placements)[0]:,}"]
        rows.append([*sizes, _bytes(parameter_bytes([p], mesh)), *map(_bytes, states)])
    return markdown_table(["GPUs", "rows", "table", "AdaGrad, row", "AdaGrad, entry", "momentum, row", "Adam"], rows)


def _large_table_is() -> str:
    p, mesh, sums = embedding_table(), (MACHINES[0] * GPUS_PER_MACHINE,), []
    for geometry in (Row(), Column()):
        size = sum(payloads([p], _either(geometry), mesh).values())
        sums.append(f"{_bytes(size) if size else 'nothing'} by {geometry}")
    return (
        f"{_bytes(TABLE)} of float32 in rows of {WIDTH} makes {p.shape[0]:,} rows, over {_list(MACHINES)} machines "
        f"with {GPUS_PER_MACHINE} GPUs each. A step all-reduces {' and '.join(sums)}. On the GPU with the most:"
    )


def _large_table_together() -> str:
    p, mesh = embedding_table(), (MACHINES[0] * GPUS_PER_MACHINE,)
    held = parameter_bytes([p], mesh)
    row, entry, adam = (held + state_bytes([p], each, mesh) for each in (adagrad(Row()), adagrad(Entry()), ADAM))
    return (
        f"On {MACHINES[0]} machines, table and state together take {_bytes(row)} of each GPU by row, {_bytes(entry)} "
        f"by entry, and {_bytes(adam)} with Adam."
    )


# ------------------------------------------------------------------------------------------------------- in symbols

_M, _N, _K = 14, 22, 2  # distinct sizes, to tell the symbols apart
_SYMBOLS = {_M: "m", _N: "n", _K: "k"}
_STRIDED = StridedShard(0, split_factor=2)
SYMBOLIC_LAYOUTS: dict[str, tuple[tuple[str, ...], tuple[Placement, ...]]] = {
    "rows over R": (("R",), (Shard(0),)),
    "columns over R": (("R",), (Shard(1),)),
    "HSDP, C × S": (("C", "S"), (Replicate(), Shard(0))),
    "F × T, column-wise layer": (("F", "T"), (_STRIDED, Shard(0))),
    "F × T, row-wise layer": (("F", "T"), (Shard(0), Shard(1))),
}
SYMBOLIC: dict[str, tuple[Partition, ...]] = {
    "row": (Row(),),
    "column": (Column(),),
    "entry": (Entry(),),
    "whole": (Whole(),),
    "`Blocks(rows=k)`": (Blocks(rows=_K),),
    "`Blocks(columns=k)`": (Blocks(columns=_K),),
    "`Factored()`": Factored().partitions,
}


def scales_in_symbols(geometry: Partition, names: Sequence[str], placements: tuple[Placement, ...]) -> str:
    """How many scales of an m×n matrix a rank has, in terms of the mesh sizes with these names.

    >>> scales_in_symbols(Row(), ("F", "T"), (Shard(0), Shard(1)))
    'm/F'
    """
    shape = (_M, _N)
    layout = statistic_layout(geometry, torch.Size(shape), placements)
    above = "·".join(_SYMBOLS[size] for size in geometry.statistic_shape(shape) if size > 1) or "1"
    below = [name for name, p in zip(names, layout.placements, strict=True) if not p.is_replicate()]
    return above + (f"/{'·'.join(below)}" if len(below) < 2 else f"/({'·'.join(below)})") if below else above


def payload_in_symbols(geometry: Partition, names: Sequence[str], placements: tuple[Placement, ...]) -> str:
    """How many numbers are all-reduced, and over what."""
    over = [names[dim] for dim in statistic_layout(geometry, torch.Size((_M, _N)), placements).divided]
    return f"{scales_in_symbols(geometry, names, placements)} over {' and '.join(over)}" if over else ""


def _in_symbols(cell: Callable[[Partition, Sequence[str], tuple[Placement, ...]], str], join: str) -> str:
    rows = []
    for name, geometries in SYMBOLIC.items():
        cells = [[cell(geometry, *layout) for geometry in geometries] for layout in SYMBOLIC_LAYOUTS.values()]
        rows.append([name, *(join.join(filter(None, parts)) or "–" for parts in cells)])
    return markdown_table(["", *SYMBOLIC_LAYOUTS], rows)


# -------------------------------------------------------------------------------------------------------------- page


def _bytes(size: float) -> str:
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "KB")):
        if size >= 0.9995 * unit:
            return f"{_digits(size / unit)} {name}"
    return f"{size:.0f} B"


def _time(seconds: float) -> str:
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= 0.9995 * unit:
            return f"{_digits(seconds / unit)} {name}"
    return "< 1 µs"


def _share(share: float) -> str:
    return f"{_digits(100 * share)} %" if share >= 1e-6 or not share else "< 0.0001 %"


def _digits(number: float) -> str:
    """Three digits, without zeros after the point."""
    places = max(0, 2 - math.floor(math.log10(number))) if number else 0
    return f"{number:,.0f}" if math.isclose(number, round(number)) else f"{number:,.{places}f}"


def _at_bandwidth() -> str:
    return f"at {_bytes(BANDWIDTH)}/s"


def _list(values: Sequence[object]) -> str:
    *others, last = map(str, values)
    return f"{', '.join(others)} or {last}"


def _assumptions() -> str:
    lines = [
        f"The model is Llama 3 70B as published: {LAYERS} layers, width {HIDDEN:,}, {HEADS} heads, {KV_HEADS} for keys "
        f"and values, of {HEAD_DIM} each, {MLP:,} hidden units, a vocabulary of {VOCABULARY:,}, untied output.",
        f"{PARALLELISMS[0].ranks:,} GPUs, in three layouts: {'; '.join(setup.name for setup in PARALLELISMS)}.",
        "Tensor parallelism is column-wise for query, key, value, gate, up and the output, and row-wise for "
        "attention's output and down. The embedding is sharded by rows; norms are replicated.",
        "Parameters, gradients and state are float32. FSDP2 gathers parameters in bfloat16, once for the forward and "
        "once for the backward pass, and reduces gradients in float32. There is one backward pass per step.",
        f"Each GPU sends {_bytes(BANDWIDTH)} per second, whatever the distance. A message takes {_time(MESSAGE)} to "
        "reach the next GPU. All collectives use rings.",
    ]
    return "\n".join(f"- {line}" for line in lines)


def _llama_words() -> str:
    flat, tensor_parallel = PARALLELISMS[0], PARALLELISMS[2]
    params = llama(flat)
    through = max(sent(llama(setup), _either(Column()), setup.mesh) for setup in PARALLELISMS)
    own = min(fsdp_traffic(llama(setup), setup.mesh, setup.shards, setup.replicas).total for setup in PARALLELISMS)
    by_row = payloads(llama(tensor_parallel), _either(Row()), tensor_parallel.mesh)
    row, column, entry = (state_bytes(params, adagrad(geometry), flat.mesh) for geometry in (Row(), Column(), Entry()))
    even = float(f"{flat.ranks * entry / column:.2g}")
    hops = 2 * (flat.ranks - 1)
    sentences = [
        "**By row**, nothing is sent with FSDP2 and HSDP. With tensor parallelism, the row-wise layers all-reduce "
        f"{_bytes(sum(by_row.values()))} over the {tensor_parallel.mesh[1]} GPUs that share a row.",
        f"**By column**, a GPU sends at most {_bytes(through)} per step. FSDP2 itself sends {_bytes(own)} or more.",
        f"**Messages** may cost more than bytes: a ring of {flat.ranks:,} GPUs sends {hops:,} of them, one after the "
        f"other. Libraries also have trees, which need fewer. A step makes one call per divided mesh dimension, "
        f"whatever the number of parameters. FSDP2 makes about {3 * LAYERS}, three per layer.",
        f"**All-reduced scales are replicated.** By column, a GPU keeps {_bytes(column)} with FSDP2, however many GPUs "
        f"there are. By row it keeps {_bytes(row)}, by entry {_bytes(entry)}. Beyond about {even:,.0f} GPUs, columns "
        "would need more than entries.",
        "**With momentum**, the average of the gradients is most of the state, and all geometries need about half of "
        "Adam's.",
    ]
    return "\n".join(f"- {sentence}" for sentence in sentences)


BLOCKS: dict[str, Callable[[], str]] = {
    "scales": lambda: _in_symbols(scales_in_symbols, " + "),
    "payload": lambda: _in_symbols(payload_in_symbols, ", "),
    "assumptions": _assumptions,
    "llama-shapes": _llama_shapes,
    "llama-state": _llama_state,
    "llama-fsdp": _llama_fsdp,
    "llama-wire": _llama_wire,
    "llama-words": _llama_words,
    "table-words": _large_table_is,
    "table": _large_table,
    "table-together": _large_table_together,
}


def main() -> None:
    """Print the tables, or write them into the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/scaling.md")
    if parser.parse_args().write:
        update_page(PAGE, BLOCKS)
        return
    for name, make in BLOCKS.items():
        print(f"{name}\n\n{make()}\n")


if __name__ == "__main__":
    main()
