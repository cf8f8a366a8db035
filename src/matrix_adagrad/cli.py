"""The command line: ``matrix-adagrad reproduce``, ``regret``, ``bench`` and ``data``."""

from __future__ import annotations

import argparse
import functools
import json
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from matrix_adagrad.experiments import data, mlp, motivating, regret
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
        help="examples: the bounds and regret of the motivating examples (§4.3, App. F), in 15 seconds; "
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
    play.add_argument("--exact", action="store_true", help="play twice, for exact distances to the best decision")
    play.add_argument("--checkpoint", type=Path, help="a file to go on from, and to save to, also on Ctrl-C")
    play.add_argument("--json", type=Path, help="where the figures go")
    play.add_argument("--picture", type=Path, help="where the picture of the trade-off goes (a .png, .svg or .pdf)")
    fetch = commands.add_parser("data", help="get MovieLens 100K and check it")
    fetch.add_argument("--path", type=Path, help="your u.data, ml-100k.zip or ml-100k.inter, or a folder with one")
    options = parser.parse_args(arguments)
    try:
        if options.command == "bench":
            _bench(options.rounds, options.threads, options.out, options.quick)
            return 0
        if options.command == "regret":
            return _regret(options)
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
    print("Motivating examples (§4.3, App. F): bounds of the aligned geometry and of entry-wise AdaGrad, and what both")
    print("regretted when they played, with exact projections in their metrics, from zero and from a random start\n")
    print(f"{'':<22}{'-------- bounds --------':>35}{'---- regret, zero ----':>25}{'-- regret, random --':>23}")
    print(f"{'active':<8}{'m':>4}{'n':>4}{'K':>6}{'aligned':>10}{'entry':>9}{'ratio':>8}{'paper':>8}", end="")
    print(f"{'aligned':>12}{'entry':>9}{'less':>9}{'aligned':>10}{'entry':>9}")
    swapped = 0
    for active in ("row", "column"):
        for m, n, K in ((16, 9, 10), (9, 16, 10), (7, 11, 3), (25, 4, 100), (8, 8, 1), (8, 8, 300), (9, 9, 300)):
            zero, random = (motivating.run(motivating.Config(m, n, K, active, start)) for start in ("zero", "random"))
            less = "aligned" if zero.regret < zero.entry_regret else "entry"
            less = "equal" if math.isclose(zero.regret, zero.entry_regret, rel_tol=1e-9) else less
            swapped += less == "entry"
            print(f"{active:<8}{m:>4}{n:>4}{K:>6}{zero.bound:>10.3f}{zero.entry_bound:>9.3f}", end="")
            print(f"{zero.ratio:>8.4f}{zero.expected_ratio:>8.4f}{zero.regret:>12.3f}{zero.entry_regret:>9.3f}", end="")
            print(f"{less:>9}{random.regret:>10.3f}{random.entry_regret:>9.3f}")
    print(
        f"\nThe aligned bound is the lower one in every game; entry-wise AdaGrad regretted less in {swapped} of 14.\n"
    )


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


def _regret(options: argparse.Namespace) -> int:
    config = regret.Config(
        options.game, options.m, options.n, options.rounds, options.learner, options.radius, options.exact, options.seed
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
        options.json.write_text(json.dumps({"config": vars(config), **result.to_dict()}, indent=1) + "\n")
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
    if not text.lstrip("+-").isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number and must be at least 1, got {text}")
    return int(text)
