"""What people see in a terminal: colours and progress bars, only if somebody looks on."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, TextIO, cast

from matrix_adagrad.experiments.cells import Cell
from matrix_adagrad.experiments.claims import Verdict
from matrix_adagrad.experiments.factorisation import Result as Factorised
from matrix_adagrad.experiments.reproduce import Progress

__all__ = ["Steps", "Watch", "painter", "tally"]

COLOURS = {"green": "32", "yellow": "33", "red": "31", "gray": "90"}


def painter(stream: TextIO) -> Callable[[str, str], str]:
    """Colours text for this stream, or leaves it as it is if that is no terminal, or the user wants no colours."""
    if not stream.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return lambda text, _: text
    return lambda text, colour: f"\033[{COLOURS[colour]}m{text}\033[0m"


def tally(verdicts: Sequence[Verdict]) -> str:
    """How many claims got which verdict."""
    texts = [verdict.text for verdict in verdicts]
    only_if = sum(text.startswith("holds only if") for text in texts)
    counts = {
        "hold": texts.count("holds"),
        "hold only under some circumstances": only_if,
        "do not hold here": texts.count("does not hold here"),
        "are not decided": texts.count("not decided"),
        "were not run": texts.count("not run"),
    }
    return f"{len(texts)} claims: " + ", ".join(f"{count} {what}" for what, count in counts.items() if count)


class Watch(Progress):
    """A progress bar over the seconds of work, with the cells that are done, the time left, and the best RMSE so far.

    Where there is no terminal, or no tqdm, a line says how many cells there are, now and then.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say, self.bar = say, cast(Any, None)
        self.total = self.finished = 0
        self.best = ("", float("inf"))
        self.said = time.monotonic()

    def plan(self, found: Sequence[Cell], missing: Sequence[Cell]) -> None:
        self.total += len(found) + len(missing)
        self.finished += len(found)
        if missing and self.bar is None:
            self.bar = _bar()
        if self.bar is None or self.bar.disable:
            self._say(f"{len(missing)} cells to run, {len(found)} are there already")
            return
        self.bar.total += sum(cell.cost for cell in missing)
        self._show()

    def done(self, result: Any) -> None:
        self.finished += 1
        if isinstance(result, Factorised):
            rmse = min(curve[-1] for curve in result.validation)
            self.best = min(self.best, (result.config.geometry, rmse), key=lambda one: one[1])
        if self.bar is not None and not self.bar.disable:
            self.bar.n += result.config.cost
            self._show()
        elif time.monotonic() - self.said > 30:
            self._say(f"{self.finished} of {self.total} cells are done")

    def _say(self, text: str) -> None:
        self.said = time.monotonic()
        self.say(f"{time.strftime('%H:%M:%S')}  {text}")

    def _show(self) -> None:
        geometry, rmse = self.best
        best = f", MovieLens: best RMSE {rmse:.4f} ({geometry})" if geometry else ""
        self.bar.set_postfix_str(f"{self.finished} of {self.total} cells{best}")

    def close(self) -> None:
        """Take the bar away."""
        if self.bar is not None:
            self.bar.close()


def _bar() -> Any:
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    shape = "{percentage:3.0f}% |{bar}| {remaining} left{postfix}"
    return tqdm(total=0, bar_format=shape, leave=False, disable=None, dynamic_ncols=True, smoothing=0)


class Steps:
    """A progress bar over steps, with the time left and what is going on.

    Where there is no terminal, or no tqdm, a line says so now and then.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.bar = stream, _bar()
        self.said = -math.inf

    def __call__(self, done: int, total: int, text: str) -> None:
        """Show that so many steps of all are done, and what comes next."""
        if self.bar is not None and not self.bar.disable:
            self.bar.total, self.bar.n = total, done
            self.bar.set_postfix_str(text)
        elif time.monotonic() - self.said > 15:
            self.said = time.monotonic()
            print(f"{time.strftime('%H:%M:%S')}  {done:,} of {total:,} steps: {text}", file=self.stream, flush=True)

    def close(self) -> None:
        """Take the bar away."""
        if self.bar is not None:
            self.bar.close()
