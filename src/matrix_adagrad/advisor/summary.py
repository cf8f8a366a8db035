r"""A parameter's squared gradients, summarized in a few numbers.

With :math:`V_{ij} = \sum_t G_{t,ij}^2`, and :math:`V_b` its sum over a block b of a geometry,
:math:`S = \sum_b \sqrt{V_b}` is the gradients' factor of the paper's bound :math:`\sqrt 2\, D\, S`.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from matrix_adagrad.advisor.squared_gradients import SquaredGradients, row_and_column_sums
from matrix_adagrad.geometry import Column, Partition, Row
from matrix_adagrad.optim.step.update import is_sharded, local

__all__ = ["GEOMETRIES", "HEADINGS", "ParameterSummary", "Spread", "summarize"]

GEOMETRIES = ("row", "column", "entry", "whole")
HEADINGS = ("rows used", "columns used", "entries used", "agree in a row", "in a column", "in all")
EXPLODING = 100.0  # growth of a row's mean squared gradient from early to late in the run


@dataclass(frozen=True)
class Spread:
    """How squared gradients are spread over the rows, or the columns, of a parameter.

    ``history[w][b]`` is the mean squared gradient per step in window ``w`` of the run and bin ``b``, which are
    neighbouring rows (columns). For a sharded parameter the history is that of the local shard; everything else is of
    the whole parameter.
    """

    participation: float
    inactive: float
    drift: float
    history: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class ParameterSummary:
    r"""What the probe measured of one parameter. Dictionaries are keyed by the geometry's name.

    Args:
        name: the parameter's name in the model.
        shape: the shape of the whole parameter, sharded or not.
        steps: the number of steps taken.
        observed: the number of steps that the probe observed.
        rows: participation, the effective share of rows, :math:`(\sum_i V_i)^2 / (m \sum_i V_i^2)`: 1 if all rows have
            the same squared gradients, 1/m if one row has all of them; inactive, the mean share of rows without a
            gradient at a step (a row that is split over several ranks counts once on each); drift, 0 if squared
            gradients are spread late in the run as they were early, 1 if they fall on different rows: 1 minus the
            overlap :math:`\sum_i \sqrt{p_i q_i}` of the two distributions.
        columns: the same for columns.
        entry_participation: the participation of entries, estimated from a sample.
        agreement: how similar scales inside a block are, :math:`\sum_{ij} \sqrt{V_{ij}} / \sum_b \sqrt{n_b V_b}`, for
            blocks of :math:`n_b` entries: 1 if one scale is as good as one per entry; estimated from the sample.
        gradient_norm: :math:`S = \sum_b \sqrt{V_b}` over all steps.
        weight_norm: :math:`\max_b \|X_b\|_2` at the end, as an estimate of the distance D.
        update_ratio: the norm of an update over the norm of the weights, in rows with a gradient: root mean squares
            over the observed steps, from the sample.
        dead: the number of rows without a gradient at any observed step.
        exploding: the number of rows whose mean squared gradient grew more than 100-fold from early to late in the run.
        nonfinite: the number of observed steps whose gradient, or its sum of squares, was infinite or NaN. They do not
            enter any other number (for a sharded parameter, on the ranks where this happened).

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from matrix_adagrad.advisor import Probe
        >>> table = nn.Embedding.from_pretrained(torch.ones(4, 9), freeze=False)
        >>> optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
        >>> with Probe(table, optimizer, every=1) as probe:
        ...     table(torch.tensor([2])).sum().backward()
        ...     optimizer.step()
        >>> weight = probe.report()["weight"]
        >>> weight.rows.participation, weight.agreement["row"], weight.bound["row"]
        (0.25, 1.0, 9.0)
    """

    name: str
    shape: tuple[int, ...]
    steps: int
    observed: int
    rows: Spread
    columns: Spread
    entry_participation: float
    agreement: dict[str, float]
    gradient_norm: dict[str, float]
    weight_norm: dict[str, float]
    update_ratio: float
    dead: int
    exploding: int
    nonfinite: int

    @property
    def bound(self) -> dict[str, float]:
        """The product of both factors of the paper's bound, for each geometry: the smaller, the lower the bound."""
        return {name: self.gradient_norm[name] * self.weight_norm[name] for name in GEOMETRIES}

    @property
    def table_row(self) -> tuple[str, ...]:
        """Participation and agreement as text, one for each of HEADINGS."""
        shares = (self.rows.participation, self.columns.participation, self.entry_participation)
        return (*(f"{x:.0%}" for x in shares), *(f"{self.agreement[name]:.2f}" for name in ("row", "column", "whole")))

    @property
    def is_matrix(self) -> bool:
        """Whether it has several rows and several columns."""
        return len(self.shape) > 1 and min(self.shape[0], math.prod(self.shape[1:])) > 1

    def scalars(self) -> dict[str, float]:
        """The numbers to plot over the run, by name."""
        found = {
            "participation/rows": self.rows.participation,
            "participation/columns": self.columns.participation,
            "participation/entries": self.entry_participation,
            "inactive/rows": self.rows.inactive,
            "inactive/columns": self.columns.inactive,
            "drift/rows": self.rows.drift,
            "drift/columns": self.columns.drift,
            "update_ratio": self.update_ratio,
            "dead": float(self.dead),
            "exploding": float(self.exploding),
            "nonfinite": float(self.nonfinite),
        }
        found |= {f"agreement/{name}": value for name, value in self.agreement.items()}
        return found | {f"bound/{name}": value for name, value in self.bound.items()}

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "bound": self.bound}


def summarize(name: str, param: Tensor, squared: SquaredGradients, steps: int) -> ParameterSummary:
    """Summarize a parameter. If it is sharded, all ranks must call this together, since it adds up their sums."""
    shard = local(param.detach())
    early_finite, *early_sums = squared.snapshots[0]
    total, early = _Sums.of(param, squared.rows, squared.columns), _Sums.of(param, *early_sums)
    weights = _Sums.of(param, *row_and_column_sums(shard))
    roots, fourth_powers = (_whole(x, param, Row()) for x in (squared.row_root_sums(), squared.row_square_sums()))
    finite, first = (int(_over(param, "min", x)) for x in (squared.finite, early_finite))
    to_all = math.sqrt(steps / max(1, finite))  # from the observed steps to all steps
    gradient_norm = {
        "row": to_all * float(total.rows.sqrt().sum()),
        "column": to_all * float(total.columns.sqrt().sum()),
        "entry": to_all * float(roots.sum()),
        "whole": to_all * float(total.rows.sum().sqrt()),
    }
    counts = {"row": len(total.rows), "column": len(total.columns), "entry": param.numel(), "whole": 1}
    members = {key: param.numel() / max(1, count) for key, count in counts.items()}
    largest = torch.linalg.vector_norm(shard, math.inf) if shard.numel() else 0.0
    before, after = early.rows / max(1, first), (total.rows - early.rows) / max(1, finite - first)
    update_size, weight_size = _over(param, "sum", squared.updates), _over(param, "sum", squared.weights)
    rows = Spread(
        _participation(total.rows, total.rows.square()),
        _share(param, squared.inactive_rows, squared.m * squared.finite * bool(squared.n)),
        _drift(early.rows, total.rows),
        _history(squared, "rows"),
    )
    columns = Spread(
        _participation(total.columns, total.columns.square()),
        _share(param, squared.inactive_columns, squared.n * squared.finite * bool(squared.m)),
        _drift(early.columns, total.columns),
        _history(squared, "columns"),
    )
    return ParameterSummary(
        name,
        tuple(param.shape),
        steps,
        squared.observations,
        rows=rows,
        columns=rows if param.dim() < 2 else columns,
        entry_participation=_participation(total.rows, fourth_powers, param.numel()),
        agreement={
            key: min(1.0, gradient_norm["entry"] / (math.sqrt(members[key]) * norm)) if norm else 1.0
            for key, norm in gradient_norm.items()
        },
        gradient_norm=gradient_norm,
        weight_norm={
            "row": _root_of_largest(weights.rows),
            "column": _root_of_largest(weights.columns),
            "entry": _over(param, "max", largest),
            "whole": float(weights.rows.sum().sqrt()),
        },
        update_ratio=math.sqrt(update_size / weight_size) if weight_size else 0.0,
        dead=int((total.rows == 0).sum()) if finite else 0,
        exploding=int(((before > 0) & (after > EXPLODING * before)).sum()),
        nonfinite=squared.observations - finite,
    )


class _Sums(NamedTuple):
    """Sums over the rows and over the columns of a whole parameter. A vector has one for each of its entries."""

    rows: Tensor
    columns: Tensor

    @classmethod
    def of(cls, param: Tensor, rows: Tensor, columns: Tensor) -> _Sums:
        whole = _whole(rows, param, Row())
        return cls(whole, whole if param.dim() < 2 else _whole(columns, param, Column()))


def _whole(sums: Tensor, param: Any, geometry: Partition) -> Tensor:
    """A statistic of the whole parameter, from what each rank has summed over its own shard, as a vector."""
    if is_sharded(param):
        from matrix_adagrad.optim.sharding import whole_statistic

        sums = whole_statistic(sums.view(geometry.statistic_shape(local(param).shape)), param, geometry)
    return sums.flatten().cpu().double()


def _over(param: Any, how: str, value: Tensor | float) -> float:
    """The sum, the largest, or the smallest of a number over the ranks that a parameter is divided over."""
    if not is_sharded(param):
        return float(value)
    from matrix_adagrad.optim.sharding import sum_over_shards

    return sum_over_shards(float(value), param, how)


def _share(param: Tensor, part: Tensor, everything: Tensor) -> float:
    return _over(param, "sum", part) / max(1.0, _over(param, "sum", everything))


def _participation(values: Tensor, squares: Tensor, count: int | None = None) -> float:
    """The effective share of ``count`` numbers, from their sums and the sums of their squares."""
    of_squares = (count or len(values)) * float(squares.sum())
    return min(1.0, float(values.sum()) ** 2 / of_squares) if of_squares > 0 else 0.0


def _root_of_largest(squares: Tensor) -> float:
    return float(squares.amax().sqrt()) if len(squares) else 0.0


def _drift(early: Tensor, everything: Tensor) -> float:
    """1 minus the overlap of the early and the late distribution; 0 while there is nothing to compare."""
    late = (everything - early).clamp(min=0)
    scale = float(early.sum()) * float(late.sum())
    return max(0.0, 1 - float((early * late).sqrt().sum()) / math.sqrt(scale)) if scale > 0 else 0.0


def _history(squared: SquaredGradients, which: str) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple((getattr(window, which) / window.finite.clamp(min=1)).tolist()) for window in squared.history)
