"""``python -m benchmarks.speed``, which `make bench` runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.speed import cases, output
from matrix_adagrad.cli.arguments import add_json, add_threads, positive, write_error
from matrix_adagrad.cli.command import INCOMPLETE, run_command, say
from matrix_adagrad.text import json_text

__all__ = ["OUTPUTS", "main"]

OUTPUTS = (output.PICTURE,)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed",
        description="Time and memory of a step, compared with peers (about 3 minutes).",
        epilog="exit code: 0 if it ran, 1 if it could not, 2 if the arguments are wrong, "
        f"{INCOMPLETE} if it ran, but packages for bench.png are missing, 130 after Ctrl-C",
    )
    parser.add_argument("--rounds", type=positive, default=15, help="interleaved rounds (default: 15)")
    add_threads(parser)
    parser.add_argument(
        "--quick", action="store_true", help="small tensors that fit into caches, to check that it works"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("results"), help="the folder for bench.json and bench.png (default: results)"
    )
    add_json(parser)
    parser.set_defaults(run=run, command="benchmarks.speed", outputs=OUTPUTS)
    return run_command(parser, arguments)


def run(options: argparse.Namespace) -> int:
    """Time the steps, and print and save the measurements."""
    if problem := write_error(options.out):
        say(options, problem)
        return 1
    rounds = max(2, options.rounds)
    torch.set_num_threads(options.threads)
    if options.json:
        result = cases.run(rounds, quick=options.quick, show=lambda *_: None)
        output.save(result, options.out)
        print(json_text(result.as_dict()), end="")
        return 0
    print(f"torch {torch.__version__}, {options.threads} threads, {rounds} interleaved rounds; ratios of medians")
    print("(quartiles of single rounds' ratios); peak extra and state relative to the size of the parameters")
    if options.quick:
        print("QUICK: these tensors fit into caches, so the bars do not apply to them")
    result = cases.run(rounds, quick=options.quick, show=output.print_case)
    output.print_bars(result.bars)
    print("\nwritten: " + ", ".join(map(str, output.save(result, options.out))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
