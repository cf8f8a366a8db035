"""Work shared between ranks. Without a process group there is a single rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

__all__ = ["on_all_ranks", "on_first_rank", "rank_and_world"]

T = TypeVar("T")


def rank_and_world() -> tuple[int, int]:
    """This rank, and the number of ranks."""
    return (dist.get_rank(), dist.get_world_size()) if _has_ranks() else (0, 1)


def on_first_rank(work: Callable[[], T]) -> T:
    """Run ``work`` on rank 0; all ranks wait, and get its result or its error."""
    if not _has_ranks():
        return work()
    outcome = [_outcome(work) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(outcome)
    result: T = _results(outcome)[0]
    return result


def on_all_ranks(work: Callable[[], T]) -> list[T]:
    """Run ``work`` on every rank; all ranks get all results, or the first error."""
    if not _has_ranks():
        return [work()]
    outcomes: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(outcomes, _outcome(work))
    return _results(outcomes)


def _has_ranks() -> bool:
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
