"""The command line: ``matrix-adagrad reproduce``, ``matrix-adagrad bench`` and ``matrix-adagrad data``."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from matrix_adagrad.experiments import data, mlp, motivating
from matrix_adagrad.version import __version__

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    parser = argparse.ArgumentParser(prog="matrix-adagrad", description="Row-wise and column-wise AdaGrad.")
    parser.add_argument("--version", action="version", version=f"matrix-adagrad {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    reproduce = commands.add_parser("reproduce", help="run the paper's experiments and print what came out")
    reproduce.add_argument(
        "what",
        nargs="?",
        choices=("all", "examples", "mlp"),
        default="all",
        help="examples: the bounds of the motivating examples (§4.3, App. F), in a second; "
        "mlp: the stacked MLPs (Fig. 2), in about two minutes; all: both (default)",
    )
    reproduce.add_argument("--seeds", type=_positive, default=3, help="networks of each kind (default: 3)")
    reproduce.add_argument("--epochs", type=_positive, default=100, help="epochs of each network (default: 100)")
    bench = commands.add_parser("bench", help="time and memory of a step next to its peers (about 5 minutes)")
    bench.add_argument("--rounds", type=_positive, default=15, help="interleaved rounds (default: 15)")
    bench.add_argument("--threads", type=_positive, default=torch.get_num_threads(), help="threads (default: torch's)")
    bench.add_argument(
        "--quick", action="store_true", help="small tensors, which fit into caches: to see that it works"
    )
    bench.add_argument("--out", type=Path, default=Path("results"), help="where bench.json and bench.png go")
    fetch = commands.add_parser("data", help="get MovieLens 100K and check it")
    fetch.add_argument("--path", type=Path, help="your u.data, ml-100k.zip or ml-100k.inter, or a folder with one")
    options = parser.parse_args(arguments)
    try:
        if options.command == "bench":
            _bench(options.rounds, options.threads, options.out, options.quick)
            return 0
        if options.command == "data":
            return _data(options.path)
        if options.what in ("all", "examples"):
            _examples()
        if options.what in ("all", "mlp"):
            _mlp(options.seeds, options.epochs)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    return 0


def _examples() -> None:
    print("Motivating examples (§4.3, App. F): regret bound of entry-wise AdaGrad over that of the aligned geometry\n")
    print(f"{'active':<8}{'m':>5}{'n':>5}{'K':>5}{'bound':>11}{'entry-wise':>12}{'ratio':>9}{'paper':>9}")
    for active in ("row", "column"):
        for m, n, K in ((16, 9, 10), (9, 16, 10), (25, 4, 100), (7, 11, 3)):
            result = motivating.run(motivating.Config(m, n, K, active))
            print(f"{active:<8}{m:>5}{n:>5}{K:>5}{result.bound:>11.3f}{result.entry_bound:>12.3f}", end="")
            print(f"{result.ratio:>9.4f}{result.expected_ratio:>9.4f}")
    print()


def _mlp(seeds: int, epochs: int) -> None:
    torch.set_num_threads(1)  # the layers are 20 wide
    print(f"Stacked MLPs (Fig. 2): lr 0.01, {epochs} epochs, {seeds} seeds")
    print("Training loss over that of the best linear fit (median), and how many seeds end below the linear fit\n")
    print(f"{'layers':<8}" + "".join(f"{name:>18}" for name in mlp.OPTIMIZERS))
    for depth in (5, 15, 25):
        print(f"{depth:<8}", end="", flush=True)
        for optimizer in mlp.OPTIMIZERS:
            runs = [mlp.run(mlp.Config(optimizer, depth, seed=seed, epochs=epochs)) for seed in range(seeds)]
            ratio = statistics.median(r.loss / r.linear_loss for r in runs)
            trained = f"{ratio:.3f} ({sum(r.trained for r in runs)}/{seeds})"
            print(f"{trained:>18}", end="", flush=True)
        print()


def _bench(rounds: int, threads: int, out: Path, quick: bool) -> None:
    from matrix_adagrad.bench import report, run

    torch.set_num_threads(threads)
    print(f"torch {torch.__version__}, {threads} threads, {max(2, rounds)} interleaved rounds; ratios of medians, in")
    print("brackets the quartiles of single rounds' ratios; peak extra and state over the parameters' size")
    if quick:
        print("QUICK: these tensors fit into caches, and the bars are not meant for them")
    result = run.run(max(2, rounds), quick=quick, show=report.print_case)
    report.print_bars(result.bars)
    print("\nwritten: " + ", ".join(map(str, report.save(result, out))))


def _data(path: Path | None) -> int:
    try:
        found = data.movielens(path)
    except (OSError, ValueError) as error:
        print(f"matrix-adagrad data: {error}", file=sys.stderr)
        return 1
    users, items = len(found.users.unique()), len(found.items.unique())
    print(f"MovieLens 100K, from {found.source}")
    print(f"{len(found.ratings):,} ratings of {items:,} items by {users:,} users, as published")
    print(f"cached: {found.cached or 'no, it could not be written'}")
    return 0


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return number
