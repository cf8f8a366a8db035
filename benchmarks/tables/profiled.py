"""Where the time of a step of tables goes, next to the memory traffic that it cannot avoid."""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.measure import time_interleaved
from benchmarks.speed.tables import CONTESTANTS, IN_BACKWARD, Shape, Step
from matrix_adagrad import native

__all__ = ["HEAD", "Profile", "profile_of", "row_bandwidth"]

HEAD = [
    *("tables", "step, ms", "forward", "backward", "of it sorting", "Python and autograd"),
    *("at least moved, MB", "random rows, GB/s", "floor, ms", "step / floor", "FBGEMM / floor"),
]
_FORWARD, _BACKWARD = "matrix_adagrad_sum_bags", "matrix_adagrad_bags_step"
_LINE = 64  # bytes that a CPU fetches at once: what a number per row costs


@dataclass(frozen=True)
class Profile:
    """Medians over the rounds, in seconds.

    Attributes:
        step: all of it.
        forward, backward: in the kernels.
        ordered: in the kernel of the backward pass, when each table's ids come in order: they need not be sorted, and
            the gradients of bags are read in order.
        moved: the bytes that a step reads and writes at least, if no row stays in a cache between two passes.
        bandwidth: the bytes a second at which rows of this width are copied in random order.
    """

    step: float
    forward: float
    backward: float
    ordered: float
    moved: int
    bandwidth: float

    @property
    def floor(self) -> float:
        """The seconds that the traffic takes."""
        return self.moved / self.bandwidth

    def cells(self, peer: float | None) -> list[str]:
        """The rest of a row under `HEAD`, with the seconds of the other contestant."""
        seconds = (self.step, self.forward, self.backward, max(0.0, self.backward - self.ordered))
        rest = self.step - self.forward - self.backward
        return [
            *(f"{own * 1e3:.2f}" for own in (*seconds, rest)),
            *(f"{self.moved / 1e6:.0f}", f"{self.bandwidth / 1e9:.0f}", f"{self.floor * 1e3:.2f}"),
            *(f"{self.step / self.floor:.1f}", "–" if peer is None else f"{peer / self.floor:.1f}"),
        ]


def profile_of(shape: Shape, rounds: int) -> Profile:
    """The profile of our step, with the update in the backward pass."""
    upstream = torch.randn(shape.batch, shape.tables * shape.width)
    pool = [shape.draw() for _ in range(rounds + 1)]
    in_order = [ids.view(shape.tables, -1).sort(dim=1).values.view(-1) for ids in pool]
    batches = iter(itertools.chain(pool, in_order))
    step = CONTESTANTS[IN_BACKWARD](shape, batches.__next__, upstream)
    with _timed_kernels() as seconds:
        whole = _seconds(step, rounds)
        forward, backward = (statistics.median(seconds[name][1:]) for name in (_FORWARD, _BACKWARD))
        seconds.clear()
        _seconds(step, rounds)
        ordered = statistics.median(seconds[_BACKWARD][1:])
    return Profile(whole, forward, backward, ordered, _moved(shape, pool[0]), row_bandwidth(shape, rounds))


def _seconds(step: Step, rounds: int) -> float:
    """The median over the rounds, without a first call."""
    found = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        step()
        found.append(time.perf_counter() - start)
    return statistics.median(found[1:])


@contextlib.contextmanager
def _timed_kernels() -> Iterator[defaultdict[str, list[float]]]:
    """Time each call of the kernels from Python."""
    library, seconds = native.load(), defaultdict[str, list[float]](list)
    kernels = {name: getattr(library, name) for name in (_FORWARD, _BACKWARD)}

    def timed(name: str, *arguments: object) -> int:
        start = time.perf_counter()
        answer: int = kernels[name](*arguments)
        seconds[name].append(time.perf_counter() - start)
        return answer

    for name in kernels:
        setattr(library, name, lambda *arguments, name=name: timed(name, *arguments))
    try:
        yield seconds
    finally:
        for name, kernel in kernels.items():
            setattr(library, name, kernel)


def _moved(shape: Shape, ids: Tensor) -> int:
    """Ids are read twice. The forward pass reads rows and writes sums. The backward pass reads the gradients of sums.
    It reads and writes each touched row once, and the line with its sum of squares.
    """
    row, sums = 4 * shape.width, 4 * shape.batch * shape.tables * shape.width
    touched = sum(len(own.unique()) for own in ids.view(shape.tables, -1))
    read = len(ids) if shape.exponent is None else touched  # rows that are read again and again stay in a cache
    return 2 * ids.nbytes + row * read + 2 * sums + touched * 2 * (row + _LINE)


def row_bandwidth(shape: Shape, rounds: int) -> float:
    """The bytes a second at which torch copies random rows of such tables: each is read, and written elsewhere."""
    rows = shape.tables * shape.rows
    table, ids = torch.ones(rows, shape.width), torch.randint(rows, (1 << 16,))
    out = torch.empty(len(ids), shape.width)
    copied = time_interleaved({"rows": lambda: torch.index_select(table, 0, ids, out=out)}, rounds)["rows"]
    return 2 * out.nbytes / copied.median
