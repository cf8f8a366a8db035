"""A regret run from the command line: a game, a learner, the bounds, and the trade-off as a picture."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

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

__all__ = ["GAMES", "LEARNERS", "Config", "draw", "run"]

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
    """Play. ``how`` is passed on to `RegretMeter.play`: a progress bar, a checkpoint."""
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


def draw(tradeoff: TradeOff, path: Path) -> None:
    """The trade-off (§4.2): the two terms of the bound against the scale, and the scales that were used."""
    from matplotlib import pyplot as plt
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    seen = tradeoff.squares > 0  # a block without gradients has no optimal scale
    used, optimal = tradeoff.used[seen], tradeoff.optimal[seen]
    ratio = used / optimal
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
    low, high = min(0.2, float(ratio.min()) / 2), max(5.0, 2 * float(ratio.max()))
    scales = torch.logspace(math.log10(low), math.log10(high), 200, dtype=torch.float64)
    left.plot(scales, scales / 2, "--", color="tab:orange", label="cost of the geometry's change, grows with s")
    left.plot(scales, 1 / (2 * scales), "--", color="tab:green", label="cost of the gradients, falls with s")
    left.plot(scales, (scales + 1 / scales) / 2, color="tab:blue", label="their sum")
    left.plot(
        ratio, (ratio + 1 / ratio) / 2, "o", color="black", markersize=4, label=f"scales used, blocks: {len(ratio):,}"
    )
    left.set(xscale="log", yscale="log", xlabel="scale s over the best one, s*", ylabel="bound over its least value")
    for axis, ticks in ((left.xaxis, (0.2, 0.5, 1, 2, 5)), (left.yaxis, (0.1, 0.2, 0.5, 1, 2))):
        axis.set_ticks(ticks, map(str, ticks))
        axis.set_minor_locator(NullLocator())
    left.set_title("The bound of a block against its scale", loc="left", fontsize=11)
    left.legend(frameon=False, fontsize=8)
    ends = torch.cat([used, optimal])
    span = (float(ends.min()) / 2, 2 * float(ends.max()))
    right.plot(span, span, color="lightgray", zorder=0, label="the best scale in hindsight")
    right.plot(optimal, used, "o", color="black", markersize=4, label="the scale used in the last round")
    right.set(xscale="log", yscale="log", xlim=span, ylim=span)
    right.set(xlabel="s*, the best in hindsight", ylabel="s, used in the last round")
    right.set_title("Scales of the blocks", loc="left", fontsize=11)
    right.legend(frameon=False, fontsize=8)
    for axis in (right.xaxis, right.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.set_minor_locator(NullLocator())
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    plt.close(figure)
