"""Compile every kernel ahead of time, without a GPU: registers, spills, shared memory, and width of memory accesses.

    python -m benchmarks.gpu.compile [--quick] [--targets …] [--write]

Steps are taken with combinations of options in which every pair occurs. Their launches are recorded instead of run, and
compiled as a launch on the target would be. ``--quick`` compiles one specialisation of each kernel, that of its largest
tile. ``--write`` puts the table into docs/gpu.md. What is compiled stays in Triton's cache.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from benchmarks.gpu.specialisations import (
    TARGETS,
    Compiled,
    Specialisation,
    combinations,
    compiled,
    launched,
    specialisations,
)
from benchmarks.markdown import DOCS, markdown_table, update_page
from matrix_adagrad.cli.arguments import add_json
from matrix_adagrad.cli.command import run_command, say
from matrix_adagrad.optim.step.triton import missing
from matrix_adagrad.text import json_text

__all__ = ["main", "table"]

PAGE = DOCS / "gpu.md"


def table(found: Iterable[Compiled]) -> str:
    """A row for each kernel and target."""
    by_kernel: dict[tuple[str, str], list[Compiled]] = {}
    for own in found:
        by_kernel.setdefault((own.kernel, own.target), []).append(own)

    def cells() -> Iterable[list[str]]:
        for (kernel, target), own in sorted(
            by_kernel.items(), key=lambda item: (item[0][0], [*TARGETS].index(item[0][1]))
        ):
            registers = [each.registers for each in own]
            aligned = [each.widest for each in own if each.is_aligned]
            yield [
                f"`{kernel}`",
                target,
                f"{len(own):,}",
                _span(registers),
                str(sum(each.spilled_bytes > 0 for each in own) or "none"),
                f"{max(each.shared_bytes for each in own):,}",
                _span([load for load, _ in aligned]),
                _span([store for _, store in aligned]),
                str(sum(each.atomics for each in own) or "none"),
            ]

    head = ["kernel", "target", "compiled", "registers of a thread", "that spill", "shared memory, bytes"]
    return markdown_table([*head, "widest load, bytes", "widest store, bytes", "atomics"], cells())


def _size(own: Specialisation) -> tuple[bool, int]:
    """Aligned rows last, and then the largest tile."""
    sizes = own.constants
    entries = math.prod(sizes.get(name, 1) for name in ("BLOCK_OUTER", "BLOCK_INNER", "BLOCK", "BLOCK_SUMS"))
    return sizes.get("ALIGNED", False), entries


def _span(numbers: Sequence[int]) -> str:
    if not numbers:
        return "–"
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low}–{high}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile, show the table, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.compile",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="exit code: 0 if everything compiles and nothing spills, 1 if not, 2 if the arguments are wrong",
    )
    parser.add_argument("--targets", nargs="+", choices=list(TARGETS), default=list(TARGETS))
    parser.add_argument("--quick", action="store_true", help="one specialisation of each kernel")
    parser.add_argument("--write", action="store_true", help=f"put the table into docs/{PAGE.name}")
    add_json(parser)
    parser.set_defaults(run=run, command="benchmarks.gpu.compile")
    return run_command(parser, arguments)


def run(options: argparse.Namespace) -> int:
    """Compile for each target, one after another."""
    if reason := missing():
        say(options, f"{reason}: pip install triton")
        return 1
    if os.environ.get("TRITON_INTERPRET") == "1":
        say(options, "TRITON_INTERPRET is set, and then nothing is compiled: unset it")
        return 1
    launches = [launch for chosen in combinations(quick=options.quick) for launch in launched(chosen)]
    found: list[Compiled] = []
    for target in options.targets:
        chosen = specialisations(launches, target)
        if options.quick:
            chosen = [*{own.name: own for own in sorted(chosen, key=_size)}.values()]
        for number, own in enumerate(chosen):
            found.append(compiled(own))
            if sys.stderr.isatty():
                print(f"\r{target}: {number + 1} of {len(chosen)}", end="", file=sys.stderr, flush=True)
        say(options, f"{target}: {len(chosen)} compiled")
    print(json_text([asdict(own) for own in found]) if options.json else table(found), end="" if options.json else "\n")
    if options.write:
        update_page(PAGE, {"compiled": lambda: table(found)})
    spilled = [own for own in found if own.spilled_bytes]
    for each in spilled:
        say(options, f"{each.kernel} spills {each.spilled_bytes} bytes on {each.target}: {each.constants}")
    return 1 if spilled else 0


if __name__ == "__main__":
    sys.exit(main())
