"""Colours and progress bars, for terminals only."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import Any, TextIO

__all__ = ["StepProgress", "painter", "progress_bar"]

CODES = {"green": "32", "yellow": "33", "red": "31", "gray": "90"}


def painter(stream: TextIO) -> Callable[[str, str], str]:
    """A function that colours text, unless the stream is not a terminal or the user wants no colours."""
    if not stream.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return lambda text, _: text
    return lambda text, colour: f"\033[{CODES[colour]}m{text}\033[0m"


def progress_bar() -> Any:
    """A tqdm bar without a total yet, or ``None`` if tqdm is not installed."""
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    shape = "{percentage:3.0f}% |{bar}| {remaining} left{postfix}"
    return tqdm(total=0, bar_format=shape, leave=False, disable=None, dynamic_ncols=True, smoothing=0)


class StepProgress:
    """A progress bar over steps, with the time left and what is running.

    Without a terminal, or without tqdm, it prints a line every 15 seconds.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.bar = stream, progress_bar()
        self.printed_at = -math.inf

    def __call__(self, done: int, total: int, text: str) -> None:
        """Show how many of all steps are done, and what is running."""
        if self.bar is not None and not self.bar.disable:
            self.bar.total, self.bar.n = total, done
            self.bar.set_postfix_str(text)
        elif time.monotonic() - self.printed_at > 15:
            self.printed_at = time.monotonic()
            print(f"{time.strftime('%H:%M:%S')}  {done:,} of {total:,} steps: {text}", file=self.stream, flush=True)

    def close(self) -> None:
        """Remove the bar."""
        if self.bar is not None:
            self.bar.close()
