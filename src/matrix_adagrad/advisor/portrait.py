r"""What the energy of a parameter's gradients says about it: a few numbers that can be read, compared and written down.

With :math:`V_{ij}` the energy of an entry, and :math:`V_b` that of a block b of a geometry,
:math:`S = \sum_b \sqrt{V_b}` is the gradients' factor of the paper's bound :math:`\sqrt 2\, D\, S`.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from matrix_adagrad.advisor.energy import Energy, row_and_column_sums
from matrix_adagrad.geometry import Column, Geometry, Row
from matrix_adagrad.optim.state import here, is_sharded, shards

__all__ = ["FIGURES", "GEOMETRIES", "Portrait", "Spread", "portrait"]

GEOMETRIES = ("row", "column", "entry", "whole")
FIGURES = ("rows used", "columns used", "entries used", "agree in a row", "in a column", "in all")
EXPLODING = 100.0  # times the energy a step that the row had before


@dataclass(frozen=True)
class Spread:
    """How energy is spread over rows, or over columns, and how that changed.

    ``history[w][b]`` is the energy a step in the window ``w`` of the run, of the bin ``b``: rows (columns) that are
    neighbours. If the parameter is sharded, of what lies on this machine; all else is of the whole parameter.
    """

    participation: float
    silent: float
    drift: float
    history: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Portrait:
    r"""One parameter, as its gradients show it. Mappings are by the geometry's name.

    Args:
        name: of the parameter in the model.
        shape: of the whole parameter, also if it is sharded.
        steps: how many steps there were, and
        observed: at how many of them the probe looked.
        rows: participation, the share of rows among which energy is effectively spread, :math:`(\sum_i V_i)^2 /
            (m \sum_i V_i^2)`: 1 if all have the same, 1/m if one has everything; silent, the share of rows without any
            gradient at a step, on average (a row that lies on several machines is one on each); drift, 0 if the late
            part of the run spreads its energy as the early part did, 1 if over other rows: 1 minus the overlap
            :math:`\sum_i \sqrt{p_i q_i}` of both.
        columns: the same for columns.
        entries: participation of entries, estimated from a sample of them.
        agreement: how alike the scales inside a block are, :math:`\sum_{ij} \sqrt{V_{ij}} / \sum_b \sqrt{n_b V_b}`, for
            blocks of :math:`n_b` entries: 1 if one scale is as good as one for each entry; estimated from the sample.
        gradients: :math:`S = \sum_b \sqrt{V_b}` over all steps.
        reach: :math:`\max_b \|X_b\|_2` at the end, which stands for the distance D that is to be covered.
        update: the size of an update over the size of the weights, in rows that have a gradient: root mean squares over
            the observed steps, from the sample.
        dead: rows that had no gradient at any observed step.
        exploding: rows whose energy a step was late in the run over 100 times what it was early.
        broken: observed steps whose gradient, or the sum of its squares, was infinite or not a number. They count
            nowhere else (of a sharded parameter: what lies on the machines where it was so).

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from matrix_adagrad.advisor import Probe
        >>> table = nn.Embedding.from_pretrained(torch.ones(4, 9), freeze=False)
        >>> optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
        >>> with Probe(table, optimizer, every=1) as probe:
        ...     table(torch.tensor([2])).sum().backward()
        ...     optimizer.step()
        >>> one = probe.report()["weight"]
        >>> one.rows.participation, one.agreement["row"], one.bound["row"]
        (0.25, 1.0, 9.0)
    """

    name: str
    shape: tuple[int, ...]
    steps: int
    observed: int
    rows: Spread
    columns: Spread
    entries: float
    agreement: dict[str, float]
    gradients: dict[str, float]
    reach: dict[str, float]
    update: float
    dead: int
    exploding: int
    broken: int

    @property
    def bound(self) -> dict[str, float]:
        """The two factors of the paper's bound multiplied, for each geometry: a smaller one promises less regret."""
        return {name: self.gradients[name] * self.reach[name] for name in GEOMETRIES}

    @property
    def figures(self) -> tuple[str, ...]:
        """Where energy is and how alike scales are, as they are read, one for each of FIGURES."""
        shares = (self.rows.participation, self.columns.participation, self.entries)
        return (*(f"{x:.0%}" for x in shares), *(f"{self.agreement[name]:.2f}" for name in ("row", "column", "whole")))

    @property
    def is_matrix(self) -> bool:
        """Whether it has rows and columns; for a vector they are its entries."""
        return len(self.shape) > 1 and min(self.shape[0], math.prod(self.shape[1:])) > 1

    def scalars(self) -> dict[str, float]:
        """The numbers that a curve can be drawn of, by name."""
        found = {
            "participation/rows": self.rows.participation,
            "participation/columns": self.columns.participation,
            "participation/entries": self.entries,
            "silent/rows": self.rows.silent,
            "silent/columns": self.columns.silent,
            "drift/rows": self.rows.drift,
            "drift/columns": self.columns.drift,
            "update": self.update,
            "dead": float(self.dead),
            "exploding": float(self.exploding),
            "broken": float(self.broken),
        }
        found |= {f"agreement/{name}": value for name, value in self.agreement.items()}
        return found | {f"bound/{name}": value for name, value in self.bound.items()}

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "bound": self.bound}


def portrait(name: str, param: Tensor, energy: Energy, steps: int) -> Portrait:
    """The portrait of a parameter. If it is sharded, all machines must call this together, and add up what they saw."""
    local = here(param.detach())
    early_finite, *early_sums = energy.marks[0]
    both, early = _Sums.of(param, energy.rows, energy.columns), _Sums.of(param, *early_sums)
    lengths = _Sums.of(param, *row_and_column_sums(local))
    roots, squares = (_whole(x, param, Row()) for x in (energy.roots(), energy.squares()))
    finite, first = (int(_over(param, "min", x)) for x in (energy.finite, early_finite))
    total, to_all = both.rows.sum(), math.sqrt(steps / max(1, finite))
    gradients = {
        "row": to_all * float(both.rows.sqrt().sum()),
        "column": to_all * float(both.columns.sqrt().sum()),
        "entry": to_all * float(roots.sum()),
        "whole": to_all * float(total.sqrt()),
    }
    counts = {"row": len(both.rows), "column": len(both.columns), "entry": param.numel(), "whole": 1}
    members = {key: param.numel() / max(1, count) for key, count in counts.items()}
    largest = torch.linalg.vector_norm(local, math.inf) if local.numel() else 0.0
    before, after = early.rows / max(1, first), (both.rows - early.rows) / max(1, finite - first)
    updates, weights = _over(param, "sum", energy.updates), _over(param, "sum", energy.weights)
    rows = Spread(
        _participation(both.rows, both.rows.square()),
        _share(param, energy.silent_rows, energy.m * energy.finite * bool(energy.n)),
        _drift(early.rows, both.rows),
        _history(energy, "rows"),
    )
    columns = Spread(
        _participation(both.columns, both.columns.square()),
        _share(param, energy.silent_columns, energy.n * energy.finite * bool(energy.m)),
        _drift(early.columns, both.columns),
        _history(energy, "columns"),
    )
    return Portrait(
        name,
        tuple(param.shape),
        steps,
        energy.observations,
        rows=rows,
        columns=rows if param.dim() < 2 else columns,
        entries=_participation(both.rows, squares, param.numel()),
        agreement={
            key: min(1.0, gradients["entry"] / (math.sqrt(members[key]) * gradients[key])) if gradients[key] else 1.0
            for key in GEOMETRIES
        },
        gradients=gradients,
        reach={
            "row": _root_of_largest(lengths.rows),
            "column": _root_of_largest(lengths.columns),
            "entry": _over(param, "max", largest),
            "whole": float(lengths.rows.sum().sqrt()),
        },
        update=math.sqrt(updates / weights) if weights else 0.0,
        dead=int((both.rows == 0).sum()) if finite else 0,
        exploding=int(((before > 0) & (after > EXPLODING * before)).sum()),
        broken=energy.observations - finite,
    )


class _Sums(NamedTuple):
    """Sums over the rows and over the columns of a whole parameter. A vector has one for each of its entries."""

    rows: Tensor
    columns: Tensor

    @classmethod
    def of(cls, param: Tensor, rows: Tensor, columns: Tensor) -> _Sums:
        whole = _whole(rows, param, Row())
        return cls(whole, whole if param.dim() < 2 else _whole(columns, param, Column()))


def _whole(local: Tensor, param: Tensor, geometry: Geometry) -> Tensor:
    """A statistic of the whole parameter, from what each machine has summed over its own part, as a vector."""
    if is_sharded(param):
        local = shards().added_up(local.view(geometry.statistic_shape(here(param).shape)), param, geometry)
    return local.flatten().cpu().double()


def _over(param: Tensor, how: str, value: Tensor | float) -> float:
    """The sum, the largest, or the smallest of a number over the machines that a parameter is divided over."""
    return shards().total(float(value), param, how) if is_sharded(param) else float(value)


def _share(param: Tensor, part: Tensor, everything: Tensor) -> float:
    return _over(param, "sum", part) / max(1.0, _over(param, "sum", everything))


def _participation(energies: Tensor, squares: Tensor, count: int | None = None) -> float:
    """The effective share of ``count`` numbers, from their sums and from the sums of their squares."""
    of_squares = (count or len(energies)) * float(squares.sum())
    return min(1.0, float(energies.sum()) ** 2 / of_squares) if of_squares > 0 else 0.0


def _root_of_largest(lengths: Tensor) -> float:
    return float(lengths.amax().sqrt()) if len(lengths) else 0.0


def _drift(early: Tensor, everything: Tensor) -> float:
    """1 minus the overlap of two distributions of energy; 0 while there is nothing to compare."""
    late = (everything - early).clamp(min=0)
    scale = float(early.sum()) * float(late.sum())
    return max(0.0, 1 - float((early * late).sqrt().sum()) / math.sqrt(scale)) if scale > 0 else 0.0


def _history(energy: Energy, which: str) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple((getattr(one, which) / one.finite.clamp(min=1)).tolist()) for one in energy.history)
