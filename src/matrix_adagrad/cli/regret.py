"""``matrix-adagrad regret``."""

from __future__ import annotations

import argparse
import functools
import sys
from pathlib import Path
from typing import Any

import torch

from matrix_adagrad.cli.arguments import add_json, definitions, positive, positive_number
from matrix_adagrad.cli.command import INTERRUPTED, say
from matrix_adagrad.online import chart, presets
from matrix_adagrad.optional import OptionalOutput
from matrix_adagrad.text import json_text

__all__ = ["REQUESTED", "add"]

REQUESTED = {"picture": OptionalOutput("--picture", ("matplotlib",), "cli")}


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "regret",
        help="play an online game, and print the regret with every bound of the paper",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="games:\n"
        + definitions(presets.GAMES)
        + "\n\nlearners:\n"
        + definitions(presets.LEARNERS)
        + "\n\nexit code: 0 if every guaranteed bound held, 3 if one failed, 1 if the game cannot be played,\n"
        "2 if the arguments are wrong, 130 after Ctrl-C",
    )
    for option, names, default in (("--game", presets.GAMES, "adversarial"), ("--learner", presets.LEARNERS, "row")):
        parser.add_argument(
            option, choices=names, default=default, metavar="NAME", help=f"see below (default: {default})"
        )
    parser.add_argument("--m", type=positive, default=64, help="rows (default: 64)")
    parser.add_argument("--n", type=positive, default=64, help="columns (default: 64)")
    parser.add_argument("--rounds", type=positive, default=10_000, help="rounds to play (default: 10000)")
    parser.add_argument(
        "--radius",
        type=positive_number,
        help="radius of the Frobenius ball (default: 1; for motivating-*, half the limit)",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of random games (default: 0)")
    parser.add_argument("--delta", type=positive_number, help="the stabilizer δ (default: 1e-8)")
    parser.add_argument("--exact", action="store_true", help="play twice, for exact distances to the best decision")
    parser.add_argument("--checkpoint", type=Path, help="a file to resume from and to save to, also on Ctrl-C")
    parser.add_argument("--picture", type=Path, help="plot regret and bounds in this .png, .svg or .pdf")
    add_json(parser)
    parser.set_defaults(run=run, command="matrix-adagrad regret", requested=REQUESTED)


def run(options: argparse.Namespace) -> int:
    """Play the game, and print its regret and bounds."""
    config = presets.GameConfig(
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
        points = chart.POINTS if options.picture else 0
        result = presets.play(config, progress=_bar(), checkpoint=options.checkpoint, points=points)
    except ValueError as error:
        say(options, str(error))
        return 1
    except KeyboardInterrupt:
        is_saved = options.checkpoint and options.checkpoint.exists()
        print(
            "\ninterrupted" + f"; run the same command again to resume from {options.checkpoint}" * bool(is_saved),
            file=sys.stderr,
        )
        return INTERRUPTED
    if options.json:
        print(json_text({"config": vars(config), **result.to_dict()}), end="")
    else:
        print(f"{config.game} on {config.m}×{config.n}, learner {config.learner}")
        print(result.table(), flush=True)
    if options.picture:
        chart.draw(result, options.picture)
    return 0 if result.holds else 3


def _check_picture(path: Path | None) -> None:
    """Raise an error before a long run if its picture cannot be written."""
    if path is None:
        return
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ValueError(f"--picture {path} cannot be written: it is a folder, or its folder does not exist")
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise ValueError(f"--picture must end in .png, .svg or .pdf, got {path}")


def _bar() -> Any:
    """A progress bar with the time left, if tqdm is installed and stderr is a terminal."""
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return functools.partial(tqdm, unit=" rounds", unit_scale=True, leave=False, disable=None)
