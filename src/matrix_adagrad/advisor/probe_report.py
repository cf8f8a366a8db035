"""Summaries of all parameters, for a terminal, JSON and TensorBoard."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from matrix_adagrad.advisor.summary import HEADINGS, ParameterSummary
from matrix_adagrad.text import columns, json_text, shape_text

__all__ = ["ProbeReport", "ScalarWriter"]


class ScalarWriter(Protocol):
    """TensorBoard's ``SummaryWriter``, or anything with its ``add_scalar``."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> None:
        """Write one number."""


@dataclass(frozen=True)
class ProbeReport:
    """A summary of every parameter, by name.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from matrix_adagrad.advisor import Probe
        >>> model = nn.Linear(3, 2, bias=False)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        >>> with Probe(model, optimizer, every=1) as probe:
        ...     model(torch.tensor([[1.0, 0.0, 0.0]])).sum().backward()
        ...     optimizer.step()
        >>> report = probe.report()
        >>> print(report)
        parameter  shape  rows used  columns used  entries used  agree in a row  in a column  in all   update
        weight     2×3         100%           33%           33%            0.58         1.00    0.58  0.0e+00
        1 of 1 steps observed
        >>> report["weight"].gradient_norm["row"], report["weight"].columns.inactive
        (2.0, 0.6666666666666666)
    """

    parameters: tuple[ParameterSummary, ...]

    def __getitem__(self, name: str) -> ParameterSummary:
        for parameter in self.parameters:
            if parameter.name == name:
                return parameter
        names = ", ".join(parameter.name for parameter in self.parameters)
        raise KeyError(f"no parameter {name!r}: there are {names}")

    def __iter__(self) -> Iterator[ParameterSummary]:
        return iter(self.parameters)

    def __str__(self) -> str:
        return self.table()

    def table(self) -> str:
        """The numbers as a table, for a terminal."""
        rows = [
            (
                parameter.name,
                shape_text(parameter.shape),
                *parameter.table_row,
                f"{parameter.update_ratio:.1e}",
                _warnings(parameter),
            )
            for parameter in self.parameters
        ]
        table = columns(("parameter", "shape", *HEADINGS, "update", ""), rows, left=(0, 1, 9))
        return f"{table}\n{self.coverage}"

    @property
    def coverage(self) -> str:
        """How many steps were observed, in words."""
        most = max(self.parameters, key=lambda parameter: parameter.observed, default=None)
        return f"{most.observed:,} of {most.steps:,} steps observed" if most else "nothing observed"

    def scalars(self) -> dict[str, float]:
        """The numbers to plot over the run, as ``"participation/rows/name of the parameter"``."""
        return {
            f"{key}/{parameter.name}": value
            for parameter in self.parameters
            for key, value in parameter.scalars().items()
        }

    def to_dict(self) -> dict[str, Any]:
        """All numbers, for JSON."""
        return {parameter.name: parameter.to_dict() for parameter in self.parameters}

    def to_json(self) -> str:
        """All numbers as JSON, with null for infinite ones and NaN."""
        return json_text(self.to_dict())

    def write(self, writer: ScalarWriter, step: int | None = None) -> None:
        """Write the numbers as scalars: ``report.write(SummaryWriter(), step)``."""
        for key, value in self.scalars().items():
            writer.add_scalar(key, value, step)


def _warnings(parameter: ParameterSummary) -> str:
    """What to watch out for."""
    if not parameter.observed:
        return "no gradient observed"
    counts = {
        "dead rows": parameter.dead,
        "exploding rows": parameter.exploding,
        "steps with infinite or NaN gradients": parameter.nonfinite,
    }
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count)
