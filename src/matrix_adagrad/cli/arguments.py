"""What the commands' arguments have in common."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["INCOMPLETE", "add_json", "cores", "listed", "positive", "unwritable"]

INCOMPLETE = 4  # the exit code if all is well, but for outputs that need packages which are not installed


def add_json(parser: Any) -> None:
    """Add the option for scripts, which is the same in every command."""
    parser.add_argument("--json", action="store_true", help="print JSON on stdout and nothing else")


def listed(words: Mapping[str, str]) -> str:
    """Words and their meanings, for the end of a help text."""
    return "\n".join(f"  {name:<18} {meaning}" for name, meaning in words.items())


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def positive(text: str) -> int:
    """A whole number from 1."""
    if not text.lstrip("+-").isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number and must be at least 1, got {text}")
    return int(text)


def unwritable(folder: Path) -> str | None:
    """Why nothing can be written there: to be asked before the work, not after it. Makes the folder if need be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return f"{folder} cannot be written: {error.strerror}"
