"""A step of tables next to processes that keep all cores busy."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import statistics
import time
from collections.abc import Iterator, Sequence
from multiprocessing.synchronize import Semaphore

import torch

from benchmarks.measure import time_interleaved
from benchmarks.speed.peers import Gap
from benchmarks.speed.tables import CONTESTANTS, FBGEMM, IN_BACKWARD, Shape

__all__ = ["HEAD", "busy_processes", "slowdowns"]

NAMES = (IN_BACKWARD, FBGEMM)
HEAD = ["tables", *itertools.chain.from_iterable((f"{name}, alone, ms", "shared", "slower by") for name in NAMES)]


def slowdowns(shape: Shape, rounds: int, processes: int) -> list[str]:
    """A row under `HEAD`: medians alone, medians next to so many busy processes, and their ratios."""
    upstream, pool = torch.randn(shape.batch, shape.tables * shape.width), [shape.draw() for _ in range(rounds + 2)]
    calls = {}
    for name in NAMES:
        with contextlib.suppress(Gap):
            calls[name] = CONTESTANTS[name](shape, itertools.cycle(pool).__next__, upstream)
    alone = time_interleaved(calls, rounds)
    with busy_processes(processes):
        shared = time_interleaved(calls, rounds)
    pairs = [(alone[name].seconds, shared[name].seconds) if name in calls else None for name in NAMES]
    return [shape.title, *_cells(pairs)]


def _cells(measured: Sequence[tuple[Sequence[float], Sequence[float]] | None]) -> Iterator[str]:
    for pair in measured:
        if pair is None:
            yield from "–––"
            continue
        alone, shared = map(statistics.median, pair)
        yield from (f"{alone * 1e3:.2f}", f"{shared * 1e3:.2f}", f"{shared / alone:.1f}")


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[list[multiprocessing.process.BaseProcess]]:
    """Processes that do nothing but compute, from when all of them have started until the end of the block."""
    context = multiprocessing.get_context("spawn")
    started = context.Semaphore(0)
    processes = [context.Process(target=_compute, args=(started,), daemon=True) for _ in range(count)]
    try:
        for process in processes:
            process.start()
        for _ in processes:
            started.acquire()
        yield list(processes)
    finally:
        for process in processes:
            process.kill()
            process.join()


def _compute(started: Semaphore) -> None:
    started.release()
    while True:
        time.perf_counter()
