"""Progress of a reproduction, and the final tally of verdicts."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

from matrix_adagrad import terminal
from reproduction.cells import Cell
from reproduction.movielens.factorisation import Result as Factorised
from reproduction.verdict import Verdict

__all__ = ["Progress", "TerminalProgress", "tally"]


class Progress:
    """Notified while a reproduction runs. This base class does nothing."""

    def add(self, found: Sequence[Cell], missing: Sequence[Cell]) -> None:
        """More cells are needed; some of them are already stored."""

    def done(self, result: Any) -> None:
        """A cell was computed."""


def tally(verdicts: Sequence[Verdict]) -> str:
    """The number of claims with each verdict."""
    texts = [verdict.text for verdict in verdicts]
    only_if = sum(text.startswith("holds only if") for text in texts)
    counts = {
        "hold": texts.count("holds"),
        "hold only in some circumstances": only_if,
        "do not hold here": texts.count("does not hold here"),
        "are not decided": texts.count("not decided"),
        "were not run": texts.count("not run"),
    }
    return f"{len(texts)} claims: " + ", ".join(f"{count} {what}" for what, count in counts.items() if count)


class TerminalProgress(Progress):
    """A progress bar of the estimated time, with cells done, time left and the best RMSE so far.

    Without a terminal, or without tqdm, it prints a line every 30 seconds.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        self.show, self.bar = show, cast(Any, None)
        self.total = self.finished = 0
        self.best = ("", float("inf"))
        self.printed_at = time.monotonic()

    def add(self, found: Sequence[Cell], missing: Sequence[Cell]) -> None:
        self.total += len(found) + len(missing)
        self.finished += len(found)
        if missing and self.bar is None:
            self.bar = terminal.progress_bar()
        if self.bar is None or self.bar.disable:
            self._print(f"{len(missing)} cells to run, {len(found)} already stored")
            return
        self.bar.total += sum(cell.cost for cell in missing)
        self._show()

    def done(self, result: Any) -> None:
        self.finished += 1
        if isinstance(result, Factorised):
            best = [
                (run.geometry, min(curve[-1] for fold in folds for curve in fold))
                for run, folds in zip(result.config.runs, result.held_out, strict=True)
            ]
            self.best = min(self.best, *best, key=operator.itemgetter(1))
        if self.bar is not None and not self.bar.disable:
            self.bar.n += result.config.cost
            self._show()
        elif time.monotonic() - self.printed_at > 30:
            self._print(f"{self.finished} of {self.total} cells done")

    def _print(self, text: str) -> None:
        self.printed_at = time.monotonic()
        self.show(f"{time.strftime('%H:%M:%S')}  {text}")

    def _show(self) -> None:
        geometry, rmse = self.best
        best = f", MovieLens: best RMSE {rmse:.4f} ({geometry})" if geometry else ""
        self.bar.set_postfix_str(f"{self.finished} of {self.total} cells{best}")

    def close(self) -> None:
        """Remove the bar."""
        if self.bar is not None:
            self.bar.close()
