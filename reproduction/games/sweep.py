"""Which cells the games need."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from matrix_adagrad.online.presets import GAMES as NAMED_GAMES
from reproduction.cells import Cell, Known
from reproduction.games import domains, hindsight, horizon, identities, motivating, theorems, tradeoff

__all__ = ["FULL", "QUICK", "Size", "needed"]


@dataclass(frozen=True)
class Size:
    """How much to run."""

    games: tuple[tuple[int, int, int], ...]  # (m, n, K)
    rounds: int  # of the games on which theorems are checked
    shapes: tuple[tuple[int, int], ...]  # of the matrices on other domains
    doublings: int  # of the rounds of the longest games


SHORT = ((16, 9, 10), (9, 16, 10), (7, 11, 3))
GAMES = (*SHORT, (12, 5, 3), (10, 10, 30), (11, 11, 30), (8, 8, 1), (25, 4, 100), (8, 8, 200), (9, 9, 200))
FULL = Size(GAMES, 300, ((16, 9), (9, 16), (4, 25)), 11)
QUICK = Size(SHORT, 50, ((4, 9),), 10)
LEARNERS = ("row", "column")
LONG = ("adversarial", "motivating-row", "linear", "logistic", "completion")


def needed(size: Size, _: Known) -> list[Cell]:
    """The motivating examples and their controls, the games that check the theory, and the algorithms' identities."""
    return [*_motivating(size), *_theory(size), identities.Config()]


def _motivating(size: Size) -> Iterator[Cell]:
    for active, game, start in itertools.product(LEARNERS, size.games, ("zero", "random")):
        yield motivating.Config(*game, active, start)
    for active, shape in (("row", (6, 1)), ("column", (1, 6))):
        yield motivating.Config(*shape, 10, active)
    for domain, structure, (m, n) in itertools.product(domains.DOMAINS, domains.STRUCTURES, size.shapes):
        yield domains.Config(domain, structure, m, n)


def _theory(size: Size) -> Iterator[Cell]:
    for game, learner, delta in itertools.product(NAMED_GAMES, LEARNERS, (1e-8, 1.0, 1e3)):
        yield theorems.Config(game, learner, delta, rounds=size.rounds)
    for learner in LEARNERS:
        yield theorems.Config(theorems.STUBBORN, learner, 1e6, 1, 1, 3)
    for game in NAMED_GAMES:
        yield tradeoff.Config(game, rounds=size.rounds)
    for domain, learner, drift in itertools.product(hindsight.DOMAINS, LEARNERS, (0.1, 1.0)):
        yield hindsight.Config(domain, learner, drift, rounds=size.rounds)
    for game, delta in itertools.product(LONG, (1e-8, 1.0, 1e3)):
        yield horizon.Config(game, delta=delta, doublings=size.doublings)
