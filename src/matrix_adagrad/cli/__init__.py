"""The command line: ``matrix-adagrad reproduce``, ``advise``, ``regret``, ``bench`` and ``data``."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence

from matrix_adagrad.cli import advise, bench, data, regret, reproduce
from matrix_adagrad.version import __version__

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # where ×, √ and § cannot be shown they are no error
    parser = argparse.ArgumentParser(prog="matrix-adagrad", description="Row-wise and column-wise AdaGrad.")
    parser.add_argument("--version", action="version", version=f"matrix-adagrad {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for command in (reproduce, advise, bench, regret, data):
        command.add(commands)
    options = parser.parse_args(arguments)
    try:
        code: int = options.run(options)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever reads has read enough; Python must not complain about it at the end either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return code
