"""Compare the kernels' bits among compilers and processors: each build prints hashes of what it computes.

    python3 .ci/platforms.py

Needs gcc, clang with OpenMP, a cross compiler for aarch64 and QEMU's user emulation: Debian's packages in `NEEDED`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
NATIVE = ROOT / "src" / "matrix_adagrad" / "native"
SOURCES = (*sorted(NATIVE.glob("*.c")), ROOT / "tests" / "native" / "bits.c")
FLAGS = ("-std=gnu11", "-O3", "-fopenmp", "-Wall", "-Wextra", "-Wno-psabi", "-Werror")
SAME_BITS = ("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")
NEEDED = {  # a program, and its Debian packages
    "gcc": "gcc",
    "clang": "clang libomp-dev",
    "aarch64-linux-gnu-gcc": "gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
    "qemu-aarch64-static": "qemu-user-static",
    "qemu-x86_64-static": "qemu-user-static",
}


class Build(NamedTuple):
    """A compiler with its own options, and whether the program is linked with all libraries."""

    compiler: str
    options: tuple[str, ...] = ()
    link_options: tuple[str, ...] = ()


BUILDS = {
    "gcc": Build("gcc", ("-march=x86-64",)),
    "clang": Build("clang", ("-march=x86-64",)),
    "aarch64": Build("aarch64-linux-gnu-gcc", (), ("-static",)),
}
# What is compared: a build, what it runs in, its threads, and at most which SIMD (0: the baseline's; 1: AVX2; 2: any).
RUNS = {
    "gcc, one thread": ("gcc", (), ("1", "2")),
    "gcc, two threads": ("gcc", (), ("2", "2")),
    "gcc, AVX2 at most": ("gcc", (), ("1", "1")),
    "gcc, no AVX": ("gcc", (), ("1", "0")),
    "gcc, a processor without AVX (QEMU)": ("gcc", ("qemu-x86_64-static", "-cpu", "Nehalem"), ("1", "2")),
    "clang": ("clang", (), ("1", "2")),
    "gcc, aarch64 (QEMU)": ("aarch64", ("qemu-aarch64-static",), ("1", "2")),
}


def compile_all(name: str) -> Path:
    """Compile a build, its files side by side. Returns the program."""
    build, folder = BUILDS[name], ROOT / "build" / "platforms" / name
    folder.mkdir(parents=True, exist_ok=True)

    def compile_one(source: Path) -> Path:
        target = folder / f"{source.stem}.o"
        flags = (*FLAGS, *SAME_BITS, *build.options, f"-I{NATIVE}")
        subprocess.run([build.compiler, *flags, "-c", source, "-o", target], check=True)
        return target

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = [*pool.map(compile_one, SOURCES)]
    program = folder / "bits"
    subprocess.run([build.compiler, "-fopenmp", *build.link_options, *objects, "-o", program, "-lm"], check=True)
    return program


def differences(ours: list[str], reference: list[str]) -> str:
    """What is not the same, in words; empty if all is.

    >>> differences(["a 1", "b 2"], ["a 1", "b 3"])
    '1 of 2 differ, the first is: b 2'
    """
    if len(ours) != len(reference):
        return f"{len(ours)} hashes instead of {len(reference)}"
    other = [line for line, expected in zip(ours, reference, strict=True) if line != expected]
    return f"{len(other)} of {len(reference)} differ, the first is: {other[0]}" if other else ""


def main() -> str | None:
    """Compile and compare. Returns what differs."""
    if missing := {packages for program, packages in NEEDED.items() if not shutil.which(program)}:
        return f"platforms: install {' '.join(sorted(missing))}"
    programs = {name: compile_all(name) for name in BUILDS}
    reference: list[str] = []
    failed = []
    for name, (build, emulator, arguments) in RUNS.items():
        output = subprocess.check_output([*emulator, programs[build], *arguments], encoding="utf-8").splitlines()
        reference = reference or output
        difference = differences(output, reference)
        print(f"platforms: {name}: {difference or f'the same {len(output)} hashes'}", flush=True)
        failed += [name] * bool(difference)
    return f"platforms: other bits: {', '.join(failed)}" if failed else None


if __name__ == "__main__":
    sys.exit(main())
