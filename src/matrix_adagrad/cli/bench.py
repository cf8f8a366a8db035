"""``matrix-adagrad bench``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from matrix_adagrad.cli.arguments import positive

__all__ = ["add"]


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser("bench", help="time and memory of a step next to its peers (about 3 minutes)")
    parser.add_argument("--rounds", type=positive, default=15, help="interleaved rounds (default: 15)")
    parser.add_argument("--threads", type=positive, default=torch.get_num_threads(), help="threads (default: torch's)")
    parser.add_argument(
        "--quick", action="store_true", help="small tensors, which fit into caches: to see that it works"
    )
    parser.add_argument("--out", type=Path, default=Path("results"), help="where bench.json and bench.png go")
    parser.set_defaults(run=lambda options: run(options.rounds, options.threads, options.out, options.quick))


def run(rounds: int, threads: int, out: Path, quick: bool) -> int:
    """Time the steps, and write what was found."""
    from matrix_adagrad.bench import report
    from matrix_adagrad.bench import run as cases

    torch.set_num_threads(threads)
    print(f"torch {torch.__version__}, {threads} threads, {max(2, rounds)} interleaved rounds; ratios of medians, in")
    print("brackets the quartiles of single rounds' ratios; peak extra and state over the parameters' size")
    if quick:
        print("QUICK: these tensors fit into caches, and the bars are not meant for them")
    result = cases.run(max(2, rounds), quick=quick, show=report.print_case)
    report.print_bars(result.bars)
    print("\nwritten: " + ", ".join(map(str, report.save(result, out))))
    return 0
