"""What the advisor itself refuses, so that it can be told from errors of the code that it runs."""

from __future__ import annotations

__all__ = ["AstrayError", "RefusedError", "RefusedTypeError", "RefusedValueError"]


class RefusedError(Exception):
    """A check of the advisor's own has failed; the message says all there is to say."""


class RefusedTypeError(RefusedError, TypeError):
    """What was given is of another kind than what it takes."""


class RefusedValueError(RefusedError, ValueError):
    """What was given is of the right kind, but cannot be used."""


class AstrayError(RefusedError, RuntimeError):
    """No candidate trained the model."""
