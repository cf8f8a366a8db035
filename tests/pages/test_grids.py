"""Where cells end, and how far colours reach."""

import math
from dataclasses import replace

import pytest

from matrix_adagrad.pages import grids
from matrix_adagrad.pages.document import Axis, Plate
from tests.pages.documents import grid

LINEAR, LOG = Axis("x"), Axis("x", log=True)


@pytest.mark.parametrize(
    ("axis", "places", "edges"),
    [
        (LINEAR, (0, 1, 2), (-0.5, 0.5, 1.5, 2.5)),
        (LINEAR, (1, 2, 4), (0.5, 1.5, 3, 5)),
        (LINEAR, (4, 2, 1), (5, 3, 1.5, 0.5)),
        (LINEAR, (3,), (2.5, 3.5)),
        (LOG, (1, 100), (0.1, 10, 1000)),
        (LOG, (10,), (math.sqrt(10), 10 * math.sqrt(10))),
        (LOG, (0, 1), (-0.5, 0.5, 1.5)),  # no logarithm of 0, and so a linear axis
    ],
)
def test_cells_end_half_way_between_their_places(axis, places, edges):
    assert grids.edges(axis, places) == pytest.approx(edges)


def test_colours_reach_over_all_grids_of_a_plate_and_gaps_do_not_count():
    narrow = replace(grid(rows=1, columns=3), values=((None, 0.01, -5.0),))
    other = replace(grid(rows=1, columns=3), values=((math.inf, math.nan, 7.0),))
    assert grids.limits(Plate("", (narrow, other)), log=True) == (0.01, 7.0)
    assert grids.limits(Plate("", (narrow, other)), log=False) == (-5.0, 7.0)
    assert grids.drawable(narrow, log=True) == [[None, 0.01, None]]
    assert grids.drawable(other, log=False) == [[None, None, 7.0]]


@pytest.mark.parametrize("value", [None, 0.0, 3.0, -3.0])
@pytest.mark.parametrize("log", [True, False])
def test_one_value_alone_has_room_around_it(value, log):
    low, high = grids.limits(Plate("", (replace(grid(rows=1, columns=1), values=((value,),)),)), log)
    assert low < high
    assert low > 0 or not log


@pytest.mark.parametrize("xs", [(), (1.0, 1.0), (1.0, 3.0, 2.0), (1.0, math.nan)])
def test_places_that_do_not_go_one_way_are_refused(xs):
    with pytest.raises(ValueError, match="xs must be finite, and increasing or decreasing"):
        replace(grid(), xs=xs)


def test_values_that_do_not_fit_their_axes_are_refused():
    with pytest.raises(ValueError, match="there must be 10 names along 'step', got 1"):
        grid(x=Axis("step", names=("one",)))
    with pytest.raises(ValueError, match="values must be 6 rows of 10 numbers"):
        replace(grid(), values=((1.0,) * 10,) * 5 + ((1.0,) * 9,))
    with pytest.raises(ValueError, match="one grid or two, got 3"):
        Plate("", (grid(),) * 3)
