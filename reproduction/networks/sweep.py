"""Which cells the stacked MLPs need.

Setting A is run at all depths and with all controls, the other settings where the paper makes a claim. On ladders, the
learning rates climb until networks no longer train.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from reproduction.cells import Cell, Known
from reproduction.networks.mlp import OPTIMIZERS, SAMPLES, SETTINGS, WIDTH, Config, Run

__all__ = ["ADAM", "CLIMBERS", "COLUMN", "FULL", "LRS", "MEAN", "QUICK", "ROW", "SMALL_ADAM", "WHOLE", "Size", "needed"]

LRS = (0.01, 0.001)  # the paper's
ADAM, ROW, COLUMN = "Adam", "Row-wise Momentum", "Column-wise Momentum"
# The controls. At equal learning rates, the first and the last take steps of the size that rows take, the second
# steps of the size that Adam takes.
SMALL_ADAM, MEAN, WHOLE = "Adam, lr/√width", "Row-wise, mean", "Row-wise, whole biases"
CLIMBERS = (ADAM, ROW, MEAN)  # two rungs are √width apart, so Adam at lr/√width is Adam two rungs below

# What is run in the settings other than A, by depth and learning rate.
CLAIMED: dict[int, dict[float, tuple[str, ...]]] = {
    15: {0.01: (ADAM, ROW, COLUMN), 0.001: (ADAM, ROW)},
    22: {0.01: (ADAM,)},
    25: {0.01: (ADAM, SMALL_ADAM, ROW, MEAN, WHOLE, COLUMN), 0.001: (ADAM, ROW)},
}
# At 22 layers the paper makes no claim on these. They are for the comparison with unequal eps.
UNEQUAL = {"B": (Run(ADAM, 0.001),), "B with eps 1e-16": (Run(ROW, 0.01), Run(ROW, 0.001))}

AT_ONCE = 4000  # samples in a step of a cell; more do not fit in a cache


@dataclass(frozen=True)
class Size:
    """How much to run.

    Args:
        seeds: in setting A.
        other_seeds: in the other settings, and on ladders.
        depths: in setting A.
        settings: the others.
        ladders: the settings with ladders.
        rungs: of a ladder, by depth: around the last one at which networks train. Rung 0 is a learning rate of 0.01.
        controls: in setting A, all of them, or only those that the claims need.
    """

    seeds: int
    other_seeds: int
    depths: tuple[int, ...]
    settings: tuple[str, ...]
    ladders: tuple[str, ...]
    rungs: Mapping[int, range]
    controls: bool = True

    def rates(self, depth: int) -> tuple[float, ...]:
        """The learning rates of a ladder. Four rungs are a factor of the width."""
        return tuple(float(f"{0.01 * WIDTH ** (rung / 4):.6g}") for rung in self.rungs[depth])


FULL = Size(
    seeds=10,
    other_seeds=5,
    depths=(5, 10, 15, 22, 25),
    settings=tuple(SETTINGS)[1:],
    ladders=("A", "A with ReLU"),
    rungs={5: range(6), 15: range(-2, 3), 25: range(-3, 2)},
)
QUICK = Size(3, 3, (15, 25), (), ("A",), rungs={25: range(-2, 2)}, controls=False)


def needed(size: Size, _: Known) -> list[Cell]:
    """All cells: the networks of one depth in one setting, or as many of them as are fast at once."""
    cells: list[Cell] = []
    asked: set[tuple[str, int, Run]] = set()

    def ask(setting: str, depth: int, seeds: int, runs: Iterable[Run]) -> None:
        new = [run for run in runs if (setting, depth, run) not in asked]
        asked.update((setting, depth, run) for run in new)
        count = max(2, AT_ONCE // (SETTINGS[setting].batch * seeds))
        parts = (tuple(new[start : start + count]) for start in range(0, len(new), count))
        cells.extend(Config(setting, depth, part, tuple(range(seeds))) for part in parts)

    for depth in size.depths:
        ask("A", depth, size.seeds, _in_a(depth) if size.controls else _elsewhere("A", depth))
    for setting, depth in itertools.product(size.settings, CLAIMED):
        ask(setting, depth, size.other_seeds, _elsewhere(setting, depth))
    for setting, depth in itertools.product(size.ladders, size.rungs):
        rungs = itertools.product(CLIMBERS, size.rates(depth))
        ask(setting, depth, size.other_seeds, itertools.starmap(Run, rungs))
    return cells


def _in_a(depth: int) -> list[Run]:
    if depth in (15, 25):  # where the paper's figures are
        return [Run(name, lr) for lr in LRS for name in OPTIMIZERS]
    return [*(Run(name, LRS[0]) for name in (ADAM, SMALL_ADAM, ROW, MEAN)), Run(ADAM, LRS[1]), Run(ROW, LRS[1])]


def _elsewhere(setting: str, depth: int) -> list[Run]:
    left_out = set()
    if SETTINGS[setting].batch == SAMPLES:  # ten times the samples in each step
        left_out.add(COLUMN)
    if setting == "B":  # Adam and rows fail at both learning rates, so there is no difference to explain
        left_out |= {SMALL_ADAM, MEAN, WHOLE}
    runs = [Run(name, lr) for lr, names in CLAIMED[depth].items() for name in names if name not in left_out]
    return runs + list(UNEQUAL.get(setting, ()) if depth == 22 else ())
