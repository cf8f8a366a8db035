r"""Measures regret in memory that does not grow with the rounds.

For quadratic ψ_t, the sum of divergences in Corollary 1 is a polynomial of degree two in X*. So a few running sums give
it exactly for any X* at the end: with :math:`Z_t = X_t - X_1` and :math:`W = X^* - X_1`,

.. math::
    \sum_t B_{\psi_t}(X^*; X_t) - B_{\psi_t}(X^*; X_{t+1})
    = -\Big\langle W, \sum_t H_t (X_t - X_{t+1}) \Big\rangle
      + \tfrac12 \sum_t \langle H_t (X_t - X_{t+1}),\ Z_t + Z_{t+1} \rangle .

Only the largest distance :math:`\max_u \|X^* - X_u\|` needs X* from the start. A second pass over the same game gives
it exactly. A single pass gives an upper bound, by the triangle inequality through X_1.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from matrix_adagrad.domains import Domain
from matrix_adagrad.geometry import Geometry, as_partition
from matrix_adagrad.online.bounds import RegretTerms, inequalities
from matrix_adagrad.online.fingerprints import fingerprint
from matrix_adagrad.online.games import Game
from matrix_adagrad.online.mirror_descent import MirrorDescent
from matrix_adagrad.online.proximal import Proximal
from matrix_adagrad.online.regret import Regret
from matrix_adagrad.online.resume import DeferredInterrupt, RunFile
from matrix_adagrad.online.solver import Solution, inner

__all__ = ["RegretMeter"]

ProgressBar = Callable[..., Iterable[int]]


class RegretMeter:
    """Measures the regret of a learner, round by round or over a whole game, in memory that does not grow.

    Args:
        learner: a learner that has not played yet.
        bounds_for: further geometries whose bounds are computed for the same gradients.
        target: X*, if it is known; distances to it are then exact.

    Example:
        >>> import torch
        >>> from matrix_adagrad.online import Adversarial, MirrorDescent, RegretMeter
        >>> game = Adversarial(8, 4)
        >>> learner = MirrorDescent(torch.zeros(8, 4, dtype=torch.float64), "row", game.domain)
        >>> regret = RegretMeter(learner).play(game, 200, exact=True)
        >>> regret.holds, 0 < regret.regret < regret["regret ≤ √2 D Σ_b √V_b"].right
        (True, True)
    """

    def __init__(
        self,
        learner: MirrorDescent,
        *,
        bounds_for: Sequence[Geometry | str] | Geometry | str = (),
        target: Tensor | None = None,
    ) -> None:
        if learner.rounds:
            raise ValueError(f"learner must not have played yet, got one after {learner.rounds} rounds: make a new one")
        self.learner, self._fresh = learner, copy.deepcopy(learner)
        self._x1, self._geometry = learner.x, learner.scheme.geometry
        self._best_of = 0  # the number of rounds that the best decision in hindsight is for
        self._bounds_for = tuple(
            map(as_partition, (bounds_for,) if isinstance(bounds_for, str | Geometry) else bounds_for)
        )
        self._begin(target)

    def _begin(self, target: Tensor | None, best: Solution | None = None) -> None:
        self._target, self._best, self._distance = target, best, 0.0
        self._is_whole = True  # whether the last round was counted completely
        self._loss, self._dual, self._quadratic = 0.0, 0.0, 0.0
        self._linear, self._gradients = torch.zeros_like(self._x1), torch.zeros_like(self._x1)
        self._first: Proximal | None = None
        self._curve: list[dict[str, float]] = []
        self._squared_moves: Tensor | None = None
        self._squares = [
            torch.zeros(geometry.statistic_shape(self._x1.shape), dtype=self._x1.dtype, device=self._x1.device)
            for geometry in self._bounds_for
        ]

    @property
    def rounds(self) -> int:
        """The number of rounds played."""
        return self.learner.rounds

    def record(self, loss: float, grad: Tensor) -> None:
        """Record one round: the loss at ``learner.x`` and a subgradient there. The learner then moves."""
        x = self.learner.x
        self._is_whole = False
        self._measure_distance(x)
        following = self.learner.update(grad)
        proximal = self.learner.proximal
        assert proximal is not None
        if self._first is None:
            self._first = proximal
        pull = proximal.gradient(x - following)
        self._linear += pull
        self._quadratic += inner(pull, (x - self._x1).add_(following).sub_(self._x1))
        self._dual += inner(grad, proximal.inverse(grad))
        self._gradients += grad
        self._loss += float(loss)
        for geometry, squares in zip(self._bounds_for, self._squares, strict=True):
            squares += geometry.statistic(grad)
        self._is_whole = True

    def _measure_distance(self, x: Tensor) -> None:
        if self._geometry is None:
            return
        if self._target is not None:
            self._distance = max(self._distance, float(self._geometry.norm(self._target - x)))
        moves = self._geometry.squared_lengths(x - self._x1)
        self._squared_moves = moves if self._squared_moves is None else torch.maximum(self._squared_moves, moves)

    # -------------------------------------------------------------------------------------------------- a whole game

    def play(
        self,
        game: Game,
        rounds: int,
        *,
        exact: bool = False,
        progress: ProgressBar | None = None,
        checkpoint: Path | str | None = None,
        every: float = 30.0,
        points: int = 0,
    ) -> Regret:
        """Play a game from its first round, or from a checkpoint, and return the regret.

        Args:
            game: the losses.
            rounds: how many rounds to play.
            exact: play twice, the second time with X* known, so that distances are exact.
            progress: a progress bar, called as ``tqdm.tqdm(rounds, initial=..., total=...)``.
            checkpoint: a file to resume from if it exists, and to save to, also when the run is interrupted.
            every: seconds between two saves.
            points: the number of intervals in `Regret.curve`, spaced evenly in log rounds. Each point solves for the
                best decision so far. 0 records no curve.
        """
        if rounds < 1:
            raise ValueError(f"rounds must be at least 1, got {rounds}")
        if game.shape != tuple(self.learner.x.shape) or game.domain != self.learner.domain:
            raise ValueError(f"the learner is {self.learner!r}, and the game has {game.shape} and {game.domain!r}")
        file = None
        if checkpoint is not None:
            file = RunFile(Path(checkpoint), self._name(game, exact), every, self._state_dict)
            if (saved := file.load()) is not None:
                self._load_state_dict(saved)
        if self._best is None:
            self._play(game, rounds, progress, file, 0 if exact else points)
            best = game.best(rounds, self._gradients)
            if not exact:
                return self.regret(best)
            fresh = copy.deepcopy(self._fresh)
            self.learner.scheme, self.learner.x, self.learner.rounds = fresh.scheme, fresh.x, 0
            self._begin(best.x, best)
            self._best_of = rounds
        assert self._best is not None
        if rounds != self._best_of:
            raise ValueError(
                f"rounds must be {self._best_of}, which X* was computed for, got {rounds}: start a new run"
            )
        self._play(game, rounds, progress, file, points)
        return self.regret(self._best)

    def _name(self, game: Game, exact: bool) -> str:
        """Distinguishes this run from others, so that no run is resumed from another's checkpoint."""
        geometries = ", ".join(map(str, self._bounds_for)) or "no further geometry"
        passes = "two passes" if exact else "one pass"
        return f"{game!r}, {self._fresh!r} from {fingerprint(self._x1)}, bounds for {geometries}, {passes}"

    def _play(self, game: Game, rounds: int, progress: ProgressBar | None, file: RunFile | None, points: int) -> None:
        start, stops = self.rounds, {round(rounds ** (i / points)) for i in range(points + 1)} if points else set()
        if start > rounds:
            raise ValueError(f"rounds must be at least the {start} already played, got {rounds}: start a new run")
        turns: Iterable[int] = range(start, rounds)
        if progress is not None:
            turns = progress(turns, initial=start, total=rounds)
        try:
            with DeferredInterrupt() as interrupt:
                for t in turns:
                    self.record(*game.loss(t, self.learner.x))
                    if t + 1 in stops:
                        self._curve.append(self.regret(game.best(t + 1, self._gradients)).point())
                    if file is not None and t == start:
                        file.check()
                    if file is not None and t % 64 == 0:
                        file.save_if_due()
                    interrupt.raise_if_pending()
        finally:
            if file is not None and self._is_whole:
                file.save()

    def regret(self, best: Solution) -> Regret:
        """The regret against a fixed decision, and all inequalities with that decision as X*."""
        learner, last = self.learner, self.learner.proximal
        if self._first is None or last is None:
            raise ValueError("no round has been played yet")
        shift = best.x - self._x1
        first, final = self._first.value(shift), last.divergence(best.x, learner.x)
        telescoped = 0.5 * self._quadratic - inner(shift, self._linear)  # = first + middle - last
        roots = learner.scheme.roots()
        shape = tuple(learner.x.shape)
        terms = RegretTerms(
            regret=self._loss - best.value,
            eta=learner.eta,
            first=first,
            middle=telescoped - first + final,
            last=final,
            dual=self._dual,
            delta=learner.scheme.delta,
            distance=self._largest_distance(best.x),
            diameter=learner.scheme.diameter(learner.domain, shape),
            roots=roots,
            values=learner.scheme.values(),
            fall=learner.scheme.fall,
            short=learner.scheme.short,
            absorbed=self._absorbed(best.x, roots),
            geometry=self._geometry,
        )
        return Regret(
            rounds=self.rounds,
            loss=self._loss,
            best=best,
            terms=terms,
            exact=self._is_target(best.x),
            inequalities=tuple(inequalities(terms)),
            geometry_bounds=self._geometry_bounds(learner.domain),
            curve=tuple(self._curve),
        )

    def _is_target(self, x: Tensor) -> bool:
        return self._target is not None and torch.equal(self._target, x)

    def _largest_distance(self, x: Tensor) -> float:
        if self._geometry is None:
            return math.nan
        if self._is_target(x):
            return self._distance
        assert self._squared_moves is not None
        bound = (self._geometry.squared_lengths(x - self._x1).sqrt() + self._squared_moves.sqrt()).amax()
        return min(float(bound), self.learner.scheme.diameter(self.learner.domain, x.shape))

    def _absorbed(self, x: Tensor, roots: Tensor | None) -> float:
        if roots is None or self._geometry is None:
            return math.nan
        squares = self._geometry.squared_lengths(x - self.learner.x)
        return inner(roots, squares) if roots.shape == squares.shape else math.nan

    def _geometry_bounds(self, domain: Domain) -> dict[str, float]:
        shape = tuple(self._x1.shape)
        return {
            str(geometry): math.sqrt(2) * domain.diameter(geometry, shape) * float(squares.sqrt().sum())
            for geometry, squares in zip(self._bounds_for, self._squares, strict=True)
        }

    # ------------------------------------------------------------------------------------------------------ its state

    _SUMS = (
        "_distance",
        "_loss",
        "_dual",
        "_quadratic",
        "_linear",
        "_gradients",
        "_first",
        "_squared_moves",
        "_squares",
    )
    _KEPT = ("_target", "_best", "_best_of", "_curve", *_SUMS)

    def _state_dict(self) -> dict[str, Any]:
        kept = {name: getattr(self, name) for name in self._KEPT}
        return {**kept, "learner": self.learner.state_dict(), "last": self.learner.proximal}

    def _load_state_dict(self, state: dict[str, Any]) -> None:
        for name in self._KEPT:
            setattr(self, name, state[name])
        self.learner.load_state_dict(state["learner"])
        self.learner.proximal = state["last"]
