"""Specialisations of the kernels: collected from launches that do not run, and compiled without a GPU."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.gpu.emulate import backend_takes_cpu_tensors
from benchmarks.gpu.launches import Launch, recorded
from benchmarks.gpu.options import AXES, covering, make, parameter
from matrix_adagrad.optim.step import triton as backend

__all__ = ["TARGETS", "Compiled", "Specialisation", "combinations", "compiled", "launched", "specialisations"]

# What torch calls the device, the architecture, and the threads of a warp.
TARGETS: dict[str, tuple[str, Any, int]] = {
    "sm_80": ("cuda", 80, 32),
    "sm_90": ("cuda", 90, 32),
    "sm_100": ("cuda", 100, 32),
    "gfx942": ("hip", "gfx942", 64),
}
# Where tiles hold whole blocks, the most is kept in registers.
_ONE_PASS: dict[str, Sequence[Any]] = {
    **AXES,
    "shape": [(8, 1024), (8, 4096), (2, 16384)],
    "geometry": ["row", "entry"],
    "gradient": ["dense"],
    "layout": ["contiguous"],
}


def combinations(*, quick: bool = False) -> list[dict[str, Any]]:
    """Combinations of options in which every pair occurs, and once more with the geometries of one pass."""
    if quick:
        return covering({**AXES, "shape": [(9000, 16), (8, 1024)]})
    return covering() + covering(_ONE_PASS)


def launched(chosen: Mapping[str, Any]) -> list[Launch]:
    """What a step with these options launches, and, with ``capturable``, what a step that is captured does."""
    optimizer = make(chosen, [parameter(chosen)], fused=True)
    with backend_takes_cpu_tensors(), recorded() as launches:
        optimizer.step()
        if chosen.get("capturable") and chosen.get("gradient", "dense") == "dense":
            with mock.patch.object(backend, "_is_capturing", return_value=True):
                optimizer.step()
    return launches


@dataclass(frozen=True)
class Specialisation:
    """A kernel, as Triton specialises it for the arguments of a launch."""

    launch: Launch
    target: str

    @property
    def name(self) -> str:
        """The name of the kernel."""
        return self.launch.name

    @cached_property
    def _packed(self) -> tuple[Any, ...]:
        """As `JITFunction.run` makes them: what to compile, and the options."""
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource, make_backend
        from triton.runtime.jit import create_function_from_signature

        target = GPUTarget(*TARGETS[self.target])
        own, kernel, kwargs = make_backend(target), self.launch.kernel, {**self.launch.kwargs, "debug": False}
        binder = create_function_from_signature(kernel.signature, kernel.params, own)
        bound, specialization, options = binder(*self.launch.args, **kwargs)
        options, signature, constants, attributes = kernel._pack_args(own, kwargs, bound, specialization, options)
        return ASTSource(kernel, signature, constants, attributes), target, options.__dict__

    @cached_property
    def key(self) -> str:
        """What two launches have in common that run the same machine code."""
        source, _, options = self._packed
        warps = {name: value for name, value in options.items() if name in ("num_warps", "num_stages")}
        return f"{self.name} {source.signature} {source.constants} {source.attrs} {warps}"

    @property
    def constants(self) -> dict[str, Any]:
        """The options that the kernel is compiled for."""
        return {name: value for name, value in self.launch.kwargs.items() if name.isupper()}

    def compile(self) -> Any:
        """Compile it; Triton keeps what it has compiled in its cache."""
        import triton

        source, target, options = self._packed
        return triton.compile(source, target=target, options=options)


def specialisations(launches: Iterable[Launch], target: str) -> list[Specialisation]:
    """What these launches run on a target, each once."""
    found: dict[str, Specialisation] = {}
    for launch in launches:
        own = Specialisation(launch, target)
        found.setdefault(own.key, own)
    return [*found.values()]


# ------------------------------------------------------------------------------------------------- what it compiles to


@dataclass(frozen=True)
class Compiled:
    """The machine code of a kernel for one target, in figures."""

    kernel: str
    target: str
    constants: dict[str, str]
    registers: int  # of a thread
    spilled_bytes: int  # of a thread
    shared_bytes: int  # of a program
    warps: int
    loads: dict[int, int]  # from global memory: how many, by bytes that a thread moves at a time
    stores: dict[int, int]
    atomics: int

    @property
    def is_aligned(self) -> bool:
        """Whether rows are known to lie at multiples of 16 bytes, and a tile has enough columns for that to matter."""
        width = int(self.constants.get("BLOCK_INNER", self.constants.get("BLOCK", 0)))
        return self.constants.get("ALIGNED") == "True" and width >= 32

    @property
    def widest(self) -> tuple[int, int]:
        """The widest load and the widest store, in bytes."""
        return max(self.loads, default=0), max(self.stores, default=0)


_PTX = re.compile(r"\b(ld|st|atom|red)\.global((?:\.[\w:]+)*)")
_AMD = re.compile(r"\b(?:global|buffer|flat)_(load|store|atomic)_(\w+)")
_AMD_BYTES = {"byte": 1, "ubyte": 1, "sbyte": 1, "short": 2, "ushort": 2, "sshort": 2, "dword": 4}
_AMD_BYTES |= {f"dwordx{n}": 4 * n for n in (2, 3, 4)}


def compiled(own: Specialisation) -> Compiled:
    """Compile a kernel, and read what it needs."""
    made = own.compile()
    is_cuda = TARGETS[own.target][0] == "cuda"
    registers, spilled = _cuda_resources(made.asm["cubin"]) if is_cuda else _amd_resources(made.asm["amdgcn"])
    accesses: dict[str, Counter[int]] = {"ld": Counter(), "st": Counter(), "atomic": Counter()}
    for kind, size in _ptx_accesses(made.asm["ptx"]) if is_cuda else _amd_accesses(made.asm["amdgcn"]):
        accesses[kind][size] += 1
    return Compiled(
        kernel=own.name,
        target=own.target,
        constants={name: str(value) for name, value in own.constants.items()},
        registers=registers,
        spilled_bytes=spilled,
        shared_bytes=made.metadata.shared,
        warps=made.metadata.num_warps,
        loads=dict(accesses["ld"]),
        stores=dict(accesses["st"]),
        atomics=accesses["atomic"].total(),
    )


def _ptx_accesses(text: str) -> Iterator[tuple[str, int]]:
    for match in _PTX.finditer(text):
        parts = match[2].split(".")
        bits = next(int(part[1:]) for part in parts if re.fullmatch(r"[bfsu]\d+", part))
        count = next((int(part[1:]) for part in parts if re.fullmatch(r"v\d", part)), 1)
        yield match[1] if match[1] in ("ld", "st") else "atomic", count * bits // 8


def _amd_accesses(text: str) -> Iterator[tuple[str, int]]:
    for match in _AMD.finditer(text):
        if match[1] == "atomic":
            yield "atomic", 0
        else:
            yield {"load": "ld", "store": "st"}[match[1]], _AMD_BYTES[match[2].split("_")[0]]


def _cuda_resources(cubin: bytes) -> tuple[int, int]:
    """Registers, and bytes of the stack: kernels without arrays of their own have one only for what is spilled."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        said = subprocess.check_output([tool, "--dump-resource-usage", file.name], encoding="utf-8")
    found = {name: int(value) for name, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", said)}
    return found["REG"], found["STACK"] + found["LOCAL"]


def _amd_resources(text: str) -> tuple[int, int]:
    """Vector registers, and bytes that are spilled, by the metadata of the kernel."""
    found = {name: int(value) for name, value in re.findall(r"^\s*-?\s*\.(\w+):\s+(\d+)$", text, re.M)}
    spilled = found["vgpr_spill_count"] + found["sgpr_spill_count"]
    return found["vgpr_count"], max(4 * spilled, found["private_segment_fixed_size"])
