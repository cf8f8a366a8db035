"""The command line: ``matrix-adagrad reproduce``, ``regret``, ``bench`` and ``data``."""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from matrix_adagrad import terminal
from matrix_adagrad.experiments import data, plan, regret, reproduce
from matrix_adagrad.experiments.cells import Store
from matrix_adagrad.experiments.claims import judge
from matrix_adagrad.files import write
from matrix_adagrad.version import __version__

__all__ = ["main"]

EXPERIMENTS = {
    "all": "all of them, about 7 minutes on 2 cores",
    "movielens": "matrix factorisation of MovieLens 100K (§5.1, Fig. 1)",
    "mlp": "stacked MLPs of growing depth (§5.2, App. G, Figs. 2 and 3)",
    "examples": "the motivating examples, played, and the theorems on games (§4, App. E and F)",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    parser = argparse.ArgumentParser(prog="matrix-adagrad", description="Row-wise and column-wise AdaGrad.")
    parser.add_argument("--version", action="version", version=f"matrix-adagrad {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    reproduce = commands.add_parser(
        "reproduce",
        help="run the paper's experiments, judge its claims, and write a report",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="experiments:\n"
        + _listed(EXPERIMENTS)
        + "\n\nA run consists of cells, single trainings and games, which are kept: one that was broken off"
        "\ngoes on where it was, and a second one takes seconds."
        "\nMovieLens 100K is fetched if it is needed (see `matrix-adagrad data --help`).\n\nexamples:\n"
        "  matrix-adagrad reproduce                    everything, into results/\n"
        "  matrix-adagrad reproduce --quick            in a minute, into results/quick/\n"
        "  matrix-adagrad reproduce examples --json    the claims for a script\n"
        "\nexit code: 0 if it ran, whatever the claims' verdicts; 1 if it could not; 2 if the arguments are wrong;\n"
        "130 after Ctrl-C",
    )
    reproduce.add_argument("what", nargs="?", choices=EXPERIMENTS, default="all", metavar="EXPERIMENT", help="(all)")
    reproduce.add_argument("--quick", action="store_true", help="fewer seeds and a coarser grid: about a minute")
    reproduce.add_argument("--fresh", action="store_true", help="forget what earlier runs kept, and start over")
    reproduce.add_argument("--out", type=Path, help="where everything goes (default: results, or results/quick)")
    reproduce.add_argument("--data", type=Path, help="your own copy of MovieLens 100K, as for `matrix-adagrad data`")
    reproduce.add_argument("--workers", type=_positive, default=_cores(), help="processes (default: one for each core)")
    reproduce.add_argument("--json", action="store_true", help="print the claims as JSON and nothing else")
    bench = commands.add_parser("bench", help="time and memory of a step next to its peers (about 5 minutes)")
    bench.add_argument("--rounds", type=_positive, default=15, help="interleaved rounds (default: 15)")
    bench.add_argument("--threads", type=_positive, default=torch.get_num_threads(), help="threads (default: torch's)")
    bench.add_argument(
        "--quick", action="store_true", help="small tensors, which fit into caches: to see that it works"
    )
    bench.add_argument("--out", type=Path, default=Path("results"), help="where bench.json and bench.png go")
    play = commands.add_parser(
        "regret",
        help="play a game, and see the regret next to every bound of the paper",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="games:\n"
        + _listed(regret.GAMES)
        + "\n\nlearners:\n"
        + _listed(regret.LEARNERS)
        + "\n\nexit code: 0 if every promised bound held, 3 if one failed, 1 if the run was not possible",
    )
    play.add_argument("--game", choices=regret.GAMES, default="adversarial", metavar="GAME", help="(adversarial)")
    play.add_argument("--learner", choices=regret.LEARNERS, default="row", metavar="LEARNER", help="(row)")
    play.add_argument("--m", type=_positive, default=64, help="rows (default: 64)")
    play.add_argument("--n", type=_positive, default=64, help="columns (default: 64)")
    play.add_argument("--rounds", type=_positive, default=10_000, help="(default: 10000)")
    play.add_argument(
        "--radius", type=float, help="of the Frobenius ball (default: 1; in motivating-*, half the limit)"
    )
    play.add_argument("--seed", type=int, default=0, help="of random games (default: 0)")
    play.add_argument("--delta", type=float, help="the stabilizer δ of row, column, entry and whole (default: 1e-8)")
    play.add_argument("--exact", action="store_true", help="play twice, for exact distances to the best decision")
    play.add_argument("--checkpoint", type=Path, help="a file to go on from, and to save to, also on Ctrl-C")
    play.add_argument("--json", type=Path, help="where the figures go")
    play.add_argument("--picture", type=Path, help="where the picture of the trade-off goes (a .png, .svg or .pdf)")
    fetch = commands.add_parser(
        "data",
        help="get MovieLens 100K and check it",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Without --path it is looked for in the user's cache, then at GroupLens, then in the wheel of RecBole,\n"
        "which pip gets. Whatever the source, it is the published table of 100,000 ratings, or it is refused.\n\n"
        "exit code: 0 if it is there, 1 if not",
    )
    fetch.add_argument("--path", type=Path, help="your u.data, ml-100k.zip or ml-100k.inter, or a folder with one")
    fetch.add_argument("--json", action="store_true", help="print what was found as JSON")
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
    match options.command:
        case "bench":
            return _bench(options.rounds, options.threads, options.out, options.quick)
        case "regret":
            return _regret(options)
        case "data":
            return _data(options.path, options.json)
        case _:
            return _reproduce(options)


def _reproduce(options: argparse.Namespace) -> int:
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
        print((out / "claims.json").read_text(), end="")
        return 0
    print(reproduce.table(verdicts, terminal.painter(sys.stdout)))
    print(f"\n{terminal.tally(verdicts)}" + "\nQUICK RUN: fewer seeds and a coarser grid" * options.quick)
    print(f"claims: {out / 'claims.json'}")
    if report:
        print(f"report: {report}")
    else:
        missing = ", ".join(reproduce.missing_extras())
        print(f"no report without {missing}: pip install 'matrix-adagrad[experiments]', and run it again")
    return 0


def _check_size(out: Path, quick: bool) -> None:
    """Seven minutes' results are not overwritten by those of one minute, nor the other way round."""
    try:
        there = json.loads((out / "claims.json").read_text())["quick"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    if there is not quick:
        kinds = ("a quick run", "a full run") if there else ("a full run", "a quick run")
        raise ValueError(f"{out} has the results of {kinds[0]}, and this is {kinds[1]}: give another --out")


def _said(error: Exception, out: Path) -> str:
    """What went wrong with a file, without its number."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    return f"{error.strerror}: {error.filename}" if error.filename else f"{error.strerror}, while writing to {out}"


def _bench(rounds: int, threads: int, out: Path, quick: bool) -> int:
    from matrix_adagrad.bench import report, run

    torch.set_num_threads(threads)
    print(f"torch {torch.__version__}, {threads} threads, {max(2, rounds)} interleaved rounds; ratios of medians, in")
    print("brackets the quartiles of single rounds' ratios; peak extra and state over the parameters' size")
    if quick:
        print("QUICK: these tensors fit into caches, and the bars are not meant for them")
    result = run.run(max(2, rounds), quick=quick, show=report.print_case)
    report.print_bars(result.bars)
    print("\nwritten: " + ", ".join(map(str, report.save(result, out))))
    return 0


def _regret(options: argparse.Namespace) -> int:
    config = regret.Config(
        options.game,
        options.m,
        options.n,
        options.rounds,
        options.learner,
        options.radius,
        options.exact,
        options.seed,
        options.delta,
    )
    if options.m * options.n < 1 << 16:
        torch.set_num_threads(1)  # on small matrices threads would only wait for each other
    try:
        _check_outputs(options.json, options.picture)
        result = regret.run(config, progress=_bar(), checkpoint=options.checkpoint)
    except (ValueError, ImportError) as error:
        print(f"matrix-adagrad regret: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        kept = options.checkpoint and options.checkpoint.exists()
        print("\ninterrupted" + f"; the same command goes on from {options.checkpoint}" * bool(kept), file=sys.stderr)
        return 130
    print(f"{config.game} on {config.m}×{config.n}, learner {config.learner}")
    print(result.table())
    if options.json:
        write(options.json, json.dumps({"config": vars(config), **result.to_dict()}, indent=1) + "\n")
    if options.picture:
        regret.draw(result.tradeoff, options.picture)
    return 0 if result.holds else 3


def _check_outputs(figures: Path | None, picture: Path | None) -> None:
    """What cannot be written after a long run is refused before it."""
    for path in (figures, picture):
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            raise ValueError(f"{path} cannot be written: it is a folder, or its folder does not exist")
    if picture is not None:
        if picture.suffix not in (".png", ".svg", ".pdf"):
            raise ValueError(f"{picture} must end in .png, .svg or .pdf")
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            raise ImportError("--picture needs matplotlib: pip install 'matrix-adagrad[experiments]'") from None


def _listed(words: Mapping[str, str]) -> str:
    return "\n".join(f"  {name:<18} {meaning}" for name, meaning in words.items())


def _bar() -> Any:
    """A progress bar with the time left, if tqdm is there and somebody looks on."""
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return functools.partial(tqdm, unit=" rounds", unit_scale=True, leave=False, disable=None)


def _data(path: Path | None, as_json: bool) -> int:
    try:
        found = data.movielens(path)
    except (OSError, ValueError) as error:
        print(f"matrix-adagrad data: {error}", file=sys.stderr)
        return 1
    users, items = len(found.users.unique()), len(found.items.unique())
    if as_json:
        counts = {"ratings": len(found.ratings), "users": users, "items": items}
        print(json.dumps({"source": found.source, **counts, "cached": found.cached and str(found.cached)}))
        return 0
    print(f"MovieLens 100K, from {found.source}")
    print(f"{len(found.ratings):,} ratings of {items:,} items by {users:,} users, as published")
    print(f"cached: {found.cached or 'no, it could not be written'}")
    return 0


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _positive(text: str) -> int:
    if not text.lstrip("+-").isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number and must be at least 1, got {text}")
    return int(text)
