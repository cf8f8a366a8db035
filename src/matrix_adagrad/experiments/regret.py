"""A regret run from the command line: a game, a learner, the bounds, and a picture of both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from matrix_adagrad.domains import FrobeniusBall
from matrix_adagrad.online import (
    Adversarial,
    Completion,
    FullAdaGrad,
    Game,
    Hinge,
    Linear,
    Logistic,
    MirrorDescent,
    Motivating,
    Regret,
    RegretMeter,
    Stream,
    Trace,
    TradeOff,
)

__all__ = ["GAMES", "LEARNERS", "POINTS", "Config", "draw", "run"]

GAMES = {
    "adversarial": "linear losses by an adversary who sees a row and charges for it",
    "motivating-row": "the paper's example of §4.3: one active row a round",
    "motivating-column": "that of App. F: one active column a round",
    "linear": "linear losses with random gradients, larger in the first rows",
    "hinge": "classification of a random stream, a row a task",
    "logistic": "the same with the logistic loss",
    "completion": "entries of a random matrix of low rank, squared errors",
}
LEARNERS = {
    "row": "Row-AdaGrad",
    "column": "Column-AdaGrad",
    "entry": "AdaGrad",
    "whole": "one scale for all",
    "full-row": "the full m×m metric",
    "full-column": "the full n×n metric",
}
POINTS = 24  # of the regret's curve, if there is to be a picture
LENGTH = 20_000  # of random streams, after which they start anew


@dataclass(frozen=True)
class Config:
    """A game on an m×n matrix, on the Frobenius ball of this radius."""

    game: str = "adversarial"
    m: int = 64
    n: int = 64
    rounds: int = 10_000
    learner: str = "row"
    radius: float | None = None  # 1, and half of the largest allowed in the motivating examples
    exact: bool = False
    seed: int = 0
    delta: float | None = None  # the stabilizer of an AdaGrad scheme, 1e-8


def run(config: Config, **how: Any) -> Regret:
    """Play. ``how`` is passed on to `RegretMeter.play`: a progress bar, a checkpoint, points of a curve."""
    game = _game(config)
    learner = config.learner if not config.learner.startswith("full-") else FullAdaGrad(config.learner[5:])
    start = torch.zeros(game.shape, dtype=torch.float64)
    descent = MirrorDescent(start, learner, game.domain, delta=config.delta)
    meter = RegretMeter(descent, also=("row", "column", "entry"))
    return meter.play(game, config.rounds, exact=config.exact, **how)


def _game(config: Config) -> Game:
    m, n, seed = config.m, config.n, config.seed
    if config.game.startswith("motivating-"):
        return Motivating(m, n, config.game.removeprefix("motivating-"), config.radius or 0.0)
    ball = FrobeniusBall(1.0 if config.radius is None else config.radius)
    if config.game in ("hinge", "logistic"):
        stream = Stream.random(m, n, LENGTH, seed=seed)
        return (Hinge if config.game == "hinge" else Logistic)(stream, ball)
    if config.game == "completion":
        return Completion(Trace.random(m, n, LENGTH, seed=seed), m, n, ball)
    if config.game == "linear":
        return Linear(m, n, ball, seed=seed)
    return Adversarial(m, n, ball)


def draw(result: Regret, path: Path) -> None:
    """The regret next to its bounds, round by round, and the trade-off behind them (§4.2)."""
    from matplotlib import pyplot as plt

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(16, 4.6), layout="constrained")
    _draw_course(left, result.course)
    _draw_bound(middle, result.tradeoff)
    _draw_scales(right, result.tradeoff)
    for axes in (left, middle, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _draw_course(axes: Any, course: Sequence[Mapping[str, float]]) -> None:
    rounds = [point["rounds"] for point in course]
    names = {name: f"√2 D Σ √V, {name}" for name in course[0] if name not in ("rounds", "regret", "general bound")}
    for name, label in {**names, "general bound": "general bound (Cor. 1)"}.items():
        axes.plot(rounds, [point[name] for point in course], "--", label=label)
    axes.plot(rounds, [point["regret"] for point in course], "o-", color="black", markersize=3, label="regret")
    axes.set(xscale="log", yscale="log", xlabel="rounds", ylabel="regret, and bounds on it")
    axes.set_title("The regret and what was promised", loc="left", fontsize=11)


def _draw_bound(axes: Any, tradeoff: TradeOff) -> None:
    """The two terms of the bound against the scale, and the scales that were used."""
    from matplotlib.ticker import NullLocator

    used, optimal = _scales(tradeoff)
    ratio = used / optimal
    low, high = min(0.2, float(ratio.min()) / 2), max(5.0, 2 * float(ratio.max()))
    scales = torch.logspace(math.log10(low), math.log10(high), 200, dtype=torch.float64)
    axes.plot(scales, scales / 2, "--", color="tab:orange", label="cost of the geometry's change, grows with s")
    axes.plot(scales, 1 / (2 * scales), "--", color="tab:green", label="cost of the gradients, falls with s")
    axes.plot(scales, (scales + 1 / scales) / 2, color="tab:blue", label="their sum")
    axes.plot(
        ratio, (ratio + 1 / ratio) / 2, "o", color="black", markersize=4, label=f"scales used, blocks: {len(ratio):,}"
    )
    axes.set(xscale="log", yscale="log", xlabel="scale s over the best one, s*", ylabel="bound over its least value")
    for axis, ticks in ((axes.xaxis, (0.2, 0.5, 1, 2, 5)), (axes.yaxis, (0.1, 0.2, 0.5, 1, 2))):
        axis.set_ticks(ticks, map(str, ticks))
        axis.set_minor_locator(NullLocator())
    axes.set_title("The bound of a block against its scale", loc="left", fontsize=11)


def _draw_scales(axes: Any, tradeoff: TradeOff) -> None:
    """The scales of the last round next to the best ones."""
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    used, optimal = _scales(tradeoff)
    ends = torch.cat([used, optimal])
    span = (float(ends.min()) / 2, 2 * float(ends.max()))
    axes.plot(span, span, color="lightgray", zorder=0, label="the best scale in hindsight")
    axes.plot(optimal, used, "o", color="black", markersize=4, label="the scale used in the last round")
    axes.set(xscale="log", yscale="log", xlim=span, ylim=span)
    axes.set(xlabel="s*, the best in hindsight", ylabel="s, used in the last round")
    axes.set_title("Scales of the blocks", loc="left", fontsize=11)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.set_minor_locator(NullLocator())


def _scales(tradeoff: TradeOff) -> tuple[Tensor, Tensor]:
    """Those used and the optimal ones; a block without gradients has none."""
    seen = tradeoff.squares > 0
    return tradeoff.used[seen], tradeoff.optimal[seen]
