"""Times of a step on a device, next to torch's optimizers, as shares of the bandwidth of a copy."""

from __future__ import annotations

import math
import random
import time
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import SGD, Adagrad, Adam, Optimizer, SparseAdam

from benchmarks.gpu.movement import least
from benchmarks.gpu.options import make
from benchmarks.markdown import markdown_table
from benchmarks.measure import Times

__all__ = ["CASES", "SMALL_CASES", "Case", "Row", "copy_bandwidth", "measure", "table"]

Step = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """Tensors to step."""

    title: str
    shapes: tuple[tuple[int, int], ...]
    dtype: torch.dtype = torch.float32
    touched: int = 0  # rows of a sparse gradient; 0: dense

    def params(self, device: str) -> list[Parameter]:
        """Parameters with gradients."""
        made = [Parameter(torch.randn(shape, device=device, dtype=self.dtype)) for shape in self.shapes]
        for param in made:
            param.grad = self._sparse(param) if self.touched else torch.randn_like(param)
        return made

    def _sparse(self, param: Tensor) -> Tensor:
        rows = torch.randint(len(param), (1, self.touched), device=param.device)
        values = torch.randn(self.touched, param.shape[1], device=param.device, dtype=self.dtype)
        return torch.sparse_coo_tensor(rows, values, param.shape, check_invariants=False)

    @property
    def entries(self) -> int:
        """Entries of all parameters."""
        return sum(map(math.prod, self.shapes))


_LLAMA_LAYER = ((4096, 4096), (1024, 4096), (1024, 4096), (4096, 4096), (14336, 4096), (14336, 4096), (4096, 14336))
CASES = (
    Case("a matrix", ((16384, 8192),)),
    Case("a matrix, bfloat16", ((16384, 8192),), torch.bfloat16),
    Case("a layer of Llama 3 8B, bfloat16", _LLAMA_LAYER, torch.bfloat16),
    Case("500 small matrices", ((64, 128),) * 500),
    Case("a table of a million rows, 65,536 touched", ((1_000_000, 64),), touched=65536),
)
SMALL_CASES = (
    Case("a matrix, bfloat16", ((16, 48),), torch.bfloat16),
    Case("small matrices", ((4, 16),) * 3),
    Case("a table", ((20, 16),), touched=8),
)


@dataclass(frozen=True)
class Peer:
    """An optimizer, and the bytes that its step must move, for these parameters."""

    make: Callable[[list[Parameter]], Optimizer]
    bytes: Callable[[Case], int]
    is_compiled: bool = False


def _passes(number: int) -> Callable[[Case], int]:
    return lambda case: number * case.entries * case.dtype.itemsize


def _least(chosen: Mapping[str, Any]) -> Callable[[Case], int]:
    def of_case(case: Case) -> int:
        if case.touched:  # how many rows these are is not known
            return 0
        return sum(least({**chosen, "shape": shape, "dtype": case.dtype}).total() for shape in case.shapes)

    return of_case


def _ours(geometry: str, family: str) -> dict[str, Peer]:
    chosen = {"geometry": geometry, "family": family}
    of_torch: dict[str, Any] = {"fused": False} if family == "Steepest" or geometry == "factored" else {"foreach": True}

    def own(**options: Any) -> Callable[[list[Parameter]], Optimizer]:
        return lambda params: make(chosen, params, **options)

    name = f"{family}, {geometry}"
    return {
        name: Peer(own(fused=True), _least(chosen)),
        f"{name}, torch's operators": Peer(own(**of_torch), _least(chosen)),
        f"{name}, torch.compile": Peer(own(**of_torch), _least(chosen), is_compiled=True),
    }


DENSE: dict[str, Peer] = {
    "torch SGD, fused": Peer(lambda params: SGD(params, lr=1e-3, fused=True), _passes(3)),
    "torch SGD, foreach": Peer(lambda params: SGD(params, lr=1e-3, foreach=True), _passes(3)),
    "torch Adagrad, fused": Peer(lambda params: Adagrad(params, lr=1e-3, fused=True), _passes(5)),
    "torch Adagrad, foreach": Peer(lambda params: Adagrad(params, lr=1e-3, foreach=True), _passes(5)),
    "torch Adam, fused": Peer(lambda params: Adam(params, lr=1e-3, fused=True), _passes(7)),
    "torch Adam, foreach": Peer(lambda params: Adam(params, lr=1e-3, foreach=True), _passes(7)),
    "torch Adam, torch.compile": Peer(lambda params: Adam(params, lr=1e-3), _passes(7), is_compiled=True),
    **_ours("row", "AdaGrad"),
    **_ours("column", "AdaGrad"),
    **_ours("entry", "AdaGrad"),
    **_ours("factored", "AdaGrad"),
    **_ours("row", "Momentum"),
    **_ours("entry", "Momentum"),
    **_ours("row", "Steepest"),
}
SPARSE: dict[str, Peer] = {
    "torch Adagrad": Peer(lambda params: Adagrad(params, lr=1e-3), _passes(0)),
    "torch SparseAdam": Peer(lambda params: SparseAdam(params, lr=1e-3), _passes(0)),
    **{name: peer for name, peer in _ours("row", "AdaGrad").items() if not peer.is_compiled},
    **{name: peer for name, peer in _ours("row", "Momentum").items() if not peer.is_compiled},
}


@dataclass(frozen=True)
class Row:
    """A peer's times, or why there are none."""

    name: str
    times: Times | None
    bytes: int = 0
    gap: str = ""


def measure(case: Case, device: str, rounds: int, compiler: str = "inductor") -> list[Row]:
    """Time a step of every peer, interleaved. They share parameters and gradients, and each has its state."""
    peers, params, steps, gaps = SPARSE if case.touched else DENSE, case.params(device), {}, {}
    for name, peer in peers.items():
        try:
            steps[name] = _ready(peer, params, compiler)
        except Exception as error:
            gaps[name] = f"{type(error).__name__}: {error}".splitlines()[0][:100]
    times = _interleaved(steps, device, rounds)
    return [Row(name, times.get(name), peer.bytes(case), gaps.get(name, "")) for name, peer in peers.items()]


def _ready(peer: Peer, params: list[Parameter], compiler: str) -> Step:
    """A peer's step, after it has been taken often enough that nothing is made or compiled any more."""
    optimizer = peer.make(params)
    step: Step = optimizer.step
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if peer.is_compiled:
            optimizer.step()  # the state is there when the graph is made
            step = torch.compile(_own_code(optimizer), backend=compiler)
        for _ in range(3):
            step()
    return step


def _own_code(optimizer: Optimizer) -> Step:
    """A function that steps. Its code is its own: torch keeps what it compiles by code, and only a few of each."""

    def step() -> None:
        optimizer.step()

    return types.FunctionType(step.__code__.replace(), step.__globals__, closure=step.__closure__)


def _interleaved(steps: Mapping[str, Step], device: str, rounds: int) -> dict[str, Times]:
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    order = random.Random(0)
    for _ in range(rounds):
        for name in order.sample(list(steps), len(steps)):
            seconds[name].append(_seconds(steps[name], device))
    return {name: Times(tuple(own)) for name, own in seconds.items()}


def _seconds(step: Step, device: str) -> float:
    """The time from an idle device to an idle device, by its own clock; what the CPU cannot hide is in it."""
    if device == "cpu":
        began = time.perf_counter()
        step()
        return time.perf_counter() - began
    torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    step()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def copy_bandwidth(device: str, entries: int = 1 << 28, rounds: int = 15) -> float:
    """The bytes per second of torch's copy of an array, which it reads and writes."""
    source = torch.randn(entries, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    seconds = _interleaved({"copy": lambda: target.copy_(source)}, device, rounds)["copy"].median
    return 2 * source.nbytes / seconds


def table(rows: Sequence[Row], bandwidth: float) -> str:
    """Times, ratios to torch's fused SGD or the first peer, and shares of the bandwidth of a copy."""
    first = next(row for row in rows if row.times is not None)

    def cells() -> Iterator[list[str]]:
        for row in rows:
            if row.times is None or first.times is None:
                yield [row.name, "–", "–", "–", row.gap]
                continue
            ratio, low, high = row.times.ratio_to(first.times)
            share = f"{row.bytes / row.times.median / bandwidth:.0%}" if row.bytes else "–"
            yield [row.name, f"{row.times.median * 1e3:.3f}", f"{ratio:.2f} ({low:.2f}–{high:.2f})", share, ""]

    return markdown_table(["", "ms", f"of {first.name}", "of a copy's bandwidth", "gap"], cells())
