"""Which cells the structures need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from reproduction.cells import Cell, Known
from reproduction.structure import cost, regret, training
from reproduction.structure.planted import Structure

__all__ = ["FULL", "NONE", "PROPORTIONAL", "QUICK", "STRUCTURES", "TASKS", "TRAINING", "Size", "cell", "needed"]

NONE = "none"
STRUCTURES = {
    NONE: Structure(),
    "one active row": Structure(row_activity="one"),
    "one active column": Structure(column_activity="one"),
    "Zipf rows": Structure(row_activity="zipf"),
    "Zipf columns": Structure(column_activity="zipf"),
    "row sizes": Structure(row_decades=2.0),
    "column sizes": Structure(column_decades=2.0),
    "row and column sizes": Structure(row_decades=2.0, column_decades=2.0),
    "entry sizes": Structure(entry_decades=2.0),
    "correlated in rows": Structure(within_rows=0.75),
    "correlated in columns": Structure(within_columns=0.75),
    "64 × 4": Structure(64, 4),
    "4 × 64": Structure(4, 64),
}
TRAINING, PROPORTIONAL = "training", "training, proportional solution"
SYMMETRIC = ("Frobenius ball", "box")  # mirror images of structures are played by mirror images of learners
TASKS = (TRAINING, PROPORTIONAL, "row balls", *SYMMETRIC)
LONGER = "Zipf rows"  # is also run four times as long, and with a quarter of the drift


@dataclass(frozen=True)
class Size:
    """How much to run."""

    rounds: int
    seeds: int
    tuning: int
    structures: tuple[str, ...]
    correlations: tuple[float, ...]
    checks: bool  # longer runs, and games with less to learn
    shapes: tuple[tuple[int, int], ...]
    repeats: int


FULL = Size(
    *(400, 10, 5, tuple(STRUCTURES), (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)),
    checks=True,
    shapes=((943, 20), (256, 256), (64, 512)),
    repeats=3,
)
QUICK = Size(
    *(100, 4, 3, (NONE, "one active row", "Zipf rows", "Zipf columns", "row sizes", "column sizes"), (0.0, 0.75, 0.9)),
    checks=False,
    shapes=((64, 64), (200, 10)),
    repeats=3,
)


def cell(task: str, structure: Structure, size: Size, *, longer: int = 1, **changes: Any) -> Cell:
    """A structure in a task."""
    how = {"rounds": longer * size.rounds, "seeds": size.seeds, "tuning": size.tuning, **changes}
    if task in (TRAINING, PROPORTIONAL):
        return training.Config(structure, task == PROPORTIONAL, **how)
    return regret.Config(structure, task, **how)


def names(task: str, size: Size) -> list[str]:
    """The structures that a task has: proportional solutions need sizes, and training has none of single entries."""
    found = [name for name in size.structures if not (task in (TRAINING, PROPORTIONAL) and name == "entry sizes")]
    return [name for name in found if "sizes" in name or "Zipf" in name] if task == PROPORTIONAL else found


def needed(size: Size, _: Known) -> list[Cell]:
    """All structures in all tasks, correlations within rows from none to full, and what steps cost."""
    wanted: dict[Cell, None] = {}
    for task in TASKS:
        structures = [STRUCTURES[name] for name in names(task, size)]
        if task != PROPORTIONAL:
            structures += [Structure(within_rows=share) for share in size.correlations]
        for structure in structures:
            if not (task in SYMMETRIC and cell(task, structure.transpose, size) in wanted):
                wanted[cell(task, structure, size)] = None
        if size.checks and task != PROPORTIONAL:
            wanted[cell(task, STRUCTURES[LONGER], size, longer=4)] = None
            if task != TRAINING:
                wanted[cell(task, STRUCTURES[LONGER], size, drift=1.0)] = None
    return [*wanted, *(cost.Config(m, n, size.repeats) for m, n in size.shapes)]
