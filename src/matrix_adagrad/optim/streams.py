"""The random numbers for stochastic rounding: replicas draw the same ones, everything else draws its own.

A stream is derived from a seed, the parameter's position in the optimizer, its shard and its step count. In a single
process, each step draws a seed from torch's generator. With several processes, generators need not be in sync, and it
is not known here which parameters are replicas of each other. So each optimizer draws one seed and agrees on it with
its replicas, which share everything else.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from matrix_adagrad.optim.step.config import Config
from matrix_adagrad.optim.step.lazy import Lag
from matrix_adagrad.optim.step.update import Update, is_sharded, mixed, rounds_at_random
from matrix_adagrad.torch_private import default_store

__all__ = ["Streams"]

_ordinals: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)


class Streams:
    """The random numbers of one optimizer.

    Args:
        kind: what replicas of the optimizer have in common. The first optimizer of a kind to draw is a replica of the
            first one in every other process, and so on.
    """

    def __init__(self, kind: str) -> None:
        self._kind, self._key = kind, ""
        self._drawn = self._agreed = 0
        self._positions: dict[int, int] = {}

    @staticmethod
    def are_shared() -> bool:
        """Whether there may be replicas."""
        return dist.is_available() and dist.is_initialized()

    def draw(self) -> None:
        """Draw the seed now: a resumed run constructs its optimizer at the same point, and draws the same seed."""
        if not self._key:
            self._key = f"matrix_adagrad/{self._kind}/{next(_ordinals[self._kind])}"
            self._drawn = _random_number()

    def place(self, params: Iterable[Tensor]) -> None:
        """Set the parameters, in the order that identifies them. This replaces any earlier order."""
        self._positions.clear()
        self._positions.update({id(param): i for i, param in enumerate(params)})

    def assign(self, updates: Iterable[Update | Lag], config: Config) -> None:
        """Give each update that rounds at random its own stream for this step."""
        # A captured graph of another device must draw from torch's own generator.
        rounded = [u for u in updates if _is_rounded(u, config) and (u.param.is_cpu or not config.capturable)]
        if not rounded:
            return
        shared, seed = self.are_shared(), self._seed()
        for update in rounded:
            position = self._positions.setdefault(id(update.param), len(self._positions))  # edited groups may add some
            step = int(update.step.item()) if shared else 0  # a single process draws a seed for each step
            update.stream = mixed(seed, position, step, _shard_number(update.param))

    def _seed(self) -> int:
        """A new seed for each step of a single process. With several processes, one that all replicas agree on."""
        if not self.are_shared():
            return _random_number()
        if not self._agreed:
            self.draw()
            # The first to arrive decides, and nobody waits: not every rank need have such an optimizer.
            self._agreed = int(default_store().compare_set(self._key, "", str(self._drawn)))
        return self._agreed


def _is_rounded(update: Update | Lag, config: Config) -> bool:
    return rounds_at_random(update.param, config) or (config.momentum_dtype is not None and update.average is not None)


def _random_number() -> int:
    return int(torch.randint(1, 1 << 62, (), device="cpu"))


def _shard_number(param: Tensor) -> int:
    if not is_sharded(param):
        return 0
    from matrix_adagrad.optim.sharding import shard_number

    return shard_number(param)
