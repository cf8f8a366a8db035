"""The ranks that the other tests rely on: they fail loudly, and never hang."""

import os
import time

import pytest
import torch
import torch.distributed as dist

from tests.distributed.ranks import Ranks, RanksFailedError


@pytest.fixture
def own_ranks():
    ranks = Ranks()
    yield ranks
    ranks.close()


def process():
    """Called first: a rank that knows this function has imported this module, and all that comes with it."""
    return os.getpid()


def total():
    x = torch.tensor(float(dist.get_rank()))
    dist.all_reduce(x)
    return x.item()


def hang_on_rank_one():
    if dist.get_rank() == 1:
        time.sleep(1000)


def fail_on_rank_one():
    if dist.get_rank() == 1:
        raise ValueError("rank one has had enough")
    total()


def die_on_rank_one():
    if dist.get_rank() == 1:
        os._exit(3)
    total()


def alive(pids):
    return [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


def test_a_rank_that_hangs_is_killed_and_its_stack_is_printed(own_ranks):
    pids = own_ranks.run(2, process)
    with pytest.raises(RanksFailedError, match=r"no answer in 3 s:\nrank 1:(.|\n)*in hang_on_rank_one"):
        own_ranks.run(2, hang_on_rank_one, timeout=3)
    assert not alive(pids)
    assert own_ranks.run(2, total) == [1.0, 1.0]  # new ones


@pytest.mark.parametrize(
    ("function", "words"), [(fail_on_rank_one, "rank one has had enough"), (die_on_rank_one, "rank 1: it died")]
)
def test_a_rank_that_fails_says_so_and_the_others_do_not_wait_for_it(own_ranks, function, words):
    pids = own_ranks.run(2, process)
    start = time.monotonic()
    with pytest.raises(RanksFailedError, match=words):
        own_ranks.run(2, function)
    assert time.monotonic() - start < 30
    assert not alive(pids)


def test_worlds_do_not_interfere_and_end_cleanly(own_ranks, ranks):
    pids = own_ranks.run(3, process)
    for _ in range(3):
        assert own_ranks.run(3, total) == [3.0] * 3
        assert ranks.run(2, total) == [1.0] * 2
    assert own_ranks.close() == [0, 0, 0]
    assert not alive(pids)
