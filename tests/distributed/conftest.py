"""One set of ranks for all tests of a session."""

from collections.abc import Iterator

import pytest

from tests.distributed.ranks import Ranks


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    ranks = Ranks()
    yield ranks
    assert set(ranks.close()) <= {0}, "a rank did not end cleanly"
