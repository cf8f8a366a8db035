"""What an experiment is to the rest of the reproduction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from matrix_adagrad.pages.document import Section
from reproduction.cells import Cell, Known
from reproduction.verdict import Claim

__all__ = ["Experiment"]


@dataclass(frozen=True)
class Experiment:
    """One of the paper's experiments.

    Args:
        name: its name on the command line, which is its folder's.
        about: what it is, in a line.
        full: how much to run.
        quick: how much to run in a minute.
        needed: the cells it needs, given a size and the results so far. Called again with their results until nothing
            is new.
        evidence: the results in the terms of the claims, given all of them and the size.
        claims: the claims it judges, each by its evidence.
        section: its section of the report.
    """

    name: str
    about: str
    full: Any
    quick: Any
    needed: Callable[[Any, Known], list[Cell]]
    evidence: Callable[[Known, Any], Any]
    claims: tuple[Claim, ...]
    section: Callable[[Any], Section]
