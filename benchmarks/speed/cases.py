"""The cases, each a comparison of peers on the same tensors, and the bars that the kernels must meet."""

from __future__ import annotations

import functools
import itertools
import operator
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from benchmarks.measure import copy_bandwidth, peak_extra_bytes, peak_extra_resident_bytes, time_interleaved
from benchmarks.speed.peers import (
    DENSE,
    FACTORED,
    MUON,
    OURS,
    SGD_FUSED,
    SPARSE,
    SPECTRAL,
    Gap,
    Peer,
    bag_step,
)
from benchmarks.speed.tables import BARS, CONTESTANTS, FBGEMM, IN_BACKWARD, SHAPES, TORCH, Shape
from matrix_adagrad import EmbeddingBag, RowAdaGrad, state_bytes
from matrix_adagrad.version import __version__

__all__ = ["Bar", "Case", "Measurement", "Measurements", "run", "step_of_tables"]

LARGE = ("8192 × 8192 matrix", "1,000,000 × 64 table")
OTHERS = ("64 × 1,000,000 matrix", "65,536 × 1024 matrix", "3,000,000 × 20 table")
BAG = "EmbeddingBag of 1,000,000 × 64, 4096 bags of 20"
READING = "reading the gradient, alone"  # a sum, not a step: the cost of a second pass over the gradient
SMALL = "150 matrices of 256 × 256 and 150 vectors"
HIDDEN = ("one 1024 × 1024 matrix", "12 matrices of 256 × 1024")
SINGLE = "one 256 × 256 matrix"


@dataclass(frozen=True)
class Measurement:
    """One peer in one case: its time relative to the baseline's, or why there is none."""

    name: str
    gap: str | None = None
    seconds: tuple[float, ...] = ()
    median: float = 0.0
    ratio: float = 0.0
    low: float = 0.0
    high: float = 0.0
    bytes_a_second: float | None = None  # the memory traffic that the step cannot avoid
    peak_extra: int | None = None
    state: int | None = None


@dataclass(frozen=True)
class Case:
    """Peers on the same tensors, in the same rounds."""

    title: str
    baseline: str
    parameter_bytes: int
    rows: list[Measurement]

    def ratio(self, name: str, over: str) -> float | None:
        """The ratio of medians, or None if one of them is a gap."""
        medians = {row.name: row.median for row in self.rows if row.gap is None}
        return medians[name] / medians[over] if name in medians and over in medians else None


@dataclass(frozen=True)
class Bar:
    """A limit on a ratio, and the ratio measured."""

    work: str
    bar: str
    measured: float | None
    met: bool | None


@dataclass
class Measurements:
    """All measurements of a run, and the machine they were made on."""

    machine: dict[str, Any]
    copy_bytes_a_second: float
    cases: list[Case] = field(default_factory=list)
    sizes: dict[str, dict[int, float]] = field(default_factory=dict)  # the seconds of a step, by the number of entries
    bars: list[Bar] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """As plain types, for a file."""
        return asdict(self)


def run(rounds: int, *, quick: bool, show: Callable[[Case, float], None]) -> Measurements:
    """Measure everything; ``show`` is called with each finished case and the bandwidth of a copy."""
    torch.sparse.check_sparse_tensor_invariants.disable()  # explicitly, or torch's Adagrad warns
    torch.manual_seed(0)
    measured = Measurements(_machine(rounds), copy_bandwidth())
    n = 1024 if quick else 8192
    rows = 50_000 if quick else 1_000_000

    def done(case: Case) -> Case:
        measured.cases.append(case)
        show(case, measured.copy_bytes_a_second)
        return case

    fast = {name: DENSE[name] for name in (SGD_FUSED, "RowAdaGrad", "ColumnAdaGrad", FACTORED, "RowMomentum")}
    large = [
        done(_dense(title, [shape], torch.float32, DENSE, rounds))
        for title, shape in zip(LARGE, ((n, n), (rows, 64)), strict=True)
    ]
    narrow = [
        done(_dense(f"{title}, bfloat16", [shape], torch.bfloat16, fast, rounds))
        for title, shape in zip(LARGE, ((n, n), (rows, 64)), strict=True)
    ]
    others = [
        done(_dense(title, [shape], torch.float32, fast, rounds))
        for title, shape in zip(OTHERS, ((64, rows), (8 * n, 1024), (3 * rows, 20)), strict=True)
    ]
    small = done(_dense(SMALL, [(256, 256)] * 150 + [(256,)] * 150, torch.float32, DENSE, rounds))
    single = done(_dense(SINGLE, [(256, 256)], torch.float32, fast, 10 * rounds))
    side = 128 if quick else 1024
    spectral = [
        done(_dense(title, shapes, torch.float32, SPECTRAL, rounds))
        for title, shapes in zip(HIDDEN, ([(side, side)], [(side // 4, side)] * 12), strict=True)
    ]
    bags = done(_bags(f"{BAG}, uniform", rows, lambda: torch.randint(rows, (4096, 20)), rounds))
    shapes = [replace(shape, tables=min(4, shape.tables), rows=1000, batch=32) for shape in SHAPES] if quick else SHAPES
    tables = [(shape, done(step_of_tables(shape, rounds))) for shape in shapes]
    growth = done(_growth(rounds, (10**4, 10**5) if quick else (10**5, 10**6, 10**7)))
    measured.sizes = _sizes(rounds, 9 if quick else 13)
    measured.bars = [
        *_bars_of_large(large),
        *_bars_of("Row-AdaGrad, bfloat16", narrow, "RowAdaGrad", SGD_FUSED, "≤", 1.15),
        *_bars_of("Row-AdaGrad, other shapes", others, "RowAdaGrad", SGD_FUSED, "≤", 1.10),
        *(
            bar
            for peer in ("torch Adagrad, fused", "torch Adam, fused")
            for bar in _bars_of("300 small tensors", [small], "RowAdaGrad", peer, "<", 1.0)
        ),
        *_bars_of("300 small tensors", [small], "RowAdaGrad", SGD_FUSED, "≤", 1.25),
        *_bars_of("Muon in float32", spectral, "SteepestDescent, spectral", MUON, "≤", 1.05),
        *_bars_of("one small tensor", [single], "RowAdaGrad", SGD_FUSED, "≤", 1.3),
        *_bars_of("training step", [bags], "torch Adagrad", OURS + "RowAdaGrad", "≥", 6.0),
        *(
            bar
            for shape, case in tables
            for bar in _bars_of("tables", [case], FBGEMM, IN_BACKWARD, "≥", BARS[shape.exponent is not None])
        ),
        *_bars_of("sparse update", [growth], growth.rows[-1].name, growth.rows[0].name, "≤", 1.5),
        _memory_bar((n, n)),
    ]
    return measured


# ------------------------------------------------------------------------------------------------------------- cases


def _dense(
    title: str, shapes: Sequence[tuple[int, ...]], dtype: torch.dtype, peers: dict[str, Peer], rounds: int
) -> Case:
    params = [Parameter(torch.randn(shape).to(dtype)) for shape in shapes]
    for param in params:
        param.grad = torch.randn_like(param)
    made: dict[str, Any] = {name: _made(functools.partial(peer.make, params)) for name, peer in peers.items()}
    made[READING] = lambda: [param.grad.sum() for param in params if param.grad is not None]
    passes = {READING: 1} | {name: peer.passes for name, peer in peers.items()}
    return _timed(title, made, SGD_FUSED, sum(p.numel() * p.element_size() for p in params), rounds, passes)


def _made(make: Callable[[], Any]) -> Any:
    """The peer, after its first step, or why it cannot be measured."""
    try:
        made = make()
        made.step() if isinstance(made, Optimizer) else made()
    except Gap as gap:
        return str(gap)
    except Exception as error:  # the peer does not accept these tensors: a gap like any other
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return made


def _timed(
    title: str,
    made: dict[str, Any],
    baseline: str,
    size: int,
    rounds: int,
    passes: dict[str, int] | None = None,
) -> Case:
    calls = {
        name: peer.step if isinstance(peer, Optimizer) else peer
        for name, peer in made.items()
        if not isinstance(peer, str)
    }
    times = time_interleaved(calls, rounds)
    rows = []
    for name, peer in made.items():
        if isinstance(peer, str):
            rows.append(Measurement(name, gap=peer))
            continue
        ratio, low, high = times[name].ratio_to(times[baseline])
        moved = size * passes[name] / times[name].median if passes else None
        is_optimizer = isinstance(peer, Optimizer)
        rows.append(
            Measurement(
                name,
                seconds=times[name].seconds,
                median=times[name].median,
                ratio=ratio,
                low=low,
                high=high,
                bytes_a_second=moved,
                peak_extra=peak_extra_bytes(peer.step)[0] if is_optimizer else None,
                state=state_bytes(peer) if is_optimizer else None,
            )
        )
    return Case(title, baseline, size, rows)


def _bags(title: str, rows: int, draw: Callable[[], Tensor], rounds: int) -> Case:
    upstream, pool = torch.randn(4096, 64), [draw() for _ in range(rounds + 2)]

    def batches() -> Callable[[], Tensor]:
        return itertools.cycle(pool).__next__  # the same for every peer, new ones in every round

    made = {
        name: _made(functools.partial(bag_step, rows, 64, make, batches(), upstream)) for name, make in SPARSE.items()
    }
    for name in ("RowAdaGrad", "RowMomentum"):
        make = functools.partial(bag_step, rows, 64, SPARSE[name], batches(), upstream, EmbeddingBag)
        made[OURS + name] = _made(make)
    return _timed(title, made, "torch Adagrad", rows * 64 * 4, rounds)


def step_of_tables(shape: Shape, rounds: int) -> Case:
    """A training step of embedding tables of one shape, by each contestant."""
    upstream, pool = torch.randn(shape.batch, shape.tables * shape.width), [shape.draw() for _ in range(rounds + 2)]
    made = {
        name: _made(functools.partial(make, shape, itertools.cycle(pool).__next__, upstream))
        for name, make in CONTESTANTS.items()
    }
    return _timed(shape.title, made, TORCH, shape.parameter_bytes, rounds)


def _growth(rounds: int, sizes: Sequence[int]) -> Case:
    """The same batches on larger and larger tables, with the same repetitions, spread over the whole table."""
    made: dict[str, Any] = {}
    batches = [torch.randint(sizes[0], (1, 81_920)) for _ in range(rounds + 2)]
    values = torch.randn(81_920, 64)
    for rows in sizes:
        table = Parameter(torch.zeros(rows, 64).normal_())
        pool = itertools.cycle([batch * (rows // sizes[0]) for batch in batches])
        optimizer = RowAdaGrad([table])

        def step(
            table: Parameter = table, values: Tensor = values, pool: Any = pool, optimizer: Optimizer = optimizer
        ) -> None:
            table.grad = torch.sparse_coo_tensor(next(pool), values, table.shape, check_invariants=False)
            optimizer.step()

        made[f"{rows:,} rows"] = step
    return _timed("sparse update by RowAdaGrad, 81,920 rows of 64", made, f"{sizes[0]:,} rows", 0, rounds)


def _sizes(rounds: int, powers: int) -> dict[str, dict[int, float]]:
    names = (SGD_FUSED, "torch Adagrad, fused", "torch Adam, fused", "RowAdaGrad", "ColumnAdaGrad", "RowMomentum")
    seconds: dict[str, dict[int, float]] = {name: {} for name in names}
    for side in (int(2 ** (4 + power * 0.75)) for power in range(powers)):
        param = Parameter(torch.randn(side, side))
        param.grad = torch.randn_like(param)
        times = time_interleaved({name: DENSE[name].make([param]).step for name in names}, rounds)
        for name in names:
            seconds[name][side * side] = times[name].median
    return seconds


# -------------------------------------------------------------------------------------------------------------- bars

_COMPARE = {"≤": operator.le, "<": operator.lt, "≥": operator.ge}


def _bars_of(work: str, cases: list[Case], name: str, over: str, sign: str, limit: float) -> list[Bar]:
    bars = []
    for case in cases:
        ratio = case.ratio(name, over)
        met = None if ratio is None else bool(_COMPARE[sign](ratio, limit))
        bars.append(Bar(f"{work}: {case.title}", f"{name} {sign} {limit:g} × {over}", ratio, met))
    return bars


def _bars_of_large(large: list[Case]) -> list[Bar]:
    return [
        *_bars_of("Row-AdaGrad", large, "RowAdaGrad", SGD_FUSED, "≤", 1.10),
        *_bars_of("Row-AdaGrad", large, "torch Adagrad, fused", "RowAdaGrad", "≥", 1.35),
        *_bars_of("Row-AdaGrad", large, "torch Adam, fused", "RowAdaGrad", "≥", 1.75),
        *_bars_of("Column-AdaGrad", large, "ColumnAdaGrad", SGD_FUSED, "≤", 1.45),
        *_bars_of("Factored scales", large, FACTORED, SGD_FUSED, "≤", 1.6),
        *_bars_of("Row momentum", large, "torch Adam, fused", "RowMomentum", "≥", 1.25),
        *_bars_of("Steepest descent by row", large, "SteepestDescent, row", "RowMomentum", "≤", 1.05),
    ]


def _memory_bar(shape: tuple[int, int]) -> Bar:
    param = Parameter(torch.randn(shape))
    param.grad = torch.randn_like(param)
    extra = peak_extra_resident_bytes(RowAdaGrad([param]).step)
    megabytes = None if extra is None else extra / 2**20
    met = None if megabytes is None else megabytes < 1
    return Bar("peak extra memory of a fused step", "RowAdaGrad < 1 MB", megabytes, met)


def _machine(rounds: int) -> dict[str, Any]:
    return {
        "matrix-adagrad": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu": _cpu(),
        "threads": torch.get_num_threads(),
        "rounds": rounds,
        "date": time.strftime("%Y-%m-%d"),
    }


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
