"""What the commands' arguments have in common."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping

__all__ = ["cores", "listed", "positive"]


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
