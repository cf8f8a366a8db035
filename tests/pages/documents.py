"""Documents that are made up."""

import dataclasses
import math

from matrix_adagrad.pages.document import (
    Axis,
    Document,
    Figure,
    Grid,
    HeatMap,
    Line,
    Panel,
    Plate,
    Section,
    Table,
)

NASTY = "</script><script>alert(1)</script><b>bold</b> & \"quoted\" '$x$' <!-- \u2028"
CLAIM_COLUMNS = ("id", "place", "statement", "rule", "figures", "verdict", "command")
VERDICTS = ("holds", "holds only if the rate is small", "does not hold here: it is the other way round")


def line(name="row", count=20, gaps=(), band=True, scale=1.0):
    x = tuple(float(i + 1) for i in range(count))
    y = tuple(None if i in gaps else scale / (i + 1) for i in range(count))
    low, high = (tuple(None if v is None else v * factor for v in y) for factor in (0.8, 1.3))
    return Line(name, x, y, low if band else (), high if band else ())


def figure(name="loss", panels=3, lines=None, x=None, y=None):
    lines = lines or (line("row"), line("adam", gaps=(3, 4)), Line("bound", (1.0, 20.0), (1.0, 0.9), reference=True))
    shown = tuple(Panel(str(10 * (i + 1)), tuple(lines)) for i in range(panels))
    axes = (x or Axis("epoch"), y or Axis("training loss", log=True))
    return Figure(
        name, f"The {name} falls.", "It falls from one to near zero.", "Ten seeds.", *axes, shown, "layers", 0
    )


def grid(title="by row", rows=6, columns=10, gaps=(), x=None, y=None):
    """Values from 1 down; what is in ``gaps``, as pairs of row and column, has none."""
    values = tuple(
        tuple(None if (r, c) in gaps else 10.0 ** -(r + c / columns) for c in range(columns)) for r in range(rows)
    )
    xs, ys = tuple(10.0 * (c + 1) for c in range(columns)), tuple(map(float, range(rows)))
    return Grid(title, x or Axis("step"), y or Axis("row"), xs, ys, values)


def heat_map(name="scales", count=3, grids=None, **changes):
    grids = grids or (grid(), grid("by column", rows=4))
    shown = tuple(Plate(f"layer.{i}", tuple(grids)) for i in range(count))
    texts = (f"The {name} differ.", "They differ by five powers of ten.", "Sixty steps.", "mean square")
    return dataclasses.replace(HeatMap(name, *texts, shown, "parameter"), **changes)


def table(name="final"):
    rows = (("row", 10, 0.12345678, None), ("adam", 20, math.nan, "diverged"))
    return Table(name, "Final loss", "Medians.", ("optimizer", "layers", "loss", "note"), rows)


def document(parts=None, quick=False, leading=("loss",), **changes):
    rows = tuple(
        (
            f"C{i}",
            "Theorem 2",
            f"Statement {i}.",
            "A rule.",
            "loss, 0.12 of 0.13",
            verdict,
            f"matrix-adagrad claim C{i}",
        )
        for i, verdict in enumerate(VERDICTS)
    )
    claims = Table("claims", "Claims", "All of them.", CLAIM_COLUMNS, rows)
    sections = (Section("first", "First section", ("Prose with `code`.",), parts or (figure(), table())),)
    made = Document("A report", "What came out.", (("version", "1.0"),), quick, leading, sections, claims)
    return dataclasses.replace(made, **changes)
