"""``matrix-adagrad data``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from matrix_adagrad.cli.arguments import add_json
from matrix_adagrad.cli.command import say
from matrix_adagrad.datasets.movielens import movielens

__all__ = ["add"]


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "data",
        help="download MovieLens 100K and check it",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Without --path, the data is read from the user's cache or downloaded: from GroupLens or, with pip,\n"
        "in the wheel of RecBole. Whatever the source, it is checked to be the published table of 100,000 ratings.\n\n"
        "exit code: 0 if it was found, 1 if not, 2 if the arguments are wrong",
    )
    parser.add_argument("--path", type=Path, help="your u.data, ml-100k.zip or ml-100k.inter, or a folder with one")
    add_json(parser)
    parser.set_defaults(run=run, command="matrix-adagrad data")


def run(options: argparse.Namespace) -> int:
    """Find or download MovieLens, and print what it is."""
    try:
        found = movielens(options.path)
    except (OSError, ValueError) as error:
        say(options, str(error))
        return 1
    users, items = len(found.users.unique()), len(found.items.unique())
    if options.json:
        counts = {"ratings": len(found.ratings), "users": users, "items": items}
        print(json.dumps({"source": found.source, **counts, "cached": found.cached and str(found.cached)}))
        return 0
    print(f"MovieLens 100K, from {found.source}")
    print(f"{len(found.ratings):,} ratings of {items:,} items by {users:,} users, as published")
    print(f"cached: {found.cached or 'no, it could not be written'}")
    return 0
