"""Time and memory of calls."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler that measures memory would log every start

__all__ = [
    "Times",
    "copy_bandwidth",
    "peak_extra_bytes",
    "peak_extra_resident_bytes",
    "resident_bytes",
    "time_interleaved",
]


@dataclass(frozen=True)
class Times:
    """The seconds that a call took in each round."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median over the rounds."""
        return statistics.median(self.seconds)

    def ratio_to(self, other: Times) -> tuple[float, float, float]:
        """The ratio of the medians, and the lower and upper quartiles of the single rounds' ratios."""
        ratios = [mine / theirs for mine, theirs in zip(self.seconds, other.seconds, strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4)
        return self.median / other.median, low, high


def time_interleaved(calls: Mapping[str, Callable[[], object]], rounds: int = 15) -> dict[str, Times]:
    """Time every call once per round, so that other load on the machine affects all of them alike.

    The order is shuffled in every round, so that no call always runs with the caches left by the same other call.
    """
    for call in calls.values():
        call()
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    order = random.Random(0)
    for _ in range(rounds):
        for name in order.sample(list(calls), len(calls)):
            start = time.perf_counter()
            calls[name]()
            seconds[name].append(time.perf_counter() - start)
    return {name: Times(tuple(values)) for name, values in seconds.items()}


def copy_bandwidth(rounds: int = 15) -> float:
    """The bytes per second that torch's copy of a large array moves.

    A copy makes three passes: it reads, it writes, and the CPU first fetches what it overwrites.
    """
    source = torch.randn(1 << 26)
    target = torch.empty_like(source)
    return 3 * source.numel() * 4 / time_interleaved({"copy": lambda: target.copy_(source)}, rounds)["copy"].median


def peak_extra_bytes(call: Callable[[], object]) -> tuple[int, int]:
    """The peak memory of tensors during a call, and what remains afterwards, both relative to the start.

    Measured from the allocator's events, so that temporaries inside operators count too.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        call()
    results = recorded.profiler.kineto_results
    changes = sorted((event.start_ns(), event.nbytes()) for event in results.events() if event.name() == "[memory]")
    held = peak = 0
    for _, change in changes:
        held += change
        peak = max(peak, held)
    return peak, held


def peak_extra_resident_bytes(call: Callable[[], object]) -> int | None:
    """The process's peak resident memory during a call, relative to the start. ``None`` if this is not Linux."""
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not status.exists():
        return None
    call()  # the first call allocates the stacks of threads and the like
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # free memory that was not returned to the system would hide allocations
    reset.write_text("5", encoding="utf-8")
    before = _kilobytes(status, "VmRSS")
    call()
    return max(0, _kilobytes(status, "VmHWM") - before) * 1024


def resident_bytes(*, peak: bool = False) -> int | None:
    """The process's resident memory, now or at its peak since the process started. ``None`` if this is not Linux."""
    status = Path("/proc/self/status")
    return _kilobytes(status, "VmHWM" if peak else "VmRSS") * 1024 if status.exists() else None


def _kilobytes(status: Path, key: str) -> int:
    line = next(line for line in status.read_text(encoding="utf-8").splitlines() if line.startswith(key))
    return int(line.split()[1])
