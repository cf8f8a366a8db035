"""Documents that are made up."""

import dataclasses
import math

from matrix_adagrad.report.document import Axis, Document, Figure, Line, Panel, Section, Table

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
    made = Document("A report", "What came out.", (("version", "1.0"),), quick, claims, leading, sections)
    return dataclasses.replace(made, **changes)
