"""The bytes that a step must move, by formula, next to those that the kernels load and store.

    python -m benchmarks.gpu.movement [--write]

The second are counted in Triton's interpreter, access by access. No GPU is needed. ``--write`` puts the table into
docs/gpu.md.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from benchmarks.gpu.emulate import choose_interpreter, interpreted
from benchmarks.gpu.launches import recorded
from benchmarks.gpu.options import FAMILIES, GEOMETRIES, is_possible, make, parameter
from benchmarks.markdown import DOCS, markdown_table, update_page
from matrix_adagrad import SteepestDescent
from matrix_adagrad.cli.command import run_command, say
from matrix_adagrad.optim.step.triton_tensors import LONGEST

__all__ = ["PAIRS", "again", "counted", "least", "main", "table"]

Bytes = Counter[str]  # by what is done, and to which array: "read g", "write x"
OTHERS = ("read others", "write others")  # the table of tensors, partial sums, and factors

SHAPE, LONG = (64, 1024), (2, 2 * LONGEST)
_FAMILIES = ("AdaGrad", "Momentum", "Momentum, Nesterov", "Steepest", "Steepest, Nesterov")
PAIRS: list[dict[str, Any]] = [
    {"geometry": geometry, "family": family, "shape": shape}
    for geometry, shape in [*((name, SHAPE) for name in GEOMETRIES), ("row", LONG)]
    for family in _FAMILIES
    if is_possible({"geometry": geometry, "family": family})
]


def _sizes(chosen: Mapping[str, Any]) -> dict[str, int]:
    """Bytes of each array of a step; 0 if there is none."""
    cls, options = FAMILIES[chosen["family"]]
    x = chosen.get("dtype", torch.float32)
    g = chosen.get("grad_dtype", x)
    entries = math.prod(chosen["shape"])
    has_average = options.get("momentum", options.get("betas", (1.0,))[0]) != 0 and chosen["family"] != "AdaGrad"
    average = (chosen.get("momentum_dtype") or torch.float32).itemsize if has_average else 0
    is_steepest = cls is SteepestDescent
    shapes = () if is_steepest else GEOMETRIES[chosen["geometry"]].statistic_shapes(chosen["shape"])
    statistics = 4 * sum(map(math.prod, shapes))
    return {"x": entries * x.itemsize, "g": entries * g.itemsize, "average": entries * average, "V": statistics}


def least(chosen: Mapping[str, Any]) -> Bytes:
    """What a step must move: it reads the gradient, and reads and writes the parameter and its state, each once."""
    sizes = _sizes(chosen)
    moved = {"read g": sizes["g"]}
    moved |= {f"{what} {array}": sizes[array] for array in ("x", "average", "V") for what in ("read", "write")}
    return +Counter(moved)


def again(chosen: Mapping[str, Any]) -> Bytes:
    """What the kernels read and write beyond that, because a scale needs sums over more than one tile.

    A second pass then reads again what x moves along: the average, the gradient, or, for Nesterov's sum, both.
    """
    geometry, family, sizes = chosen["geometry"], chosen["family"], _sizes(chosen)
    if geometry == "entry" or (geometry == "row" and chosen["shape"][1] <= LONGEST):
        return Counter()
    if geometry == "spectral":  # what torch makes a direction of is written, and the direction is read, in float32
        direction = 4 * math.prod(chosen["shape"])
        return Counter({"write others": direction, "read others": direction})
    moved = Counter({"read average": sizes["average"]})
    if not sizes["average"] or "Nesterov" in family:
        moved["read g"] = sizes["g"]
    return +moved


# ------------------------------------------------------------------------------------------------------------ counting


def counted(chosen: Mapping[str, Any]) -> Bytes:
    """What the kernels of a step load and store, by array. Triton's interpreter must be on."""
    param = parameter(chosen)
    with interpreted():
        optimizer = make(chosen, [param], fused=True)
        with recorded():
            optimizer.step()  # makes the state
        assert param.grad is not None
        arrays = {"x": [param.detach()], "g": [param.grad], "average": [], "V": []}
        for name, value in optimizer.state[param].items():
            if name != "step":
                arrays["average" if name in ("exp_avg", "momentum_buffer") else "V"].append(value)
        with _counting(arrays) as found:
            optimizer.step()
    return found


class _counting:  # noqa: N801
    """Count the bytes of the interpreter's accesses."""

    def __init__(self, arrays: Mapping[str, Sequence[Tensor]]) -> None:
        self._spans = [
            (own.data_ptr(), own.data_ptr() + own.untyped_storage().nbytes(), name)
            for name, tensors in arrays.items()
            for own in tensors
        ]
        self._found: Bytes = Counter()

    def __enter__(self) -> Bytes:
        from triton.runtime.interpreter import InterpreterBuilder

        self._patches = [
            mock.patch.object(InterpreterBuilder, name, self._counted(getattr(InterpreterBuilder, name), what, place))
            for name, what, place in (("create_masked_load", "read", 1), ("create_masked_store", "write", 2))
        ]
        for patch in self._patches:
            patch.start()
        return self._found

    def __exit__(self, *_: object) -> None:
        for patch in self._patches:
            patch.stop()

    def _counted(self, original: Callable[..., Any], what: str, mask_place: int) -> Callable[..., Any]:
        def access(builder: Any, pointers: Any, *rest: Any) -> Any:
            mask = rest[mask_place - 1].data
            places, size = pointers.data[mask], pointers.get_element_ty().primitive_bitwidth // 8
            for start, end, name in self._spans:
                is_here = (places >= start) & (places < end)
                self._found[f"{what} {name}"] += int(is_here.sum()) * size
                places = places[~is_here]
            self._found[f"{what} others"] += places.size * size
            return original(builder, pointers, *rest)

        return access


# --------------------------------------------------------------------------------------------------------------- output


def table() -> str:
    """Bytes per entry of a float32 matrix, for each pair of geometry and family."""

    def cells() -> Iterator[list[str]]:
        for chosen in PAIRS:
            entries = math.prod(chosen["shape"])
            must, extra, found = least(chosen), again(chosen), counted(chosen)
            direction = sum(extra.pop(name, 0) for name in OTHERS)
            others = sum(found.pop(name, 0) for name in OTHERS) - direction
            shape = "×".join(map(str, chosen["shape"]))
            numbers = (must.total(), found.total() + direction, others)
            why = ", ".join(name.removeprefix("read ") for name in extra) or "–"
            if chosen["geometry"] == "spectral":
                why = "the direction, which torch makes"
            yield [
                f"{chosen['geometry']}, {shape}",
                chosen["family"],
                *(f"{number / entries:.2f}" for number in numbers),
                why,
            ]

    head = ["geometry", "family", "a step must move", "the kernels move", "tables and partial sums", "moved again"]
    return markdown_table(head, cells())


def main(arguments: Sequence[str] | None = None) -> int:
    """Count, show the table, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.movement",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="exit code: 0 if it ran, 1 if it could not, 2 if the arguments are wrong",
    )
    parser.add_argument("--write", action="store_true", help="put the table into docs/gpu.md")
    parser.set_defaults(run=run, command="benchmarks.gpu.movement")
    return run_command(parser, arguments)


def run(options: argparse.Namespace) -> int:
    """Count for every pair."""
    if reason := choose_interpreter():
        say(options, reason)
        return 1
    made = table()
    print(made)
    if options.write:
        update_page(DOCS / "gpu.md", {"bytes": lambda: made})
    return 0


if __name__ == "__main__":
    sys.exit(main())
