"""``python -m reproduction``, which `make reproduce` runs."""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from matrix_adagrad import terminal
from matrix_adagrad.cli.arguments import add_json, cores, definitions, positive
from matrix_adagrad.cli.command import INCOMPLETE, INTERRUPTED, run_command, say
from reproduction import runner
from reproduction.cells import Store
from reproduction.experiments import EXPERIMENTS, judge
from reproduction.progress import TerminalProgress, tally

__all__ = ["OUTPUTS", "WHAT", "main"]

OUTPUTS = (runner.FIGURES, runner.REPORT)

WHAT = {"all": "all of them, about 8 minutes on 2 cores"} | {each.name: each.about for each in EXPERIMENTS.values()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the experiments, judge the claims, write the report, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m reproduction",
        description="Run the paper's experiments, judge its claims, and write a report.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="experiments:\n"
        + definitions(WHAT)
        + "\n\nThe results of single runs, called cells, are stored. An interrupted reproduction resumes where it"
        "\nstopped, and a repeated one takes seconds."
        "\nMovieLens 100K is downloaded if needed (see `matrix-adagrad data --help`).\n\nexamples:\n"
        "  python -m reproduction                    everything, into results/\n"
        "  python -m reproduction --quick            in a minute, into results/quick/\n"
        "  python -m reproduction games --json       the claims for a script\n"
        "\nexit code: 0 if it ran, whatever the verdicts; 1 if it could not; 2 if the arguments are wrong;\n"
        f"{INCOMPLETE} if it ran, but packages for figures or the report are missing; 130 after Ctrl-C",
    )
    parser.add_argument("what", nargs="?", choices=WHAT, default="all", metavar="EXPERIMENT", help="(default: all)")
    parser.add_argument("--quick", action="store_true", help="fewer seeds and a coarser grid: about a minute")
    parser.add_argument("--fresh", action="store_true", help="delete stored results and start over")
    parser.add_argument("--out", type=Path, help="the folder to write to (default: results, or results/quick)")
    parser.add_argument("--data", type=Path, help="your own copy of MovieLens 100K, as for `matrix-adagrad data`")
    parser.add_argument("--workers", type=positive, default=cores(), help="processes (default: one per core)")
    add_json(parser)
    parser.set_defaults(run=run, command="reproduction", outputs=OUTPUTS)
    return run_command(parser, arguments)


def run(options: argparse.Namespace) -> int:
    """Run the experiments, judge the claims and write the report."""
    out = options.out or Path("results", *["quick"] * options.quick)
    store = Store(out / "cells")
    show = functools.partial(print, file=sys.stderr if options.json else sys.stdout)
    progress = TerminalProgress(show)
    try:
        _check_size(out, options.quick)
        if options.fresh:
            store.clear()
        results = runner.run(
            options.what, options.quick, store, workers=options.workers, data=options.data, progress=progress
        )
        verdicts = judge(results)
        report = runner.save(results, verdicts, out)
    except KeyboardInterrupt:
        progress.close()
        command = "the same command, without --fresh," if options.fresh else "the same command"
        print(f"\ninterrupted; {command} resumes from what is stored in {store.folder}", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        progress.close()
        say(options, _message(error, out))
        return 1
    progress.close()
    if options.json:
        print((out / "claims.json").read_text(encoding="utf-8"), end="")
        return 0
    print(runner.table(verdicts, terminal.painter(sys.stdout)))
    print(f"\n{tally(verdicts)}" + "\nQUICK RUN: fewer seeds and a coarser grid" * options.quick)
    print(f"claims: {out / 'claims.json'}")
    if report:
        print(f"report: {report}")
    return 0


def _check_size(out: Path, quick: bool) -> None:
    """Raise an error if a quick run would overwrite a full one, or vice versa."""
    claims = out / "claims.json"
    try:
        was_quick = json.loads(claims.read_bytes())["quick"]
    except (FileNotFoundError, NotADirectoryError):
        return
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{claims} cannot be read ({error!r}): give another --out, or delete it") from None
    if was_quick is not quick:
        kinds = ("a quick run", "a full run") if was_quick else ("a full run", "a quick run")
        raise ValueError(f"{out} has the results of {kinds[0]}, and this is {kinds[1]}: give another --out")


def _message(error: Exception, out: Path) -> str:
    """The error's message, without the number of an OS error."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    return f"{error.strerror}: {error.filename}" if error.filename else f"{error.strerror}, while writing to {out}"


if __name__ == "__main__":
    sys.exit(main())
