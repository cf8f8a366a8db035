"""``python -m benchmarks.gpu``: the kernels on a device, next to the reference and to torch's optimizers.

    python -m benchmarks.gpu [--quick] [--rounds N] [--out FOLDER]
    python -m benchmarks.gpu --interpret

Every kernel is checked against torch's operators, with combinations of options in which every pair occurs. Then steps
are timed. The tables are Markdown, and go to gpu.md in the folder for results: paste them into an issue.
``--interpret`` needs no GPU: the same on tiny tensors, in Triton's interpreter. Its times mean nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.gpu import checks, times
from benchmarks.gpu.emulate import choose_interpreter, interpreted
from benchmarks.gpu.options import AXES
from matrix_adagrad import __version__
from matrix_adagrad.cli.arguments import positive, write_error
from matrix_adagrad.cli.command import run_command, say
from matrix_adagrad.files import write
from matrix_adagrad.optim.step.triton import missing

__all__ = ["main"]

TINY = {**AXES, "shape": [(5, 16), (6, 10)]}


def main(arguments: Sequence[str] | None = None) -> int:
    """Check and time the kernels, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="exit code: 0 if all kernels agree with the reference, 1 if one does not or none can run, "
        "2 if the arguments are wrong, 130 after Ctrl-C",
    )
    parser.add_argument("--rounds", type=positive, default=30, help="interleaved rounds (default: 30)")
    parser.add_argument("--quick", action="store_true", help="small tensors, to see that it works")
    parser.add_argument("--interpret", action="store_true", help="tiny tensors in Triton's interpreter, without a GPU")
    parser.add_argument("--out", type=Path, default=Path("results"), help="the folder for gpu.md (default: results)")
    parser.set_defaults(run=run, command="benchmarks.gpu")
    return run_command(parser, arguments)


def run(options: argparse.Namespace) -> int:
    """Check, time, print and save."""
    if problem := write_error(options.out) or (choose_interpreter() if options.interpret else _problem()):
        say(options, problem)
        return 1
    device = "cpu" if options.interpret else "cuda"
    with interpreted() if options.interpret else contextlib.nullcontext():
        pages, failed = _page(options, device)
    page = "\n\n".join(pages) + "\n"
    print(page)
    write(options.out / "gpu.md", page)
    for reason in failed:
        say(options, reason)
    say(options, f"written: {options.out / 'gpu.md'}")
    return 1 if failed else 0


def _problem() -> str:
    """Why there is nothing to measure here."""
    if not torch.cuda.is_available():
        return (
            "torch sees no GPU. It needs one by NVIDIA or AMD, and a build of torch for CUDA or ROCm. "
            "--interpret tries everything on a CPU"
        )
    return f"{reason}: pip install triton" if (reason := missing()) else ""


def _page(options: argparse.Namespace, device: str) -> tuple[list[str], list[str]]:
    """The Markdown, and what went wrong."""
    done = []
    for check in checks.checks(device, TINY if options.interpret else AXES):
        done.append(check)
        if not check.is_equal:
            say(options, f"{check.distance:.3g} tolerances apart: {check.chosen}")
    differ = sum(not check.is_equal for check in done)
    failed = [f"{differ} of {len(done)} combinations differ from the reference"] if differ else []
    if never := checks.unreached(done):
        failed.append(f"never run: {', '.join(sorted(never))}")
    is_small = options.quick or options.interpret
    bandwidth = times.copy_bandwidth(device, 1 << 16 if is_small else 1 << 28)
    pages = [
        f"### matrix-adagrad {__version__} on {_name(device)}",
        f"torch {torch.__version__}, Triton {_triton_version()}; a copy moves {bandwidth / 1e9:,.0f} GB/s; "
        f"medians of {options.rounds} interleaved rounds",
        checks.table(done),
    ]
    for case in times.SMALL_CASES if is_small else times.CASES:
        rows = times.measure(case, device, max(2, options.rounds), "eager" if options.interpret else "inductor")
        pages += [f"#### {case.title[0].upper()}{case.title[1:]}", times.table(rows, bandwidth)]
    return pages, failed


def _name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else "Triton's interpreter; times mean nothing"


def _triton_version() -> str:
    import triton

    return str(triton.__version__)


if __name__ == "__main__":
    sys.exit(main())
