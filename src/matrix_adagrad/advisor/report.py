"""Portraits of all parameters together, for a terminal, for JSON and for TensorBoard."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from matrix_adagrad.advisor.portrait import FIGURES, Portrait
from matrix_adagrad.text import columns, json_text, shape_text

__all__ = ["Report", "ScalarWriter"]


class ScalarWriter(Protocol):
    """TensorBoard's ``SummaryWriter``, and what behaves like it."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> None:
        """Write one number."""


@dataclass(frozen=True)
class Report:
    """A portrait of every parameter, by its name.

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
        1 of 1 steps looked at
        >>> report["weight"].gradients["row"], report["weight"].columns.silent
        (2.0, 0.6666666666666666)
    """

    portraits: tuple[Portrait, ...]

    def __getitem__(self, name: str) -> Portrait:
        for one in self.portraits:
            if one.name == name:
                return one
        raise KeyError(f"no parameter {name!r}: there are {', '.join(one.name for one in self.portraits)}")

    def __iter__(self) -> Iterator[Portrait]:
        return iter(self.portraits)

    def __str__(self) -> str:
        return self.table()

    def table(self) -> str:
        """The numbers side by side, for a terminal."""
        rows = [
            (one.name, shape_text(one.shape), *one.figures, f"{one.update:.1e}", _oddities(one))
            for one in self.portraits
        ]
        table = columns(("parameter", "shape", *FIGURES, "update", ""), rows, left=(0, 1, 9))
        return f"{table}\n{self.looks}"

    @property
    def looks(self) -> str:
        """How much the probe has seen, in words."""
        most = max(self.portraits, key=lambda one: one.observed, default=None)
        return f"{most.observed:,} of {most.steps:,} steps looked at" if most else "nothing looked at"

    def scalars(self) -> dict[str, float]:
        """The numbers that curves can be drawn of, as ``"participation/rows/name of the parameter"``."""
        return {f"{key}/{one.name}": value for one in self.portraits for key, value in one.scalars().items()}

    def to_dict(self) -> dict[str, Any]:
        """For JSON, with every number."""
        return {one.name: one.to_dict() for one in self.portraits}

    def to_json(self) -> str:
        """The text of a JSON file, with every number; null for one that is infinite or not a number."""
        return json_text(self.to_dict())

    def write(self, writer: ScalarWriter, step: int | None = None) -> None:
        """Write the numbers as scalars: ``report.write(SummaryWriter(), step)`` for TensorBoard."""
        for key, value in self.scalars().items():
            writer.add_scalar(key, value, step)


def _oddities(one: Portrait) -> str:
    """What deserves a look."""
    if not one.observed:
        return "no gradient seen"
    found = [f"{one.dead} dead rows"] * bool(one.dead) + [f"{one.exploding} exploding"] * bool(one.exploding)
    return ", ".join(found + [f"{one.broken} broken steps"] * bool(one.broken))
