"""``matrix-adagrad bench``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch

from matrix_adagrad.bench import report
from matrix_adagrad.bench import run as cases
from matrix_adagrad.cli.arguments import INCOMPLETE, add_json, positive, unwritable
from matrix_adagrad.text import json_text

__all__ = ["OUTPUTS", "add"]

OUTPUTS = (report.PICTURE,)


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "bench",
        help="time and memory of a step next to its peers (about 3 minutes)",
        epilog="exit code: 0 if it ran, 1 if it could not, 2 if the arguments are wrong, "
        f"{INCOMPLETE} if it ran, and packages for bench.png are missing, 130 after Ctrl-C",
    )
    parser.add_argument("--rounds", type=positive, default=15, help="interleaved rounds (default: 15)")
    parser.add_argument("--threads", type=positive, default=torch.get_num_threads(), help="threads (default: torch's)")
    parser.add_argument(
        "--quick", action="store_true", help="small tensors, which fit into caches: to see that it works"
    )
    parser.add_argument("--out", type=Path, default=Path("results"), help="where bench.json and bench.png go")
    add_json(parser)
    parser.set_defaults(run=run, outputs=OUTPUTS)


def run(options: argparse.Namespace) -> int:
    """Time the steps, show them, and write what was found."""
    if problem := unwritable(options.out):
        print(f"matrix-adagrad bench: {problem}", file=sys.stderr)
        return 1
    rounds = max(2, options.rounds)
    torch.set_num_threads(options.threads)
    if options.json:
        result = cases.run(rounds, quick=options.quick, show=lambda *_: None)
        report.save(result, options.out)
        print(json_text(result.as_dict()), end="")
        return 0
    print(f"torch {torch.__version__}, {options.threads} threads, {rounds} interleaved rounds; ratios of medians, in")
    print("brackets the quartiles of single rounds' ratios; peak extra and state over the parameters' size")
    if options.quick:
        print("QUICK: these tensors fit into caches, and the bars are not meant for them")
    result = cases.run(rounds, quick=options.quick, show=report.print_case)
    report.print_bars(result.bars)
    print("\nwritten: " + ", ".join(map(str, report.save(result, options.out))))
    return 0
