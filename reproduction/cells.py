"""Cells, the single runs of an experiment, and the files that store their results.

A cell is a config. Its result is keyed by a hash of the config, the code and the libraries. So an interrupted
reproduction resumes where it stopped, and results of different versions never mix.
"""

from __future__ import annotations

import functools
import hashlib
import json
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import torch

import matrix_adagrad
from matrix_adagrad import native
from matrix_adagrad.files import write
from matrix_adagrad.version import __version__

__all__ = ["Cell", "Known", "Store", "dependency_hash", "run", "source_hash"]

PRODUCT, REPRODUCTION = Path(matrix_adagrad.__file__).parent, Path(__file__).parent
# Files that no cell's result depends on.
UNRELATED = (
    *("__main__.py", "files.py", "intervals.py", "optional.py", "terminal.py", "text.py"),
    *("advisor/", "cli/", "demos/", "interop/", "pages/"),
)


class Cell(Protocol):
    """The ``Config`` of an experiment: a frozen dataclass, in a module that also has ``run`` and ``Result``."""

    @property
    def cost(self) -> float:
        """The estimated run time, in seconds."""

    @property
    def __dataclass_fields__(self) -> dict[str, Any]: ...


Known = Mapping[Cell, Any]  # the results so far


def run(cell: Cell, **how: Any) -> Any:
    """The cell's result."""
    return _module(cell).run(cell, **how)


class Store:
    """Stored results: a folder with one file per cell."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, cell: Cell) -> Any:
        """The result, or ``None`` if it is missing or damaged."""
        try:
            kept = json.loads(self._file(cell).read_text(encoding="utf-8"))
            body = kept["result"]
            if kept["sha256"] != _hash(json.dumps(body)):
                return None
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return _module(cell).Result(config=cell, **{name: _frozen(value) for name, value in body.items()})

    def save(self, result: Any) -> None:
        """Store a result."""
        body = {field.name: getattr(result, field.name) for field in fields(result) if field.name != "config"}
        body = json.loads(json.dumps(body))  # turns tuples into lists
        kept = {"config": asdict(result.config), "sha256": _hash(json.dumps(body)), "result": body}
        write(self._file(result.config), json.dumps(kept) + "\n")

    def prepare(self) -> None:
        """Create the folder, or fail before anything has run."""
        write(self.folder / "README", "Stored results of `make reproduce`. Safe to delete.\n")

    def clear(self) -> None:
        """Delete all stored results, but no other files."""
        for file in self.folder.glob("*-*.json"):
            if re.fullmatch(r"[a-z]+-[0-9a-f]{32}\.json", file.name):
                file.unlink()

    def _file(self, cell: Cell) -> Path:
        module = _module(cell)
        name = module.__name__.rpartition(".")[2]
        key = _hash(json.dumps([name, asdict(cell), dependency_hash(module)], sort_keys=True))  # type: ignore[call-overload]
        return self.folder / f"{name}-{key[:32]}.json"


@functools.cache
def dependency_hash(module: ModuleType) -> str:
    """A hash of everything a module's results depend on: the code, torch, and the CPU's instruction set."""
    kernels = hashlib.sha256(native.LIBRARY.read_bytes()).hexdigest() if native.LIBRARY else native.missing()
    machine = [platform.machine(), torch.backends.cpu.get_cpu_capability(), kernels]
    sources = [text for name, text in _sources(PRODUCT, "*.py") if not name.startswith(UNRELATED)]
    own = [Path(each.__file__ or "").read_text(encoding="utf-8") for each in _with_siblings(module)]
    return _hash(json.dumps([__version__, torch.__version__, *machine, *sources, *own]))


def _with_siblings(module: ModuleType) -> list[ModuleType]:
    """The module, and those of its folder whose names it imports."""
    names = {module.__name__, *(str(getattr(value, "__module__", "")) for value in vars(module).values())}
    return [sys.modules[name] for name in sorted(names) if name.startswith(f"{module.__package__}.")]


def source_hash() -> str:
    """A hash of the source code of the package and its reproduction, the same on all machines."""
    kinds = ((PRODUCT, "*.py"), (PRODUCT, "*.c"), (PRODUCT, "*.h"), (REPRODUCTION, "*.py"))
    return _hash(json.dumps([source for root, kind in kinds for source in _sources(root, kind)]))


def _sources(root: Path, kind: str) -> Iterator[tuple[str, str]]:
    for file in sorted(root.rglob(kind)):
        yield file.relative_to(root).as_posix(), file.read_text(encoding="utf-8")


def _module(cell: Cell) -> ModuleType:
    return sys.modules[type(cell).__module__]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
