"""One set of ranks for all tests of a session."""

from tests.distributed.conftest import ranks

__all__ = ["ranks"]
