"""Which candidates run on: at half of the steps, at full length, and on further seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from matrix_adagrad.advisor.tuning import Tuning

__all__ = ["finalists", "leaders", "semifinalists"]

AHEAD = (6, 4, 3)  # those with the lowest losses that run on, after a quarter, half and all of the steps
NEAR = 0.05  # of the lowest loss: who is so close, with the least state, runs on


def semifinalists(tunings: Sequence[Tuning], states: Mapping[str, int], baseline: str | None) -> list[Tuning]:
    """After a quarter of the steps: the lowest losses, the best of each family, the least state close to the best."""
    ranked = _ranked(tunings)
    of_families = [*{tuning.family: tuning for tuning in reversed(ranked)}.values()]
    return _kept(tunings, [*ranked[: AHEAD[0]], *of_families, *_lean(ranked, states)], baseline)


def finalists(tunings: Sequence[Tuning], states: Mapping[str, int], baseline: str | None) -> list[Tuning]:
    """After half of the steps: the lowest losses, who falls fastest, the best of another family, the least state.

    What is ahead early may be behind at full length. If a loss falls by as much with every doubling of the steps, its
    next value is as far below the last one as that is below the one before.
    """
    ranked = _ranked(tunings)
    falling = _ranked(tunings, lambda tuning: 2 * tuning.score(tuning.steps) - tuning.score(_before(tuning)))
    others = [tuning for tuning in ranked if tuning.family != ranked[0].family]
    return _kept(tunings, [*ranked[: AHEAD[1]], *falling[:1], *others[:1], *_lean(ranked, states)], baseline)


def leaders(tunings: Sequence[Tuning], states: Mapping[str, int], baseline: str | None) -> list[Tuning]:
    """After all steps, on the tuning seeds: the lowest losses, and the least state close to the best."""
    ranked = _ranked(tunings)
    return _kept(tunings, [*ranked[: AHEAD[2]], *_lean(ranked, states)], baseline)


def _before(tuning: Tuning) -> int:
    return sorted(tuning.rungs)[-2]


def _ranked(
    tunings: Iterable[Tuning], loss: Callable[[Tuning], float] = lambda tuning: tuning.score(tuning.steps)
) -> list[Tuning]:
    """The lowest loss first; what is not a number (∞ − ∞) last."""
    losses = {tuning: loss(tuning) for tuning in tunings}
    return sorted(losses, key=lambda tuning: (math.isnan(losses[tuning]), losses[tuning]))


def _lean(ranked: Sequence[Tuning], states: Mapping[str, int]) -> list[Tuning]:
    """The one with the least state among those close to the best, if this package can make a plan of it."""
    best = ranked[0].score(ranked[0].steps)
    near = [
        tuning
        for tuning in ranked
        if tuning.candidate.geometries is not None and tuning.score(tuning.steps) <= best + NEAR * abs(best)
    ]
    return sorted(near, key=lambda tuning: states[tuning.candidate.name])[:1]


def _kept(tunings: Sequence[Tuning], chosen: Iterable[Tuning], baseline: str | None) -> list[Tuning]:
    """The chosen ones and the baseline, in the order in which they entered."""
    names = {tuning.candidate.name for tuning in chosen} | {baseline}
    return [tuning for tuning in tunings if tuning.candidate.name in names]
