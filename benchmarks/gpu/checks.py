"""Every kernel next to the reference, on a device: the same steps of the same tensors in torch's operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from benchmarks.gpu.launches import Launch, kernels, watched
from benchmarks.gpu.options import AXES, covering, make, parameter
from benchmarks.markdown import markdown_table
from matrix_adagrad.optim.step import triton as backend

__all__ = ["Check", "captured", "checks", "distance", "table", "unreached"]

# One unit in the last place of a narrow parameter, and what sums in another order differ by.
_TOLERANCE = {torch.float32: (3e-6, 1e-6), torch.bfloat16: (2**-7, 1e-6), torch.float16: (2**-9, 1e-6)}
_OF_DIRECTIONS = 2e-4  # a tenth of a step: products in bfloat16 amplify roundings
_OF_NARROW_AVERAGES = 1e-3  # what steps differ by along averages that are rounded to bfloat16 at random


@dataclass(frozen=True)
class Check:
    """How far steps in the kernels end from those of the reference."""

    chosen: dict[str, Any]
    distance: float  # in tolerances; up to 1 is equal
    kernels: tuple[str, ...]

    @property
    def is_equal(self) -> bool:
        """Whether they agree up to rounding."""
        return self.distance <= 1


def checks(device: str, axes: Mapping[str, Any] = AXES) -> Iterator[Check]:
    """Check combinations of options in which every pair occurs, and a step in a captured graph."""
    for chosen in covering(axes):
        yield _check(chosen, device, lambda step: step)
    options = {"shape": (48, 64), "family": "Momentum", "lr": "tensor", "capturable": True}
    for geometry in ("row", "column", "factored"):
        chosen = {**options, "geometry": geometry, "captured": "in a graph"}
        yield _check(chosen, device, captured)


def _check(chosen: dict[str, Any], device: str, repeated: Callable[[Callable[[], Any]], Callable[[], Any]]) -> Check:
    params, ran = [parameter(chosen, device, seed) for seed in range(2)], []
    others = [_copy(param) for param in params]

    def note(launch: Launch, launched: Callable[[], Any]) -> Any:
        ran.append(launch.name)
        return launched()

    is_narrow = params[0].itemsize < 4  # narrow entries may be rounded apart in every step
    with watched(note):
        optimizer = make(chosen, params, fused=True)
        optimizer.step()  # kernels are compiled, and the state is made
        step = repeated(optimizer.step)
        for _ in range(0 if is_narrow else 2):
            step()
    reference = make({**chosen, "stochastic_rounding": False}, others, **_REFERENCE[chosen["family"].split(",")[0]])
    for _ in range(1 if is_narrow else 3):
        reference.step()
    return Check(chosen, distance(optimizer, reference, chosen), tuple(dict.fromkeys(ran)))


_REFERENCE = {"AdaGrad": {"foreach": False}, "Momentum": {"foreach": False}, "Steepest": {"fused": False}}


def _copy(param: Parameter) -> Parameter:
    made = Parameter(torch.empty_strided(param.shape, param.stride(), dtype=param.dtype, device=param.device))
    made.grad_dtype = None
    made.data.copy_(param.data)
    made.grad = param.grad
    return made


def distance(optimizer: Optimizer, reference: Optimizer, chosen: Mapping[str, Any]) -> float:
    """The largest difference of two optimizers' parameters and state, in tolerances."""
    worst = 0.0
    for param, other in zip(_params(optimizer), _params(reference), strict=True):
        own, expected = optimizer.state[param], reference.state[other]
        pairs = [(param, other), *((own[name], expected[name]) for name in own if isinstance(own[name], Tensor))]
        statistics = [v.numel() for name, v in own.items() if "sum" in name or "_sq" in name]
        entries = param.numel() / max(1, min(statistics, default=param.numel()))
        for a, b in pairs:
            rtol, atol = _TOLERANCE[a.dtype]
            rtol = max(rtol, torch.finfo(torch.float32).eps * math.sqrt(entries))
            if chosen.get("stochastic_rounding") or a.dtype == chosen.get("momentum_dtype"):
                rtol *= 2  # up or down, and not to nearest
            if chosen["geometry"] == "spectral":
                atol = _OF_DIRECTIONS
            if chosen.get("momentum_dtype"):
                atol = _OF_NARROW_AVERAGES
            a, b = a.detach().double(), b.detach().double()
            apart = ((a - b).abs() / (atol + rtol * b.abs())).max().item()
            worst = max(worst, math.inf if math.isnan(apart) else apart)
    return worst


def _params(optimizer: Optimizer) -> list[Tensor]:
    return [param for group in optimizer.param_groups for param in group["params"]]


def captured(step: Callable[[], Any]) -> Callable[[], Any]:
    """A function that replays a step from a CUDA graph; on a CPU, one that steps as if it was being captured."""
    if not torch.cuda.is_available():
        return _as_if_captured(step)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def _as_if_captured(step: Callable[[], Any]) -> Callable[[], Any]:
    def stepped() -> None:
        with mock.patch.object(backend, "_is_capturing", return_value=True):
            step()

    return stepped


def unreached(done: list[Check]) -> set[str]:
    """The kernels that no check has run."""
    return set(kernels()) - {name for check in done for name in check.kernels}


def table(done: list[Check]) -> str:
    """A row for each kernel."""

    def cells() -> Iterator[list[str]]:
        for name in sorted(kernels()):
            own = [check for check in done if name in check.kernels]
            differ = [check for check in own if not check.is_equal]
            worst = max((check.distance for check in own), default=0.0)
            verdict = "not run" if not own else f"**{len(differ)} differ**" if differ else "equal"
            yield [f"`{name}`", str(len(own)), f"{worst:.2f}", verdict]

    return markdown_table(["kernel", "combinations", "largest difference, of the tolerance", ""], cells())
