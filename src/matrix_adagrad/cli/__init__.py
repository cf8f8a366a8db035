"""The command line: ``matrix-adagrad advise``, ``regret`` and ``data``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from matrix_adagrad.cli import advise, data, regret
from matrix_adagrad.cli.command import INCOMPLETE, run_command
from matrix_adagrad.version import __version__

__all__ = ["INCOMPLETE", "main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    parser = argparse.ArgumentParser(prog="matrix-adagrad", description="Row-wise and column-wise AdaGrad.")
    parser.add_argument("--version", action="version", version=f"matrix-adagrad {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")
    for module in (advise, regret, data):
        module.add(commands)
    return run_command(parser, arguments)
