"""The numbers behind figures and tables."""

import csv
import io
import math

import pytest

from matrix_adagrad.pages import tables
from tests.pages.documents import figure, grid, heat_map, line, table


def test_csv_of_a_figure_reads_back_as_its_points():
    made = figure(lines=[line("Row-wise, mean", gaps=(0, 7)), line("no band", band=False, scale=1 / 3)])
    rows = list(csv.DictReader(io.StringIO(tables.csv_text(made))))
    assert list(rows[0]) == ["panel", "line", "x", "y", "low", "high"]
    expected = [
        (panel.title, curve.name, *point)
        for panel in made.panels
        for curve in panel.lines
        for point in tables.points(curve)
    ]
    numbers = ("x", "y", "low", "high")
    found = [(r["panel"], r["line"], *(float(r[k]) if r[k] else None for k in numbers)) for r in rows]
    assert found == expected


def test_csv_of_a_heat_map_reads_back_as_its_cells():
    made = heat_map(count=2, grids=[grid(gaps=[(0, 1)]), grid("by, column", rows=2)])
    rows = list(csv.DictReader(io.StringIO(tables.csv_text(made))))
    assert list(rows[0]) == ["plate", "grid", "x", "y", "value"]
    assert len(rows) == 2 * (60 + 20)
    found = {(r["plate"], r["grid"], float(r["x"]), float(r["y"])): r["value"] for r in rows}
    assert found["layer.1", "by row", 20.0, 0.0] == ""
    for plate in made.plates:
        for panel in plate.grids:
            for y, values in zip(panel.ys, panel.values, strict=True):
                for x, value in zip(panel.xs, values, strict=True):
                    assert found[plate.title, panel.title, x, y] == ("" if value is None else str(value))


def test_csv_of_a_table_has_its_columns_and_empty_fields():
    rows = list(csv.reader(io.StringIO(tables.csv_text(table()))))
    header, first, second = rows
    assert header == ["optimizer", "layers", "loss", "note"]
    assert first == ["row", "10", "0.12345678", ""]
    assert second == ["adam", "20", "nan", "diverged"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (True, "yes"),
        (3, "3"),
        (3.0, "3"),
        (0.123456, "0.1235"),
        (1e-9, "1e-09"),
        (math.nan, "–"),
        (-math.inf, "-∞"),
        ("as it is", "as it is"),
    ],
)
def test_fields_are_short(value, text):
    assert tables.field(value) == text


def test_columns_of_numbers_and_fractions_are_known():
    assert tables.is_numeric([1, 2.5, None, math.nan, "7/10", "12%"])
    assert not tables.is_numeric([1, "diverged"])
    assert not tables.is_numeric([None, ""])
