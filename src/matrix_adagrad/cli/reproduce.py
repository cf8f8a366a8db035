"""``matrix-adagrad reproduce``."""

from __future__ import annotations

import argparse
import functools
import json
import sys
from pathlib import Path
from typing import Any

from matrix_adagrad import terminal
from matrix_adagrad.cli.arguments import INCOMPLETE, add_json, cores, listed, positive
from matrix_adagrad.experiments import plan, reproduce
from matrix_adagrad.experiments.cells import Store
from matrix_adagrad.experiments.claims import judge

__all__ = ["EXPERIMENTS", "OUTPUTS", "add"]

OUTPUTS = (reproduce.FIGURES, reproduce.REPORT)

EXPERIMENTS = {
    "all": "all of them, about 7 minutes on 2 cores",
    "movielens": "matrix factorisation of MovieLens 100K (§5.1, Fig. 1)",
    "mlp": "stacked MLPs of growing depth (§5.2, App. G, Figs. 2 and 3)",
    "examples": "the motivating examples, played, and the theorems on games (§4, App. E and F)",
}


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "reproduce",
        help="run the paper's experiments, judge its claims, and write a report",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="experiments:\n"
        + listed(EXPERIMENTS)
        + "\n\nA run consists of cells, single trainings and games, which are kept: one that was broken off"
        "\ngoes on where it was, and a second one takes seconds."
        "\nMovieLens 100K is fetched if it is needed (see `matrix-adagrad data --help`).\n\nexamples:\n"
        "  matrix-adagrad reproduce                    everything, into results/\n"
        "  matrix-adagrad reproduce --quick            in a minute, into results/quick/\n"
        "  matrix-adagrad reproduce examples --json    the claims for a script\n"
        "\nexit code: 0 if it ran, whatever the claims' verdicts; 1 if it could not; 2 if the arguments are wrong;\n"
        f"{INCOMPLETE} if it ran, and packages for figures or the report are missing; 130 after Ctrl-C",
    )
    parser.add_argument("what", nargs="?", choices=EXPERIMENTS, default="all", metavar="EXPERIMENT", help="(all)")
    parser.add_argument("--quick", action="store_true", help="fewer seeds and a coarser grid: about a minute")
    parser.add_argument("--fresh", action="store_true", help="forget what earlier runs kept, and start over")
    parser.add_argument("--out", type=Path, help="where everything goes (default: results, or results/quick)")
    parser.add_argument("--data", type=Path, help="your own copy of MovieLens 100K, as for `matrix-adagrad data`")
    parser.add_argument("--workers", type=positive, default=cores(), help="processes (default: one for each core)")
    add_json(parser)
    parser.set_defaults(run=run, outputs=OUTPUTS)


def run(options: argparse.Namespace) -> int:
    """Run the experiments, judge the claims and write the report."""
    size = plan.QUICK if options.quick else plan.FULL
    out = options.out or Path("results", *["quick"] * options.quick)
    store = Store(out / "cells")
    say = functools.partial(print, file=sys.stderr if options.json else sys.stdout)
    watch = terminal.Watch(say)
    try:
        _check_size(out, options.quick)
        if options.fresh:
            store.clear()
        known = reproduce.evidence(
            options.what, size, store, workers=options.workers, data=options.data, progress=watch
        )
        verdicts = judge(known)
        report = reproduce.save(known, verdicts, out)
    except KeyboardInterrupt:
        watch.close()
        same = "the same command, without --fresh," if options.fresh else "the same command"
        print(f"\ninterrupted; {same} goes on from what is kept in {store.folder}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        watch.close()
        print(f"matrix-adagrad reproduce: {_said(error, out)}", file=sys.stderr)
        return 1
    watch.close()
    if options.json:
        print((out / "claims.json").read_text(encoding="utf-8"), end="")
        return 0
    print(reproduce.table(verdicts, terminal.painter(sys.stdout)))
    print(f"\n{terminal.tally(verdicts)}" + "\nQUICK RUN: fewer seeds and a coarser grid" * options.quick)
    print(f"claims: {out / 'claims.json'}")
    if report:
        print(f"report: {report}")
    return 0


def _check_size(out: Path, quick: bool) -> None:
    """Seven minutes' results are not overwritten by those of one minute, nor the other way round."""
    claims = out / "claims.json"
    try:
        there = json.loads(claims.read_bytes())["quick"]
    except (FileNotFoundError, NotADirectoryError):
        return
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{claims} cannot be read ({error!r}): give another --out, or delete it") from None
    if there is not quick:
        kinds = ("a quick run", "a full run") if there else ("a full run", "a quick run")
        raise ValueError(f"{out} has the results of {kinds[0]}, and this is {kinds[1]}: give another --out")


def _said(error: Exception, out: Path) -> str:
    """What went wrong with a file, without its number."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    return f"{error.strerror}: {error.filename}" if error.filename else f"{error.strerror}, while writing to {out}"
