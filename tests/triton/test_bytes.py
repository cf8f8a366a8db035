"""The bytes that the kernels load and store, counted access by access, are those of the formulas in docs/gpu.md."""

import math

import pytest

from benchmarks.gpu.movement import PAIRS, SHAPE, again, counted, least
from benchmarks.gpu.options import FAMILIES, is_possible

SMALL = (16, 1024)
every_pair = pytest.mark.parametrize(
    "chosen",
    [{**chosen, "shape": SMALL} if chosen["shape"] == SHAPE else chosen for chosen in PAIRS],
    ids=lambda chosen: f"{chosen['geometry']}-{chosen['family']}-{chosen['shape'][1]}",
)


def of_arrays(moved):
    return {name: size for name, size in moved.items() if size and not name.endswith("others")}


@every_pair
def test_a_step_moves_what_the_formula_says(chosen):
    assert of_arrays(counted(chosen)) == of_arrays(least(chosen) + again(chosen))


@pytest.mark.parametrize(
    ("geometry", "family"),
    [
        (geometry, family)
        for geometry in ("row", "entry")
        for family in FAMILIES
        if is_possible({"geometry": geometry, "family": family})
    ],
)
def test_rows_and_entries_move_each_array_once(geometry, family):
    chosen = {"geometry": geometry, "family": family, "shape": SMALL}
    assert not again(chosen)
    assert of_arrays(counted(chosen)) == of_arrays(least(chosen))


def test_rows_without_momentum_read_the_gradient_and_the_parameter_and_write_the_parameter():
    entries, rows = math.prod(SMALL), SMALL[0]
    moved = of_arrays(counted({"geometry": "row", "family": "AdaGrad", "shape": SMALL}))
    assert moved == dict.fromkeys(("read g", "read x", "write x"), 4 * entries) | {
        "read V": 4 * rows,
        "write V": 4 * rows,
    }
