"""Arguments that commands have in common."""

from __future__ import annotations

import argparse
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

__all__ = ["add_json", "add_threads", "cores", "definitions", "positive", "positive_number", "write_error"]


def add_json(parser: Any) -> None:
    """Add the option for scripts, which is the same in every command."""
    parser.add_argument("--json", action="store_true", help="print JSON on stdout and nothing else")


def add_threads(parser: Any) -> None:
    """Add the number of threads."""
    default = torch.get_num_threads()
    parser.add_argument("--threads", type=positive, default=default, help="threads (default: as many as torch uses)")


def definitions(words: Mapping[str, str]) -> str:
    """Words and their meanings, for the end of a help text."""
    return "\n".join(f"  {name:<18} {meaning}" for name, meaning in words.items())


def cores() -> int:
    """The number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def positive(text: str) -> int:
    """An integer ≥ 1."""
    if not text.lstrip("+-").isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be an integer ≥ 1, got {text}")
    return int(text)


def positive_number(text: str) -> float:
    """A finite number above 0."""
    if not 0 < (number := _number(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"must be finite and greater than 0, got {text}")
    return number


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, got {text!r}") from None


def write_error(folder: Path) -> str | None:
    """Why a folder cannot be written to, or ``None``; check this before the work. Creates the folder if needed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return f"{folder} cannot be written: {error.strerror}"
