"""The kernels of the Triton backend, and what it launches."""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

from matrix_adagrad.optim import step

__all__ = ["Launch", "is_interpreted", "kernels", "recorded", "watched"]


@dataclass(frozen=True)
class Launch:
    """A kernel and the arguments that the backend has called it with."""

    name: str
    kernel: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def _modules() -> Iterator[Any]:
    for module in pkgutil.iter_modules(step.__path__):
        if module.name.startswith("triton"):
            yield importlib.import_module(f"{step.__name__}.{module.name}")


def _kernel_type() -> Any:
    from triton.runtime import KernelInterface

    return KernelInterface


def kernels() -> dict[str, Any]:
    """Every kernel of the backend, by name: what its modules compile, but for functions that only kernels call."""
    named = [item for module in _modules() for item in vars(module).items()]
    return {name: value for name, value in named if isinstance(value, _kernel_type()) and not name.startswith("_")}


def is_interpreted() -> bool:
    """Whether Triton's interpreter was on when the kernels were imported."""
    return any(type(kernel).__name__ == "InterpretedFunction" for kernel in kernels().values())


@contextlib.contextmanager
def watched(run: Callable[..., Any]) -> Iterator[None]:
    """Call ``run(launch, launched)`` for every launch; ``launched()`` runs the kernel."""
    types = {type(kernel) for kernel in kernels().values()}
    with contextlib.ExitStack() as stack:
        for cls in types:
            stack.enter_context(mock.patch.object(cls, "run", _watching(cls.run, run)))
        yield


def _watching(original: Any, run: Callable[..., Any]) -> Callable[..., Any]:
    def launch(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        found = Launch(kernel.fn.__name__, kernel, args, kwargs)
        return run(found, lambda: original(kernel, *args, grid=grid, warmup=warmup, **kwargs))

    return launch


@contextlib.contextmanager
def recorded() -> Iterator[list[Launch]]:
    """The launches in here, none of which runs."""
    launches: list[Launch] = []
    with watched(lambda launch, _: launches.append(launch)):
        yield launches
