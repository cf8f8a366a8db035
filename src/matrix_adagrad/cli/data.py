"""``matrix-adagrad data``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from matrix_adagrad.cli.arguments import add_json
from matrix_adagrad.experiments import data

__all__ = ["add"]


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "data",
        help="get MovieLens 100K and check it",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Without --path it is looked for in the user's cache, then at GroupLens, then in the wheel of RecBole,\n"
        "which pip gets. Whatever the source, it is the published table of 100,000 ratings, or it is refused.\n\n"
        "exit code: 0 if it is there, 1 if not",
    )
    parser.add_argument("--path", type=Path, help="your u.data, ml-100k.zip or ml-100k.inter, or a folder with one")
    add_json(parser)
    parser.set_defaults(run=lambda options: run(options.path, options.json))


def run(path: Path | None, as_json: bool) -> int:
    """Get MovieLens, and say what it is."""
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
