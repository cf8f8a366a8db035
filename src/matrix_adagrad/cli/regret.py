"""``matrix-adagrad regret``."""

from __future__ import annotations

import argparse
import functools
import sys
from pathlib import Path
from typing import Any

import torch

from matrix_adagrad.cli.arguments import add_json, listed, positive
from matrix_adagrad.experiments import regret
from matrix_adagrad.outputs import Output
from matrix_adagrad.text import json_text

__all__ = ["ASKED", "add"]

ASKED = {"picture": Output("--picture", ("matplotlib",), "experiments")}


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "regret",
        help="play a game, and see the regret next to every bound of the paper",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="games:\n"
        + listed(regret.GAMES)
        + "\n\nlearners:\n"
        + listed(regret.LEARNERS)
        + "\n\nexit code: 0 if every promised bound held, 3 if one failed, 1 if the run was not possible,\n"
        "2 if the arguments are wrong",
    )
    parser.add_argument("--game", choices=regret.GAMES, default="adversarial", metavar="GAME", help="(adversarial)")
    parser.add_argument("--learner", choices=regret.LEARNERS, default="row", metavar="LEARNER", help="(row)")
    parser.add_argument("--m", type=positive, default=64, help="rows (default: 64)")
    parser.add_argument("--n", type=positive, default=64, help="columns (default: 64)")
    parser.add_argument("--rounds", type=positive, default=10_000, help="(default: 10000)")
    parser.add_argument(
        "--radius", type=float, help="of the Frobenius ball (default: 1; in motivating-*, half the limit)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of random games (default: 0)")
    parser.add_argument("--delta", type=float, help="the stabilizer δ of row, column, entry and whole (default: 1e-8)")
    parser.add_argument("--exact", action="store_true", help="play twice, for exact distances to the best decision")
    parser.add_argument("--checkpoint", type=Path, help="a file to go on from, and to save to, also on Ctrl-C")
    parser.add_argument(
        "--picture", type=Path, help="where the picture of regret and bounds goes (a .png, .svg or .pdf)"
    )
    add_json(parser)
    parser.set_defaults(run=run, asked=ASKED)


def run(options: argparse.Namespace) -> int:
    """Play the game, and show regret and bounds."""
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
        _check_picture(options.picture)
        points = regret.POINTS if options.picture else 0
        result = regret.run(config, progress=_bar(), checkpoint=options.checkpoint, points=points)
    except ValueError as error:
        print(f"matrix-adagrad regret: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        kept = options.checkpoint and options.checkpoint.exists()
        print("\ninterrupted" + f"; the same command goes on from {options.checkpoint}" * bool(kept), file=sys.stderr)
        return 130
    if options.json:
        print(json_text({"config": vars(config), **result.to_dict()}), end="")
    else:
        print(f"{config.game} on {config.m}×{config.n}, learner {config.learner}")
        print(result.table(), flush=True)
    if options.picture:
        regret.draw(result, options.picture)
    return 0 if result.holds else 3


def _check_picture(path: Path | None) -> None:
    """What cannot be written after a long run is refused before it."""
    if path is None:
        return
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ValueError(f"{path} cannot be written: it is a folder, or its folder does not exist")
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise ValueError(f"{path} must end in .png, .svg or .pdf")


def _bar() -> Any:
    """A progress bar with the time left, if tqdm is there and somebody looks on."""
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return functools.partial(tqdm, unit=" rounds", unit_scale=True, leave=False, disable=None)
