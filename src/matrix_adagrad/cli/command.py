"""Runs a command: optional packages are checked first, and Ctrl-C or a closed pipe ends it without a traceback."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence

__all__ = ["INCOMPLETE", "INTERRUPTED", "run_command", "say"]

INCOMPLETE = 4  # the exit code when everything worked except output whose packages are not installed
INTERRUPTED, CLOSED_PIPE = 130, 141


def run_command(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> int:
    """Parse the arguments, run the command they name, and return its exit code.

    The parsed options have ``run``, which takes them and returns an exit code, and ``command``, the name that messages
    start with. They may have ``outputs``, the optional output that the command always writes, and ``requested``, a dict
    from an option to the optional output that it asks for.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks ×, √ or § shows ? instead
    options = parser.parse_args(arguments)
    try:
        code = _run(options)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader closed the pipe, and Python would complain again when it exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED_PIPE
    return code


def say(options: argparse.Namespace, text: str) -> None:
    """Print a message on stderr, after the command's name."""
    print(f"{options.command}: {text}", file=sys.stderr, flush=True)


def _run(options: argparse.Namespace) -> int:
    """Refuse requested output whose packages are missing; leave out other output whose packages are missing."""
    for option, output in getattr(options, "requested", {}).items():
        if getattr(options, option) and output.missing:
            say(options, output.remedy)
            return 1
    left_out = [output for output in getattr(options, "outputs", ()) if output.missing]
    for output in left_out:
        say(options, f"{output.remedy}; everything else is written")
    code: int = options.run(options)
    sys.stdout.flush()
    if code or not left_out:
        return code
    for output in left_out:
        say(options, output.remedy)
    return INCOMPLETE
