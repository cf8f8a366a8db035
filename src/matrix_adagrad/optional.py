"""Output that needs packages besides torch: checked before a command starts, not after its work is done."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

__all__ = ["OptionalOutput"]


@dataclass(frozen=True)
class OptionalOutput:
    """A file that a command writes, the modules it needs, and the extra of this package that installs them.

    >>> OptionalOutput("page.html", ("json", "no_such_module"), "advisor").missing
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
        """What is missing, and how to install it."""
        return f"{self.name} needs {' and '.join(self.missing)}: pip install 'matrix-adagrad[{self.extra}]'"
