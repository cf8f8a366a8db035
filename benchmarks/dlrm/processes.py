"""Processes for a run: one of its own, or several that train one model."""

from __future__ import annotations

import logging
import multiprocessing
import tempfile
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.dlrm.training import Result, Run, train_sharded

__all__ = ["PROCESSES", "alone", "together"]

PROCESSES = 2

T = TypeVar("T")


def alone(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function in a process of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _quiet) as pool:
        return pool.submit(function, *arguments).result()


def together(one: Run) -> list[Result]:
    """The same run in all processes."""
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn"), _quiet) as pool,
    ):
        store = str(Path(folder) / "store")
        ranks = [pool.submit(train_sharded, one, rank, PROCESSES, store) for rank in range(PROCESSES)]
        return [rank.result() for rank in ranks]


def _quiet() -> None:
    """Leave out the warnings of other packages."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
