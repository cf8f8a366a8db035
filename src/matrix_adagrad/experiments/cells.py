"""Cells: the single runs that an experiment consists of, each kept in a file under what it depends on.

A cell is a config. What is kept of it is found by a key over the config, the code that ran it and the libraries under
it, so that a run that was broken off goes on where it was, and results of different versions never mix.
"""

from __future__ import annotations

import functools
import hashlib
import json
import platform
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import torch

import matrix_adagrad
from matrix_adagrad import native
from matrix_adagrad.files import write
from matrix_adagrad.version import __version__

__all__ = ["Cell", "Store", "code", "fingerprint", "run"]

# What a cell's result cannot depend on; the experiments' own modules count for their own cells only.
APART = (
    *("cli/", "text.py", "terminal.py", "__main__.py", "files.py", "intervals.py"),
    *("advisor/", "bench/", "experiments/", "interop/", "report/"),
)
SHARED = ("data", "regret")  # modules of the experiments that other ones use


class Cell(Protocol):
    """A frozen dataclass, the ``Config`` of a module that has ``run`` and ``Result``."""

    @property
    def cost(self) -> float:
        """About how many seconds it takes."""

    @property
    def __dataclass_fields__(self) -> dict[str, Any]: ...


def run(cell: Cell, **how: Any) -> Any:
    """The cell's result."""
    return _module(cell).run(cell, **how)


class Store:
    """Results in a folder, a file for each cell."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, cell: Cell) -> Any:
        """The result, or ``None`` if it is not there, or is damaged."""
        try:
            kept = json.loads(self._file(cell).read_text(encoding="utf-8"))
            body = kept["result"]
            if kept["sha256"] != _hash(json.dumps(body)):
                return None
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return _module(cell).Result(config=cell, **{name: _frozen(value) for name, value in body.items()})

    def save(self, result: Any) -> None:
        """Keep a result."""
        body = {field.name: getattr(result, field.name) for field in fields(result) if field.name != "config"}
        body = json.loads(json.dumps(body))  # tuples are lists from here on
        kept = {"config": asdict(result.config), "sha256": _hash(json.dumps(body)), "result": body}
        write(self._file(result.config), json.dumps(kept) + "\n")

    def prepare(self) -> None:
        """Make the folder, or fail before anything has run."""
        write(self.folder / "README", "What runs of matrix-adagrad reproduce have finished. Can be deleted.\n")

    def clear(self) -> None:
        """Forget everything, and leave alone what is somebody else's."""
        for file in self.folder.glob("*-*.json"):
            if re.fullmatch(r"[a-z]+-[0-9a-f]{32}\.json", file.name):
                file.unlink()

    def _file(self, cell: Cell) -> Path:
        name = _module(cell).__name__.rpartition(".")[2]
        key = _hash(json.dumps([name, asdict(cell), fingerprint(name)], sort_keys=True))  # type: ignore[call-overload]
        return self.folder / f"{name}-{key[:32]}.json"


@functools.cache
def fingerprint(experiment: str) -> str:
    """A hash over all that the results of an experiment depend on: the code, torch, and what the processor can do."""
    own = {f"experiments/{name}.py" for name in (experiment, *SHARED)}
    kernels = hashlib.sha256(native.LIBRARY.read_bytes()).hexdigest() if native.LIBRARY else native.missing()
    machine = [platform.machine(), torch.backends.cpu.get_cpu_capability(), kernels]
    sources = [text for name, text in _sources("*.py") if name in own or not name.startswith(APART)]
    return _hash(json.dumps([__version__, torch.__version__, *machine, *sources]))


def code() -> str:
    """A hash over the package's sources, which is the same on all machines."""
    return _hash(json.dumps([source for kind in ("*.py", "*.c", "*.h") for source in _sources(kind)]))


def _sources(kind: str) -> Iterator[tuple[str, str]]:
    root = Path(matrix_adagrad.__file__).parent
    for file in sorted(root.rglob(kind)):
        yield file.relative_to(root).as_posix(), file.read_text(encoding="utf-8")


def _module(cell: Cell) -> ModuleType:
    return sys.modules[type(cell).__module__]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
