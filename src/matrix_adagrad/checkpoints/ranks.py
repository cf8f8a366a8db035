"""What the ranks of a run do for each other. A run without ranks is one of a single rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

__all__ = ["by_all", "by_the_first", "rank_and_world"]

T = TypeVar("T")


def rank_and_world() -> tuple[int, int]:
    """This rank, and how many there are."""
    return (dist.get_rank(), dist.get_world_size()) if _are_many() else (0, 1)


def by_the_first(work: Callable[[], T]) -> T:
    """Work that rank 0 does for all: they wait for it, and have its result, or its error."""
    if not _are_many():
        return work()
    outcome = [_outcome(work) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(outcome)
    result: T = _results(outcome)[0]
    return result


def by_all(work: Callable[[], T]) -> list[T]:
    """Work that each rank has a part of: all have all results, or the first error."""
    if not _are_many():
        return [work()]
    outcomes: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(outcomes, _outcome(work))
    return _results(outcomes)


def _are_many() -> bool:
    return dist.is_available() and dist.is_initialized()


def _outcome(work: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return work(), None
    except Exception as error:
        return None, error


def _results(outcomes: list[Any]) -> list[Any]:
    for _, error in outcomes:
        if error is not None:
            raise error
    return [result for result, _ in outcomes]
