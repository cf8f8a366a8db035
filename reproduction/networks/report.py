"""The section on stacked MLPs: all settings, all controls, and the ladders of learning rates."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator

from matrix_adagrad.pages.document import Axis, Figure, Line, Panel, Section, Table
from matrix_adagrad.pages.tables import finite
from reproduction.networks.evidence import Evidence, Limit, Networks
from reproduction.networks.mlp import OPTIMIZERS, SETTINGS, WIDTH
from reproduction.networks.sweep import ADAM, CLIMBERS, LRS, MEAN, ROW, SMALL_ADAM

__all__ = ["section"]

FIT = "loss / loss of the best linear fit"
BAND = "The line is the median over seeds. The band spans the lower to the upper quartile."
LINEAR = "best linear fit"
LADDER = (ADAM, SMALL_ADAM, ROW, MEAN)


def section(evidence: Evidence) -> Section:
    """All results on the MLPs."""
    figures = [_depths(evidence), _ladders(evidence), _limits(evidence)]
    figures += [_curves_in_a(evidence, lr) for lr in LRS]
    if len(evidence.settings) > 1:
        figures.append(_curves_elsewhere(evidence))
    tables = [_limits_table(evidence), *_unequal(evidence), _settings(evidence), _table(evidence)]
    return Section(
        "networks",
        "Stacked MLPs of variable depth (§5.2, Figs. 2 and 3)",
        (
            "640 samples of noise, 20 inputs, 5 outputs, hidden layers of width 20, no normalisation, no residuals, "
            "β₁ = β₂ = 0.9, learning rates 0.01 and 0.001. A network counts as trained if it fits its training data "
            "better than the best linear fit to the same seed's data.",
            "The paper leaves the rest open. Setting A: tanh, Xavier normal weights, batches of 64, 1000 steps (100 "
            "epochs), eps 1e-8. Its variants change one thing (Kaiming's start, which is meant for ReLU, comes with "
            "ReLU). Setting B: ReLU, PyTorch's default initialisation, 1200 steps on all samples, eps 1e-8 or 1e-16. "
            "In each setting all optimizers use the same eps.",
            "There are two controls. First, the sum of squares over a row of 20 divides the step by about √20. So "
            "Adam is also run with lr/√width, and row-wise scaling with the mean of squares, which gives steps the "
            "size of Adam's. Second, biases, which are vectors, are scaled both entry by entry and as a whole.",
            "On a ladder, the learning rate climbs by the fourth root of the width, 2.1, from rung to rung. So Adam at "
            "lr/√width is Adam two rungs below. The question is how far up networks still train.",
        ),
        (*figures, *tables),
    )


def _found(evidence: Evidence, setting: str, depth: int, lr: float) -> Iterator[tuple[str, Networks]]:
    for optimizer in OPTIMIZERS:
        if (networks := evidence.networks(setting, depth, lr, optimizer)) is not None:
            yield optimizer, networks


# ------------------------------------------------------------------------------------------------------- loss curves


def _curves_in_a(evidence: Evidence, lr: float) -> Figure:
    panels = [(f"{depth} layers", list(_found(evidence, "A", depth, lr))) for depth in evidence.size.depths]
    return _curves(f"mlp-a-{lr}", f"setting A, lr {lr}", panels, evidence.size.seeds, "layers", len(panels) - 1)


def _curves_elsewhere(evidence: Evidence) -> Figure:
    panels = [(f"setting {name}", list(_found(evidence, name, 25, LRS[0]))) for name in evidence.size.settings]
    which = f"the other settings, 25 layers, lr {LRS[0]}"
    return _curves("mlp-others", which, panels, evidence.size.other_seeds, "setting", 0)


def _curves(
    name: str, which: str, found: list[tuple[str, list[tuple[str, Networks]]]], seeds: int, selector: str, start: int
) -> Figure:
    reference = Line(LINEAR, (1.0, 100.0), (1.0, 1.0), reference=True)
    return Figure(
        name,
        f"Training loss in {which}",
        f"Curves of training loss divided by the best linear fit's, for each optimizer, in {which}. If a curve stays "
        "at 1 or above, the network learned nothing beyond a linear fit. The table below has the numbers.",
        f"{seeds} seeds. {BAND} The loss is measured on the batches.",
        Axis("% of the run"),
        Axis(FIT, floor=0.0, ceiling=1.3),
        tuple(Panel(title, (*(_curve(*pair) for pair in pairs), reference)) for title, pairs in found),
        selector,
        start,
    )


def _curve(name: str, networks: Networks) -> Line:
    scaled = [[loss / fit for loss in curve] for curve, fit in zip(networks.curves, networks.linear, strict=True)]
    columns = list(zip(*scaled, strict=True))
    return _through(name, [(100 * (k + 1) / len(columns), column) for k, column in enumerate(columns)])


def _through(name: str, points: Iterable[tuple[float, Iterable[float]]]) -> Line:
    """A line through the medians, with a band between the quartiles."""
    x, values = zip(*points, strict=True)
    quartiles = [statistics.quantiles(each, n=4, method="inclusive") for each in values]
    low, middle, high = (tuple(map(finite, each)) for each in zip(*quartiles, strict=True))
    return Line(name, x, middle, low, high)


# ---------------------------------------------------------------------------------------------------- depth and rate


def _depths(evidence: Evidence) -> Figure:
    """The final loss versus depth."""
    panels = []
    for setting, lr in [*(("A", lr) for lr in LRS), *((name, LRS[0]) for name in evidence.size.settings)]:
        lines: dict[str, list[tuple[float, list[float]]]] = {}
        depths = evidence.size.depths if setting == "A" else (15, 22, 25)
        for depth in depths:
            for name, networks in _found(evidence, setting, depth, lr):
                lines.setdefault(name, []).append((depth, networks.ratios))
        drawn = [_through(name, points) for name, points in lines.items()]
        reference = Line(LINEAR, (depths[0], depths[-1]), (1.0, 1.0), reference=True)
        panels.append(Panel(f"setting {setting}, lr {lr}", (*drawn, reference)))
    deepest = max(evidence.size.depths)
    said = [
        f"{name} {statistics.median(networks.ratios):.2f}" for name, networks in _found(evidence, "A", deepest, LRS[0])
    ]
    return Figure(
        "mlp-depth",
        "How well networks train, by depth",
        f"Final training loss divided by the best linear fit's, versus the number of layers. At {deepest} layers in "
        f"setting A with lr {LRS[0]} the medians are: {', '.join(said)}.",
        f"Measured on all samples after the last step. Lower is better. {BAND}",
        Axis("layers"),
        Axis(FIT, floor=0.0, ceiling=1.2),
        tuple(panels),
        "setting",
    )


def _ladders(evidence: Evidence) -> Figure:
    """The final loss versus the learning rate."""
    panels = []
    for setting, depth in evidence.ladders:
        rates = evidence.size.rates(depth)
        ladders = {name: evidence.ladder(setting, depth, name).items() for name in LADDER}
        lines = [
            _through(name, [(lr, networks.ratios) for lr, networks in ladder if lr < 1.01 * rates[-1]])
            for name, ladder in ladders.items()
        ]
        reference = Line(LINEAR, (rates[0], rates[-1]), (1.0, 1.0), reference=True)
        panels.append(Panel(f"setting {setting}, {depth} layers", (*lines, reference)))
    return Figure(
        "mlp-ladder",
        "How well networks train, by learning rate",
        "Final training loss divided by the best linear fit's, versus the learning rate, for each depth. The table of "
        "the largest learning rates below has the numbers.",
        f"Measured on all samples after the last step. Lower is better. Adam at lr/√width is Adam's line moved to the "
        f"right, onto the rates at which the sum over a row takes steps of that size. {BAND}",
        Axis("learning rate", log=True),
        Axis(FIT, floor=0.0, ceiling=1.2),
        tuple(panels),
        "layers",
        len(panels) - 1,
    )


def _limits(evidence: Evidence) -> Figure:
    """The largest learning rate versus depth."""
    panels = []
    depths = tuple(evidence.size.rungs)
    for setting in evidence.size.ladders:
        limits = {name: [evidence.limit(setting, depth, name).trains or None for depth in depths] for name in CLIMBERS}
        lines = [Line(name, depths, tuple(found)) for name, found in limits.items()]
        panels.append(Panel(f"setting {setting}", tuple(lines)))
    return Figure(
        "mlp-limits",
        "The largest learning rate at which networks train, by depth",
        "The largest learning rate at which networks train versus the number of layers, for Adam and for row-wise "
        "scaling with the sum and with the mean of squares. The table below has the numbers.",
        "The mean of squares gives steps of Adam's size. The sum gives steps that are √20 = 4.5 times smaller.",
        Axis("layers"),
        Axis("largest learning rate", log=True),
        tuple(panels),
        "setting",
    )


def _limits_table(evidence: Evidence) -> Table:
    rows = []
    for setting, depth in evidence.ladders:
        for name in CLIMBERS:
            limit, smaller = evidence.limit(setting, depth, name), WIDTH**0.5 if name == ROW else 1.0
            step = Limit(limit.trains / smaller, limit.possible / smaller, limit.top / smaller)
            rates = evidence.size.rates(depth)
            ladder = f"{rates[0]:.2g} to {rates[-1]:.2g}"
            rows.append((setting, depth, ladder, name, str(limit), str(step)))
    return Table(
        "mlp-limits-table",
        "The largest learning rates",
        "Up to which learning rate of the ladder networks train; and the same as a size of steps: divided by √20 where "
        "the sum over a row makes them smaller. Not decided: the 95 % interval of the gain over seeds contains 0.",
        ("setting", "layers", "ladder", "optimizer", "trains", "as a size of steps"),
        tuple(rows),
    )


# ------------------------------------------------------------------------------------------------------------ tables


def _unequal(evidence: Evidence) -> Iterator[Table]:
    """Adam with the usual eps, and rows with a smaller one."""
    rows = []
    for depth in (22, 25):
        for lr in LRS:
            adam = evidence.networks("B", depth, lr, ADAM)
            row = evidence.networks("B with eps 1e-16", depth, lr, ROW)
            if adam and row:
                rows.append((depth, f"{lr}", adam.below, str(adam.gain), row.below, str(row.gain)))
    if rows:
        yield Table(
            "mlp-unequal-eps",
            "With unequal eps",
            "In setting B, Adam with eps 1e-8 compared with Row-wise Momentum with eps 1e-16: how many seeds end below "
            "the linear fit, and the gain over it. This draws the paper's Figures 2 and 3, and it is not fair. At the "
            "start, most gradients of hidden weights are smaller than 1e-8 here, and so are most rows of them. There "
            "eps sets the size of a step, whatever shares a scale. No verdict counts this comparison: the claims "
            "compare the two at the same eps.",
            ("layers", "lr", "Adam, eps 1e-8", "gain", "rows, eps 1e-16", "gain of rows"),
            tuple(rows),
        )


def _settings(evidence: Evidence) -> Table:
    rows = []
    for name in evidence.settings:
        setting = SETTINGS[name]
        start = f"{setting.activation}, {setting.start}"
        seeds = evidence.size.seeds if name == "A" else evidence.size.other_seeds
        corrected = "yes" if setting.bias_correction else "no"
        rows.append((name, start, setting.batch, setting.steps, f"{setting.eps:g}", corrected, seeds))
    return Table(
        "mlp-settings",
        "The settings",
        "What the paper leaves open. In each setting, all optimizers use the same values.",
        ("setting", "activation and start", "batch", "steps", "eps", "bias correction", "seeds"),
        tuple(rows),
    )


def _table(evidence: Evidence) -> Table:
    rows = []
    for setting in evidence.settings:
        for depth in sorted({15, 22, 25, *evidence.size.depths}):
            rungs = evidence.size.rates(depth) if depth in evidence.size.rungs else ()
            for lr in sorted({*LRS, *rungs}, reverse=True):
                for name, networks in _found(evidence, setting, depth, lr):
                    ratio = f"{statistics.median(networks.ratios):.3f}"
                    rise = f"{statistics.fmean(networks.fluctuations):.4f}"
                    rows.append((setting, depth, f"{lr:.3g}", name, ratio, networks.below, str(networks.gain), rise))
    return Table(
        "mlp-all",
        "Every cell, with its controls",
        f"{FIT.capitalize()}, median over seeds; how many seeds end below the linear fit; the gain, 1 minus that "
        "ratio, with its 95 % interval over seeds; and the mean rise of log loss from one hundredth of the run to "
        "the next, in the second half.",
        ("setting", "layers", "lr", "optimizer", "loss / linear", "below it", "gain", "mean rise"),
        tuple(rows),
    )
