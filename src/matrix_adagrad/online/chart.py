"""A chart of a run: its regret with the bounds, and the trade-off behind them. Needs matplotlib."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from matrix_adagrad.online.bounds import TradeOff
from matrix_adagrad.online.regret import Regret

__all__ = ["POINTS", "draw"]

POINTS = 24  # of the curve of the regret


def draw(result: Regret, path: Path) -> None:
    """The regret with its bounds, round by round, and the trade-off behind them (§4.2)."""
    from matplotlib import pyplot as plt

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(16, 4.6), layout="constrained")
    _draw_curve(left, result.curve)
    _draw_bound(middle, result.tradeoff)
    _draw_scales(right, result.tradeoff)
    for axes in (left, middle, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _draw_curve(axes: Any, curve: Sequence[Mapping[str, float]]) -> None:
    rounds = [point["rounds"] for point in curve]
    names = {name: f"√2 D Σ √V, {name}" for name in curve[0] if name not in ("rounds", "regret", "general bound")}
    for name, label in {**names, "general bound": "general bound (Cor. 1)"}.items():
        axes.plot(rounds, [point[name] for point in curve], "--", label=label)
    axes.plot(rounds, [point["regret"] for point in curve], "o-", color="black", markersize=3, label="regret")
    axes.set(xscale="log", yscale="log", xlabel="rounds", ylabel="regret and its bounds")
    axes.set_title("The regret and its bounds", loc="left", fontsize=11)


def _draw_bound(axes: Any, tradeoff: TradeOff) -> None:
    """The two terms of the bound by scale, and the scales that were used."""
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
    axes.set(
        xscale="log", yscale="log", xlabel="scale s relative to the best, s*", ylabel="bound relative to its minimum"
    )
    for axis, ticks in ((axes.xaxis, (0.2, 0.5, 1, 2, 5)), (axes.yaxis, (0.1, 0.2, 0.5, 1, 2))):
        axis.set_ticks(ticks, map(str, ticks))
        axis.set_minor_locator(NullLocator())
    axes.set_title("The bound of a block, by its scale", loc="left", fontsize=11)


def _draw_scales(axes: Any, tradeoff: TradeOff) -> None:
    """The scales of the last round, compared with the best ones."""
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
    """The scales used and the optimal ones, of blocks that had a gradient."""
    active = tradeoff.squares > 0
    return tradeoff.used[active], tradeoff.optimal[active]
