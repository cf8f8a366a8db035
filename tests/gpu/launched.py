"""The names of the Triton kernels that run, for tests that must see that they do."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator

from benchmarks.gpu.launches import watched


@contextlib.contextmanager
def launched() -> Iterator[list[str]]:
    names: list[str] = []
    if importlib.util.find_spec("triton") is None:
        yield names
        return

    def note(launch, run):
        names.append(launch.name)
        return run()

    with watched(note):
        yield names
