"""``python -m benchmarks.tables``: the embedding tables of `make bench` alone, several times over.

With ``--profile``: where the time of each step goes. With ``--shared``: the step next to other busy processes.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence

import torch

from benchmarks.markdown import DOCS, markdown_table, update_page, with_blocks
from benchmarks.speed.cases import step_of_tables
from benchmarks.speed.tables import BARS, CONTESTANTS, FBGEMM, IN_BACKWARD, SHAPES, TORCH, Shape
from benchmarks.tables import profiled, shared
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
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--profile", action="store_true", help="where the time of our step goes, and the memory traffic")
    what.add_argument("--shared", action="store_true", help="our step and FBGEMM's, alone and next to busy processes")
    parser.add_argument("--write", action="store_true", help="put the table into docs/recommenders.md")
    parser.set_defaults(run=run, command="benchmarks.tables", outputs=())
    return run_command(parser, arguments)


def run(options: argparse.Namespace) -> int:
    """Time the steps, and print the table."""
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    torch.sparse.check_sparse_tensor_invariants.disable()  # explicitly, or torch's Adagrad warns
    name, make = next(
        (name, make)
        for name, make, is_asked in (
            ("tables-profile", _profile, options.profile),
            ("tables-shared", _shared, options.shared),
            ("tables", _times, True),
        )
        if is_asked
    )
    page = DOCS / "recommenders.md"
    if options.write:  # before the work: does the page have a place for the table?
        with_blocks(page.read_text(encoding="utf-8"), {name: str})
    table = f"{make(options)} torch {torch.__version__}, {options.threads} threads."
    print(f"\n{table}")
    if options.write:
        update_page(page, {name: lambda: table})
    return 0


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The table, each row of which is printed once it is there."""
    made = []
    for row in rows:
        print(" | ".join(row), flush=True)
        made.append(row)
    return markdown_table(head, made)


def _times(options: argparse.Namespace) -> str:
    head = ["tables", *(f"{name}, ms" for name in CONTESTANTS), "torch / ours", "FBGEMM / ours", "bar"]

    def row_of(shape: Shape) -> list[str]:
        cases = [step_of_tables(shape, max(2, options.rounds)) for _ in range(options.runs)]
        times = {row.name: f"{row.median * 1e3:.2f}" for row in cases[-1].rows}
        ratios = [[case.ratio(name, IN_BACKWARD) for case in cases] for name in (TORCH, FBGEMM)]
        said = [", ".join("–" if ratio is None else f"{ratio:.2f}" for ratio in of_runs) for of_runs in ratios]
        return [shape.title, *(times[name] for name in CONTESTANTS), *said, f"≥ {BARS[shape.exponent is not None]}"]

    return (
        f"{_table(head, map(row_of, SHAPES))}\n\nTimes are of the last of {options.runs} runs, ratios of each. Ours is "
        f"“{IN_BACKWARD}”."
    )


def _profile(options: argparse.Namespace) -> str:
    def row_of(shape: Shape) -> list[str]:
        profile = profiled.profile_of(shape, max(2, options.rounds))
        (peer,) = (row for row in step_of_tables(shape, max(2, options.rounds)).rows if row.name == FBGEMM)
        return [shape.title, *profile.cells(None if peer.gap else peer.median)]

    return (
        f"{_table(profiled.HEAD, map(row_of, SHAPES))}\n\nOurs is “{IN_BACKWARD}”, medians of {options.rounds} rounds. "
        "*Sorting* is what the kernel of the backward pass takes longer than for ids in order. The *floor* is the time "
        "of the memory traffic that a step cannot avoid, at the rate at which torch copies random rows of that width."
    )


def _shared(options: argparse.Namespace) -> str:
    processes = os.cpu_count() or 1
    rows = (shared.slowdowns(shape, max(2, options.rounds), processes) for shape in SHAPES)
    return (
        f"{_table(shared.HEAD, rows)}\n\nMedians of {options.rounds} rounds, interleaved. Next to {processes} busy "
        f"processes on {processes} cores, a step that gets half of each core is slower by 2."
    )


if __name__ == "__main__":
    sys.exit(main())
