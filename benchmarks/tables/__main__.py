"""``python -m benchmarks.tables``: the embedding tables of `make bench` alone, several times over."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import torch

from benchmarks.markdown import DOCS, markdown_table, update_page
from benchmarks.speed.cases import step_of_tables
from benchmarks.speed.tables import BARS, CONTESTANTS, FBGEMM, IN_BACKWARD, SHAPES, TORCH
from matrix_adagrad.cli.arguments import add_threads, positive
from matrix_adagrad.cli.command import run_command

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tables", description="A training step of embedding tables."
    )
    parser.add_argument("--runs", type=positive, default=3, help="complete runs (default: 3)")
    parser.add_argument("--rounds", type=positive, default=15, help="interleaved rounds of a run (default: 15)")
    add_threads(parser)
    parser.add_argument("--write", action="store_true", help="put the table into docs/recommenders.md")
    parser.set_defaults(run=run, command="benchmarks.tables", outputs=())
    return run_command(parser, arguments)


def run(options: argparse.Namespace) -> int:
    """Time the steps, and print the table."""
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    torch.sparse.check_sparse_tensor_invariants.disable()  # explicitly, or torch's Adagrad warns
    head = ["tables", *(f"{name}, ms" for name in CONTESTANTS), "torch / ours", "FBGEMM / ours", "bar"]
    rows = []
    for shape in SHAPES:
        cases = [step_of_tables(shape, max(2, options.rounds)) for _ in range(options.runs)]
        times = {row.name: f"{row.median * 1e3:.2f}" for row in cases[-1].rows}
        ratios = [[case.ratio(name, IN_BACKWARD) for case in cases] for name in (TORCH, FBGEMM)]
        said = [", ".join("–" if ratio is None else f"{ratio:.2f}" for ratio in of_runs) for of_runs in ratios]
        rows.append(
            [shape.title, *(times[name] for name in CONTESTANTS), *said, f"≥ {BARS[shape.exponent is not None]}"]
        )
        print(" | ".join(rows[-1]), flush=True)
    table = f"{markdown_table(head, rows)}\n\nTimes are of the last of {options.runs} runs, ratios of each. Ours is "
    table += f"“{IN_BACKWARD}”. torch {torch.__version__}, {options.threads} threads."
    print(f"\n{table}")
    if options.write:
        update_page(DOCS / "recommenders.md", {"tables": lambda: table})
    return 0


if __name__ == "__main__":
    sys.exit(main())
