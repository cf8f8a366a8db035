"""Geometries as text, in keyword arguments and in files."""

from __future__ import annotations

import ast
from typing import Any

import torch

from matrix_adagrad.geometry.base import Geometry
from matrix_adagrad.geometry.factored import Factored
from matrix_adagrad.geometry.full import Full
from matrix_adagrad.geometry.partitions import Batched, Blocks, Column, Entry, Partition, Row, Whole
from matrix_adagrad.geometry.spectral import Spectral

__all__ = ["as_geometry", "as_partition"]

_NAMED: dict[str, Geometry] = {
    str(g): g for g in (Row(), Column(), Entry(), Whole(), *map(Batched, (Row(), Column(), Whole())))
}
_NAMED |= {"factored": Factored(), "full": Full(), "spectral": Spectral()}
_CLASSES: dict[str, Any] = {
    cls.__name__.lower(): cls for cls in (Row, Column, Entry, Whole, Blocks, Batched, Factored, Full, Spectral)
}


def as_geometry(geometry: Geometry | str) -> Geometry:
    """Turn a name into a geometry: ``"row"``, ``"column"``, ``"entry"``, ``"whole"``, ``"factored"``, ``"spectral"``.

    The text that a geometry of this package prints as works too. A geometry is returned unchanged.

    >>> as_geometry("row"), as_geometry("batched(column)"), as_geometry("Blocks(rows=3)")
    (Row(), Batched(Column()), Blocks(rows=3))
    >>> as_geometry(str(Factored("minimum")))
    Factored(combine='minimum')
    """
    if isinstance(geometry, Geometry):
        return geometry
    allowed = f"one of {', '.join(map(repr, _NAMED))}, or a Geometry such as Blocks(rows=3)"
    if isinstance(geometry, type) and issubclass(geometry, Geometry):
        examples = {Blocks: "Blocks(rows=3)", Batched: "Batched(Row())"}
        example = examples.get(geometry, f"{geometry.__name__}()")
        raise TypeError(f"geometry must be a value: write {example} instead of {geometry.__name__}")
    if not isinstance(geometry, str):
        raise TypeError(f"geometry must be {allowed}, got {geometry!r}")
    if geometry in _NAMED:
        return _NAMED[geometry]
    if geometry.partition("(")[0].lower() not in _CLASSES or "(" not in geometry:
        raise ValueError(f"geometry must be {allowed}, got {geometry!r}")
    try:
        parsed = ast.parse(geometry, mode="eval").body
        return _called(parsed)
    except (AssertionError, KeyError, SyntaxError):
        raise ValueError(f"{geometry!r} is not a geometry: write Blocks(rows=3), for example") from None


def _called(node: ast.expr) -> Geometry:
    """The geometry that ``Blocks(rows=3)`` or ``blocks(rows=3, columns=1)`` stands for."""
    assert isinstance(node, ast.Call)
    assert isinstance(node.func, ast.Name)
    keywords = {str(keyword.arg): _argument(keyword.value) for keyword in node.keywords}
    made: Geometry = _CLASSES[node.func.id.lower()](*map(_argument, node.args), **keywords)
    return made


def _argument(node: ast.expr) -> Any:
    """A number, a word, a geometry, or a dtype such as ``torch.bfloat16``."""
    if isinstance(node, ast.Call):
        return _called(node)
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        dtype = getattr(torch, node.attr, None)
        assert isinstance(dtype, torch.dtype)
        return dtype
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise SyntaxError from None


def as_partition(geometry: Geometry | str) -> Partition:
    """`as_geometry`, but only partitions are allowed."""
    partition = as_geometry(geometry)
    if not isinstance(partition, Partition):
        raise TypeError(f"{partition!r} does not partition a tensor into blocks, such as Row() does")
    return partition
