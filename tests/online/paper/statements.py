"""What a statement is, and how it is broken on purpose.

A statement is a function of a case that yields claims: (left, right), or (left, right, size) if a side is a difference
of larger terms. `identity` and `inequality` say where in the paper it stands. A claim may be off by 1e-10 of its size.
Broken on purpose, the right-hand side of an identity is 1e-6 larger, and that of an inequality 1e-6 less: for every
claim there is a case in which it is tight. Where there is none it says so, and how much is taken.
"""

import functools
import math
from typing import NamedTuple

import torch

from tests.online.paper.cases import MATRICES

TOLERANCE, BREAK = 1e-10, 1e-6


class Statement(NamedTuple):
    place: str
    sign: str
    claims: object
    over: list
    taken: float  # from the right-hand side, when it is broken

    def __str__(self):
        return f"{self.place}: {self.claims.__name__}"

    def failures(self, case, *, broken=False):
        """For each claim None, or how it fails."""
        for left, right, *terms in claimed(self.claims, case):
            left, right = (torch.as_tensor(side, dtype=torch.float64) for side in (left, right))
            size = max(float(left.abs().max()), float(right.abs().max()), *map(float, terms))
            right = right - self.taken * right.abs() if broken else right
            off = float((left - right).abs().max() if self.sign == "=" else (left - right).max())
            holds = off <= TOLERANCE * size < math.inf
            yield None if holds else f"{case}: {left} {self.sign} {right} is off by {off:.3g} at a size of {size:.3g}"


@functools.cache
def claimed(claims, case):
    return list(claims(case))


STATEMENTS: list[Statement] = []


def state(place, sign, over, taken):
    def register(claims):
        STATEMENTS.append(Statement(place, sign, claims, over, taken))
        return claims

    return register


def identity(place, over=MATRICES):
    return state(place, "=", over, -BREAK)


def inequality(place, over=MATRICES, taken=BREAK):
    return state(place, "≤", over, taken)
