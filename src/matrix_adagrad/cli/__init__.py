"""The command line: ``matrix-adagrad reproduce``, ``advise``, ``regret``, ``bench`` and ``data``."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence

from matrix_adagrad.cli import advise, bench, data, regret, reproduce
from matrix_adagrad.cli.arguments import INCOMPLETE
from matrix_adagrad.version import __version__

__all__ = ["INCOMPLETE", "main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # where ×, √ and § cannot be shown they are no error
    parser = argparse.ArgumentParser(prog="matrix-adagrad", description="Row-wise and column-wise AdaGrad.")
    parser.add_argument("--version", action="version", version=f"matrix-adagrad {__version__}")
    # What a command writes that needs more than torch: always (outputs), or if an option asks for it (asked).
    parser.set_defaults(outputs=(), asked={})
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for command in (reproduce, advise, bench, regret, data):
        command.add(commands)
    options = parser.parse_args(arguments)
    try:
        code = _run(options)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever reads has read enough; Python must not complain about it at the end either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return code


def _run(options: argparse.Namespace) -> int:
    """Run the command, if packages are there for all that was asked for; what else needs some is left out."""
    for option, output in options.asked.items():
        if getattr(options, option) and output.missing:
            _say(options, output.remedy)
            return 1
    left_out = [output for output in options.outputs if output.missing]
    for output in left_out:
        _say(options, f"{output.remedy}; the rest is written")
    code: int = options.run(options)
    sys.stdout.flush()
    if code or not left_out:
        return code
    for output in left_out:
        _say(options, output.remedy)
    return INCOMPLETE


def _say(options: argparse.Namespace, text: str) -> None:
    print(f"matrix-adagrad {options.command}: {text}", file=sys.stderr, flush=True)
