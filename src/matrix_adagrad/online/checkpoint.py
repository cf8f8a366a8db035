"""Runs that can be broken off: files that are whole at any time, and rounds that are."""

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

__all__ = ["Checkpoint", "WholeRounds"]

# What checkpoints hold besides tensors, numbers and geometries: torch.load(weights_only=True) may make these values.
torch.serialization.add_safe_globals([Scaled, RowWise, ColumnWise, Vectorised, Solution])


class WholeRounds:
    """Holds back Ctrl-C to the end of a round, so that none is counted by half; a second one is not held back."""

    def __init__(self) -> None:
        self._asked, self._before = False, signal.getsignal(signal.SIGINT)

    def __enter__(self) -> Self:
        # Where it is ignored it stays so, and only the main thread is ever interrupted.
        self._holds = callable(self._before) and threading.current_thread() is threading.main_thread()
        if self._holds:
            signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self._holds:
            signal.signal(signal.SIGINT, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._asked and callable(self._before):
            self._before(number, frame)
        self._asked = True

    def raise_if_asked(self) -> None:
        if self._asked:
            raise KeyboardInterrupt


class Checkpoint:
    """A file that is whole at any time: it is written beside and then put in its place."""

    def __init__(self, path: Path, what: str, every: float, state: Callable[[], dict[str, Any]]) -> None:
        if path.is_dir() or not path.absolute().parent.is_dir():
            raise ValueError(f"the checkpoint {path} cannot be a file: it is a folder, or its folder does not exist")
        self._path, self._what, self._every, self._state = path, what, every, state
        self._saved_at, self._is_possible = time.monotonic(), True

    def load(self) -> dict[str, Any] | None:
        if not self._path.exists():
            return None
        try:
            saved = torch.load(self._path, weights_only=True)
            what = saved["what"]
        except Exception as error:  # whatever file it is
            reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            raise ValueError(
                f"{self._path} is not a checkpoint of a regret run ({reason}): give another file"
            ) from None
        if what != self._what:
            raise ValueError(f"{self._path} is of another run:\n  {what}, and this is\n  {self._what}")
        state: dict[str, Any] = saved["state"]
        return state

    def try_out(self) -> None:
        """Save, and see that it can be loaded, before the run is long."""
        self.save()
        try:
            self.load()
        except ValueError as error:
            self._path.unlink()
            self._is_possible = False
            raise ValueError(
                f"this run cannot be saved: {error}; torch.serialization.add_safe_globals allows classes of your own"
            ) from None

    def save_in_time(self) -> None:
        if time.monotonic() - self._saved_at >= self._every:
            self.save()

    def save(self) -> None:
        if not self._is_possible:
            return
        try:
            with replacing(self._path) as out:
                torch.save({"what": self._what, "state": self._state()}, out)
        except (OSError, RuntimeError) as error:  # torch says RuntimeError for a full disk: the run goes on
            logging.getLogger("matrix_adagrad").warning("%s could not be written: %s", self._path, error)
        self._saved_at = time.monotonic()
