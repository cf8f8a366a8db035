"""Which random numbers a parameter is rounded with: replicas draw the same ones, and everything else its own.

In a single process they come from torch's generator. Where there are several, generators need not be in step, and
which parameters are replicas of each other cannot be seen from here. So each optimizer draws one seed, agrees on it
with its replicas, and derives the rest from what replicas share: the parameter's place in the optimizer, its part of
the mesh, and its count of steps.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["Streams", "mixed"]

_BITS = (1 << 64) - 1
_ordinals: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)


def mixed(*numbers: int) -> int:
    """One number of 62 bits, not 0, out of several: another one if any of them changes (SplitMix64)."""
    z = 0
    for number in numbers:
        z = (z + number + 0x9E3779B97F4A7C15) & _BITS
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _BITS
        z = (z ^ z >> 27) * 0x94D049BB133111EB & _BITS
        z ^= z >> 31
    return z >> 2 or 1


class Streams:
    """The random numbers of one optimizer.

    Args:
        kind: what replicas of the optimizer have in common. The first one of a kind that draws is a replica of the
            first ones in other processes, and so on.
    """

    def __init__(self, kind: str) -> None:
        self._kind, self._key = kind, ""
        self._drawn = self._agreed = 0
        self._positions: dict[int, int] = {}

    @staticmethod
    def is_needed() -> bool:
        """Whether there may be replicas."""
        return dist.is_available() and dist.is_initialized()

    def draw(self) -> None:
        """Draw the seed now: a run that is resumed constructs its optimizer at the same place, and draws it again."""
        if not self._key:
            self._key = f"matrix_adagrad/{self._kind}/{next(_ordinals[self._kind])}"
            self._drawn = int(torch.randint(1, 1 << 62, (), device="cpu"))

    def place(self, params: Iterable[Tensor]) -> None:
        """The parameters, in the order that tells them apart; what was said before is forgotten."""
        self._positions.clear()
        self._positions.update({id(param): i for i, param in enumerate(params)})

    def position(self, param: Tensor) -> int:
        """The parameter's own number in this optimizer."""
        return self._positions.setdefault(id(param), len(self._positions))  # who edits a group adds some

    def seed(self) -> int | None:
        """The seed that replicas have agreed on; None in a single process, where torch's generator serves."""
        if not self.is_needed():
            return None
        if not self._agreed:
            self.draw()
            store = dist.distributed_c10d._get_default_store()
            # Whoever is first decides, and nobody waits: not every rank need have such an optimizer.
            self._agreed = int(store.compare_set(self._key, "", str(self._drawn)))
        return self._agreed
