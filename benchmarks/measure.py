"""Time and memory of calls."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch.profiler import ProfilerActivity, profile

__all__ = ["Times", "peak_extra_bytes", "time_interleaved"]


@dataclass(frozen=True)
class Times:
    """The seconds that one call took, in each round."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median over the rounds."""
        return statistics.median(self.seconds)

    def ratio_to(self, other: Times) -> tuple[float, float, float]:
        """The ratio of the medians, between the quartiles of the ratios of single rounds."""
        ratios = [mine / theirs for mine, theirs in zip(self.seconds, other.seconds, strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4)
        return self.median / other.median, low, high


def time_interleaved(calls: Mapping[str, Callable[[], object]], rounds: int = 15) -> dict[str, Times]:
    """Time every call once a round, in turn, so that whatever else the machine does meets them all."""
    for call in calls.values():
        call()
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    return {name: Times(tuple(values)) for name, values in seconds.items()}


def peak_extra_bytes(call: Callable[[], object]) -> tuple[int, int]:
    """The most memory that tensors held at any time during a call, and what is left of it after; both beyond the start.

    Read from the allocator's own events, so that temporaries inside operators count too.
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
