"""Outputs that need packages besides torch: known before a command starts, not when its work is done."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

__all__ = ["Output"]


@dataclass(frozen=True)
class Output:
    """What a command writes, the modules that it takes, and the extra of this package that brings them.

    >>> Output("page.html", ("json", "no_such_module"), "advisor").missing
    ('no_such_module',)
    """

    name: str
    modules: tuple[str, ...]
    extra: str

    @property
    def missing(self) -> tuple[str, ...]:
        """The modules that are not installed."""
        return tuple(name for name in self.modules if importlib.util.find_spec(name) is None)

    @property
    def remedy(self) -> str:
        """What is missing, and what to do about it."""
        return f"{self.name} needs {' and '.join(self.missing)}: pip install 'matrix-adagrad[{self.extra}]'"
