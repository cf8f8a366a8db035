"""Errors of the advisor itself, as opposed to errors of the code that it runs."""

from __future__ import annotations

__all__ = ["AdvisorError", "AdvisorTypeError", "AdvisorValueError", "NothingTrainedError"]


class AdvisorError(Exception):
    """A check of the advisor failed. The message says it all: a user needs no traceback."""


class AdvisorTypeError(AdvisorError, TypeError):
    """An argument, or what a function of the task returned, has the wrong type."""


class AdvisorValueError(AdvisorError, ValueError):
    """An argument, or what a function of the task returned, has the right type but cannot be used."""


class NothingTrainedError(AdvisorError, RuntimeError):
    """No candidate trained the model."""
