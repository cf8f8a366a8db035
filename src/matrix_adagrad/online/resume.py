"""Runs that can be interrupted and resumed: Ctrl-C waits for the end of a round, and the file is never half written."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Self

import torch

from matrix_adagrad.files import replacing
from matrix_adagrad.online.proximal import ColumnWise, RowWise, Scaled, Vectorised
from matrix_adagrad.online.solver import Solution

__all__ = ["DeferredInterrupt", "RunFile"]

# Classes in the files besides tensors, numbers and geometries, which torch.load(weights_only=True) may build.
torch.serialization.add_safe_globals([Scaled, RowWise, ColumnWise, Vectorised, Solution])


class DeferredInterrupt:
    """Defers Ctrl-C to the end of a round, so that no round is half counted. A second Ctrl-C is not deferred."""

    def __init__(self) -> None:
        self._is_pending, self._handler = False, signal.getsignal(signal.SIGINT)

    def __enter__(self) -> Self:
        # An ignored signal stays ignored, and only the main thread is ever interrupted.
        self._defers = callable(self._handler) and threading.current_thread() is threading.main_thread()
        if self._defers:
            signal.signal(signal.SIGINT, self._defer)
        return self

    def __exit__(self, *_: object) -> None:
        if self._defers:
            signal.signal(signal.SIGINT, self._handler)

    def _defer(self, number: int, frame: FrameType | None) -> None:
        if self._is_pending and callable(self._handler):
            self._handler(number, frame)
        self._is_pending = True

    def raise_if_pending(self) -> None:
        if self._is_pending:
            raise KeyboardInterrupt


class RunFile:
    """The file that a run is saved to and resumed from. A save replaces it completely or not at all."""

    def __init__(self, path: Path, run: str, every: float, state: Callable[[], dict[str, Any]]) -> None:
        if path.is_dir() or not path.absolute().parent.is_dir():
            raise ValueError(f"checkpoint must be a file in an existing folder, got {path}")
        self._path, self._run, self._every, self._state = path, run, every, state
        self._saved_at, self._is_possible = time.monotonic(), True

    def load(self) -> dict[str, Any] | None:
        if not self._path.exists():
            return None
        try:
            saved = torch.load(self._path, weights_only=True)
            run = saved["run"]
        except Exception as error:  # it may be any file
            reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            raise ValueError(
                f"{self._path} is not the checkpoint of a regret run ({reason}): give another file"
            ) from None
        if run != self._run:
            raise ValueError(f"{self._path} belongs to another run:\n  {run}, but this is\n  {self._run}")
        state: dict[str, Any] = saved["state"]
        return state

    def check(self) -> None:
        """Save once, and check that the file can be loaded, before the run gets long."""
        self.save()
        try:
            self.load()
        except ValueError as error:
            self._path.unlink()
            self._is_possible = False
            raise ValueError(
                f"this run cannot be saved: {error}; torch.serialization.add_safe_globals allows your own classes"
            ) from None

    def save_if_due(self) -> None:
        if time.monotonic() - self._saved_at >= self._every:
            self.save()

    def save(self) -> None:
        if not self._is_possible:
            return
        try:
            with replacing(self._path) as out:
                torch.save({"run": self._run, "state": self._state()}, out)
        except (OSError, RuntimeError) as error:  # on a full disk, torch raises a RuntimeError: the run goes on
            logging.getLogger("matrix_adagrad").warning("%s could not be written: %s", self._path, error)
        self._saved_at = time.monotonic()
