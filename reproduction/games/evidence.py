"""The games' results in the terms of the claims."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from reproduction.cells import Known
from reproduction.games import domains, hindsight, horizon, identities, motivating, sweep, theorems, tradeoff
from reproduction.games.sweep import Size

__all__ = ["Evidence"]

Result = TypeVar("Result")


@dataclass(frozen=True)
class Evidence:
    """The results of the games, each in the sweep's order, whatever finished first."""

    known: Known
    size: Size

    def games(self) -> list[motivating.Result]:
        """The motivating examples that were played."""
        return self._of(motivating.Result)

    def domains(self) -> list[domains.Result]:
        """Games with other domains and other gradients."""
        return self._of(domains.Result)

    def theorems(self) -> list[theorems.Result]:
        """The games on which inequalities were checked."""
        return self._of(theorems.Result)

    def tradeoffs(self) -> list[tradeoff.Result]:
        """Games played with several step sizes."""
        return self._of(tradeoff.Result)

    def hindsights(self) -> list[hindsight.Result]:
        """Games against the best proximal function in hindsight."""
        return self._of(hindsight.Result)

    def horizons(self, delta: float) -> list[horizon.Result]:
        """Long games with this stabilizer."""
        return [result for result in self._of(horizon.Result) if result.config.delta == delta]

    def identities(self) -> list[identities.Result]:
        """The identities of the algorithms."""
        return self._of(identities.Result)

    def _of(self, kind: type[Result]) -> list[Result]:
        cells = sweep.needed(self.size, self.known)
        found: list[Any] = [self.known[cell] for cell in cells if cell in self.known]
        return [result for result in found if isinstance(result, kind)]
