"""What the bandwidth of a GPU allows: the time of a step for the shapes of Llama 3 8B, on paper.

    python -m benchmarks.gpu.roofline [--write]

The bytes are those of the formulas in `benchmarks.gpu.movement`, and the bandwidths are the vendors'. Nothing is
measured, and no kernel reaches all of a vendor's bandwidth. ``--write`` puts the table into docs/gpu.md.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from benchmarks.gpu.movement import again, least
from benchmarks.markdown import DOCS, markdown_table, update_page
from benchmarks.whole_model.tables import llama

__all__ = ["DEVICES", "Device", "table"]


class Device(NamedTuple):
    """A GPU, the bytes per second of its memory, and where its vendor says so."""

    name: str
    bytes_a_second: float
    source: str


DEVICES = (
    Device("A100 80GB SXM", 2.039e12, "NVIDIA A100 Tensor Core GPU datasheet"),
    Device("H100 SXM", 3.35e12, "NVIDIA H100 Tensor Core GPU datasheet"),
    Device("MI300X", 5.3e12, "AMD Instinct MI300X accelerator data sheet"),
)
_TORCH = {"torch SGD, fused": 3, "torch Adam, fused": 7}  # passes over arrays in the parameter's dtype
_OURS = (
    ("row", "AdaGrad"),
    ("column", "AdaGrad"),
    ("entry", "AdaGrad"),
    ("factored", "AdaGrad"),
    ("row", "Momentum"),
    ("entry", "Momentum"),
    ("factored", "Momentum"),
    ("row", "Steepest"),
)


def _bytes(shapes: list[tuple[int, ...]], chosen: Mapping[str, Any]) -> tuple[int, int]:
    """What a step of all tensors must move, and what the kernels move. Vectors are stepped by entry."""
    must = moved = 0
    for shape in shapes:
        own = {**chosen, "shape": shape, "dtype": torch.bfloat16}
        if len(shape) == 1:
            own["geometry"] = "entry"
        must += least(own).total()
        moved += least(own).total() + again(own).total()
    return must, moved


def table() -> str:
    """Bytes of a step, and its least time on each GPU, with bfloat16 parameters and gradients."""
    shapes = [tuple(param.shape) for param in llama().parameters()]
    entries = sum(map(math.prod, shapes))

    def cells() -> Iterator[list[str]]:
        for name, passes in _TORCH.items():
            yield row(name, *[passes * entries * torch.bfloat16.itemsize] * 2)
        for geometry, family in _OURS:
            yield row(f"{family}, {geometry}", *_bytes(shapes, {"geometry": geometry, "family": family}))

    def row(name: str, must: int, moved: int) -> list[str]:
        milliseconds = (f"{1e3 * moved / device.bytes_a_second:.1f}" for device in DEVICES)
        return [name, f"{must / 1e9:.1f}", f"{moved / 1e9:.1f}", *milliseconds]

    head = ["", "GB that a step must move", "GB moved", *(f"{device.name}, ms" for device in DEVICES)]
    sources = "; ".join(f"{own.name}: {own.bytes_a_second / 1e12:g} TB/s, {own.source}" for own in DEVICES)
    parameters = f"{entries / 1e9:.2f} billion parameters. torch keeps Adam's state in bfloat16, and ours is in float32"
    return f"{markdown_table(head, cells())}\n\n{parameters}. Bandwidths: {sources}."


def main() -> None:
    """Show the table, and write it if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the table into docs/gpu.md")
    options = parser.parse_args()
    made = table()
    print(made)
    if options.write:
        update_page(DOCS / "gpu.md", {"roofline": lambda: made})


if __name__ == "__main__":
    main()
