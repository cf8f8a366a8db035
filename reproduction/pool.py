"""Runs cells in parallel, one per core, and stores each result as soon as it is ready."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Self

import torch

from reproduction import cells
from reproduction.cells import Cell, Store

__all__ = ["Pool"]


class Pool:
    """A pool of worker processes that run cells, as a context manager.

    Args:
        store: where results are stored.
        workers: the number of processes; 1 runs in this process.
        progress: called with each result.
        how: keyword arguments for the ``run`` of a module: ``{"factorisation": {"path": …}}``.
    """

    def __init__(
        self,
        store: Store,
        workers: int,
        progress: Callable[[Any], None] = lambda _: None,
        how: dict[str, dict[str, Any]] | None = None,
    ) -> None:
        self.store, self.workers, self.progress, self.how = store, workers, progress, how or {}
        self._processes: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._processes is not None:
            if kind is not None:  # do not wait for what is still running
                for process in list((self._processes._processes or {}).values()):
                    process.kill()
            self._processes.shutdown(cancel_futures=True)

    def run(self, wanted: Iterable[Cell]) -> dict[Cell, Any]:
        """Run cells, the longest first, and store each result as soon as it is ready."""
        results = {}
        for result in self._computed(sorted(wanted, key=lambda cell: -cell.cost)):
            self.store.save(result)
            results[result.config] = result
            self.progress(result)
        return results

    def _computed(self, cells: list[Cell]) -> Iterable[Any]:
        tasks = [functools.partial(_alone, cell, self._how(cell)) for cell in cells]
        if self.workers == 1:
            yield from (task() for task in tasks)
            return
        if self._processes is None:
            spawn = multiprocessing.get_context("spawn")
            self._processes = ProcessPoolExecutor(self.workers, spawn, initializer=_serve, initargs=(os.getpid(),))
        left: set[Future[Any]] = {self._processes.submit(task) for task in tasks}
        while left:
            done, left = wait(left, return_when=FIRST_COMPLETED)
            for future in done:
                try:
                    yield future.result()
                except BrokenProcessPool:
                    raise RuntimeError(
                        "a worker was killed, possibly for lack of memory; finished results are stored: run it again"
                    ) from None

    def _how(self, cell: Cell) -> dict[str, Any]:
        return self.how.get(type(cell).__module__.rpartition(".")[2], {})


def _alone(cell: Cell, how: dict[str, Any]) -> Any:
    """The cell's result on one thread, since the number of threads may change the last bits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return cells.run(cell, **how)
    finally:
        torch.set_num_threads(threads)


def _serve(parent: int) -> None:
    """Ignore Ctrl-C in a worker, since the parent handles it, and exit when the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
