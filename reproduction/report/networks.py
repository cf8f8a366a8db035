"""The section on stacked MLPs: both settings and all controls."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from matrix_adagrad.pages.document import Axis, Figure, Line, Panel, Section, Table
from matrix_adagrad.pages.tables import finite
from reproduction import mlp
from reproduction.evidence import Evidence
from reproduction.mlp import OPTIMIZERS
from reproduction.sweep import EPS, LRS

__all__ = ["section"]

FIT = "loss / loss of the best linear fit"
BAND = "The line is the median over seeds. The band spans the lower to the upper quartile."
LINEAR = "best linear fit"


def section(evidence: Evidence) -> Section:
    """All results on the MLPs."""
    figures = [_depths(evidence), *(_curves(evidence, "A", EPS[0], (lr,)) for lr in LRS)]
    if evidence.size.b_seeds:
        figures += [_curves(evidence, "B", eps, LRS) for eps in EPS]
    return Section(
        "mlp",
        "Stacked MLPs of variable depth (§5.2, Figs. 2 and 3)",
        (
            "640 samples of noise, 20 inputs, 5 outputs, hidden layers of width 20, no normalisation, no residuals, "
            "β₁ = β₂ = 0.9, learning rates 0.01 and 0.001. A network counts as trained if it fits its training data "
            "better than the best linear fit to the same seed's data.",
            "Setting A: tanh, Xavier normal weights, batches of 64, 100 epochs, eps 1e-8. Setting B: ReLU, PyTorch's "
            "default initialisation, 1200 steps on all samples, eps 1e-8 and 1e-16. All optimizers use the same eps.",
            "There are two controls. First, the sum of squares over a row of 20 divides the step by about √20. So "
            "Adam is also run with lr/√width, and row-wise scaling with the mean of squares, which gives steps the "
            "size of Adam's. Second, biases, which are vectors, are scaled both entry by entry and as a whole.",
        ),
        (*figures, _table(evidence)),
    )


def _found(evidence: Evidence, setting: str, eps: float, depth: int, lr: float) -> Iterator[tuple[str, mlp.Result]]:
    for optimizer in OPTIMIZERS:
        if (result := evidence.networks(setting, eps, depth, lr, optimizer)) is not None:
            yield optimizer, result


def _depths_of(evidence: Evidence, setting: str) -> tuple[int, ...]:
    return evidence.size.depths if setting == "A" else evidence.size.b_depths


def _curves(evidence: Evidence, setting: str, eps: float, lrs: tuple[float, ...]) -> Figure:
    panels = []
    for lr in lrs:
        for depth in _depths_of(evidence, setting):
            lines = [_curve(name, result) for name, result in _found(evidence, setting, eps, depth, lr)]
            if lines:
                reference = Line(LINEAR, (lines[0].x[0], lines[0].x[-1]), (1.0, 1.0), reference=True)
                title = f"{depth} layers" + (f", lr {lr}" if len(lrs) > 1 else "")
                panels.append(Panel(title, (*lines, reference)))
    name = f"mlp-{setting.lower()}-" + (f"{lrs[0]}" if len(lrs) == 1 else f"eps-{eps:g}")
    which = f"setting {setting}, " + (f"lr {lrs[0]}" if len(lrs) == 1 else f"eps {eps:g}")
    seeds = evidence.size.seeds if setting == "A" else evidence.size.b_seeds
    return Figure(
        name,
        f"Training loss in {which}",
        f"Curves of training loss divided by the best linear fit's, for each optimizer and depth, in {which}. If a "
        "curve stays at 1 or above, the network learned nothing beyond a linear fit. The table below has the numbers.",
        f"{seeds} seeds. {BAND} The loss is measured on the batches.",
        Axis("% of the run"),
        Axis(FIT, floor=0.2, ceiling=1.3),
        tuple(panels),
        "layers",
        max(number for number, panel in enumerate(panels) if f"{lrs[0]}" in panel.title or len(lrs) == 1),
    )


def _curve(name: str, result: mlp.Result) -> Line:
    columns = list(
        zip(*[[loss / fit for loss in c] for c, fit in zip(result.curves, result.linear, strict=True)], strict=True)
    )
    x = tuple(100 * (k + 1) / len(columns) for k in range(len(columns)))
    low, middle, high = zip(*[_quartiles(column) for column in columns], strict=True)
    return Line(name, x, middle, low, high)


def _quartiles(values: tuple[float, ...]) -> tuple[float | None, float | None, float | None]:
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return finite(low), finite(middle), finite(high)


def _depths(evidence: Evidence) -> Figure:
    """The final loss versus depth."""
    panels = []
    for setting, eps in (("A", EPS[0]), ("B", EPS[0]), ("B", EPS[1])):
        for lr in LRS:
            lines: dict[str, list[tuple[int, tuple[float | None, ...]]]] = {}
            for depth in _depths_of(evidence, setting):
                for name, result in _found(evidence, setting, eps, depth, lr):
                    ratios = evidence.ratios(result)
                    lines.setdefault(name, []).append((depth, _quartiles(tuple(ratios))))
            drawn = [_through(name, points) for name, points in lines.items() if len(points) > 1]
            if drawn:
                depths = drawn[0].x
                reference = Line(LINEAR, (depths[0], depths[-1]), (1.0, 1.0), reference=True)
                which = f"setting {setting}, lr {lr}" + (f", eps {eps:g}" if setting == "B" else "")
                panels.append(Panel(which, (*drawn, reference)))
    said = [
        f"{name} {statistics.median(evidence.ratios(r)):.2f}"
        for name, r in _found(evidence, "A", EPS[0], max(evidence.size.depths), LRS[0])
    ]
    return Figure(
        "mlp-depth",
        "How well networks train, by depth",
        "Final training loss divided by the best linear fit's, versus the number of layers. At "
        f"{max(evidence.size.depths)} layers in setting A with lr 0.01 the medians are: {', '.join(said)}.",
        f"Measured on all samples after the last step. Lower is better. {BAND}",
        Axis("layers"),
        Axis(FIT, floor=0.2, ceiling=1.2),
        tuple(panels),
        "setting",
    )


def _through(name: str, points: list[tuple[int, tuple[float | None, ...]]]) -> Line:
    low, middle, high = zip(*[quartiles for _, quartiles in points], strict=True)
    return Line(name, tuple(depth for depth, _ in points), middle, low, high)


def _table(evidence: Evidence) -> Table:
    rows = []
    for setting, eps in (("A", EPS[0]), ("B", EPS[0]), ("B", EPS[1])):
        for lr in LRS:
            for depth in _depths_of(evidence, setting):
                for name, result in _found(evidence, setting, eps, depth, lr):
                    ratios = evidence.ratios(result)
                    below = sum(ratio < 1 for ratio in ratios)
                    rise = statistics.fmean(evidence.fluctuations(result))
                    rows.append(
                        (
                            *(setting, f"{eps:g}", f"{lr}", depth, name),
                            f"{statistics.median(ratios):.3f}",
                            f"{below} of {len(ratios)}",
                            str(evidence.gain(result)),
                            f"{rise:.4f}",
                        )
                    )
    return Table(
        "mlp-all",
        "Every cell, with its controls",
        f"{FIT.capitalize()}, median over seeds; how many seeds end below the linear fit; the gain, 1 minus that "
        "ratio, with its 95 % interval over seeds; and the mean rise of log loss from one hundredth of the run to "
        "the next, in the second half.",
        ("setting", "eps", "lr", "layers", "optimizer", "loss / linear", "below it", "gain", "mean rise"),
        tuple(rows),
    )
