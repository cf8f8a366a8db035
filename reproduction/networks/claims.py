"""The paper's claims about stacked MLPs (§5.2, App. G)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from matrix_adagrad.intervals import interval
from reproduction.networks.evidence import Evidence, Networks
from reproduction.networks.sweep import ADAM, COLUMN, LRS, MEAN, ROW, SMALL_ADAM, WHOLE
from reproduction.verdict import Check, Claim

__all__ = ["CLAIMS"]

LEVEL = 0.02  # of the linear fit's loss: smaller differences do not matter
GAIN = "the mean over seeds of 1 - loss / (loss of the seed's best linear fit) has a 95 % interval"
TRAINS, FAILS = f"trains: {GAIN} above 0", f"fails: {GAIN} at or below 0"
RISE = "the mean rise of log loss from one hundredth of the run to the next, in its second half,"
LARGEST = (
    "on a ladder of learning rates, each the fourth root of the width (2.1) times the one before, the largest at which"
)
UNEQUAL = "with unequal eps in setting B, 1e-8 for Adam and 1e-16 for rows"

Find = Callable[..., Networks | None]
Checks = Callable[[Evidence], Iterator[Check]]


def _settings(evidence: Evidence, lr: float, depth: int) -> Iterator[tuple[str, Find]]:
    """The settings run at this learning rate and depth, each with a function that finds an optimizer's networks."""
    for setting in evidence.settings:

        def find(optimizer: str, depth: int = depth, lr: float = lr, setting: str = setting) -> Networks | None:
            return evidence.networks(setting, depth, lr, optimizer)

        if find(ADAM) is not None:
            yield f"setting {setting}", find


def _trains(optimizer: str, lr: float, depth: int, expected: bool = True) -> Checks:
    """Check that the gain over the linear fit is positive, or that it is not."""

    def checks(evidence: Evidence) -> Iterator[Check]:
        for name, find in _settings(evidence, lr, depth):
            if networks := find(optimizer):
                trains = networks.trains
                yield Check(name, None if trains is None else trains is expected, str(networks))
        if not expected:
            yield from _unequal(evidence, depth, lr, lr)

    return checks


def _unequal(evidence: Evidence, depth: int, adam_lr: float, row_lr: float) -> Iterator[Check]:
    """The comparison that draws the paper's figures. It is not fair, so it does not count."""
    adam = evidence.networks("B", depth, adam_lr, ADAM)
    row = evidence.networks("B with eps 1e-16", depth, row_lr, ROW)
    if adam and row:
        yield Check(UNEQUAL, (adam.trains, row.trains) == (False, True), f"Adam: {adam}; rows: {row}", counts=False)


Run = tuple[str, float, int]  # an optimizer, a learning rate, a depth


def _rises_more(*pairs: tuple[Run, Run]) -> Checks:
    """Check that in each pair the first run's loss rises more from point to point than the second's."""

    def checks(evidence: Evidence) -> Iterator[Check]:
        for name, find in _settings(evidence, *pairs[0][0][1:]):
            found = []
            for wild, calm in pairs:
                results = [find(optimizer, depth, lr) for optimizer, lr, depth in (wild, calm)]
                if results[0] and results[1]:
                    rises = zip(*(networks.fluctuations for networks in results if networks), strict=True)
                    found.append((wild, calm, interval(left - right for left, right in rises)))
            if len(found) == len(pairs):
                signs = {by.is_positive for *_, by in found}
                holds = True if signs == {True} else False if False in signs else None
                yield Check(
                    name, holds, "; ".join(f"{_label(a)} rises more than {_label(b)} by {by}" for a, b, by in found)
                )

    return checks


def _label(run: Run) -> str:
    optimizer, lr, depth = run
    return f"{optimizer} ({depth} layers, lr {lr})"


def _lower_loss(evidence: Evidence) -> Iterator[Check]:
    for name, find in _settings(evidence, 0.001, 15):
        adam, row = find(ADAM), find(ROW)
        if adam and row:
            by = adam.excess(row)
            yield Check(name, by.is_positive, f"Adam's loss minus rows', relative to the linear fit's: {by}")


def _matched(evidence: Evidence) -> Iterator[tuple[str, Networks, Networks, Networks]]:
    """The settings where Adam or rows train at 25 layers and lr 0.01, with equal step sizes; and rows at Adam's."""
    for name, find in _settings(evidence, 0.01, 25):
        adam, row, mean = find(SMALL_ADAM), find(WHOLE), find(MEAN)
        if adam and row and mean and (adam.trains or row.trains):
            yield name, adam, row, mean


def _differs_from_a_learning_rate(evidence: Evidence) -> Iterator[Check]:
    for name, adam, row, _ in _matched(evidence):
        by = adam.excess(row)
        is_same = max(-by.low, by.high) < LEVEL
        differs = False if is_same else True if by.low > 0 or by.high < 0 else None
        yield Check(name, differs, f"loss of Adam minus that of rows: {by}")


def _beats_a_learning_rate(evidence: Evidence) -> Iterator[Check]:
    for name, adam, row, mean in _matched(evidence):
        by = adam.excess(row)
        other = f"rows at Adam's step size (the mean): {mean}"
        yield Check(name, by.is_positive, f"loss of Adam minus that of rows: {by}; {other}")


def _ten_times(evidence: Evidence) -> Iterator[Check]:
    for name, find in _settings(evidence, 0.01, 25):
        row, adam = find(ROW), find(ADAM, lr=0.001)
        if row and adam:
            refuted = row.trains is False or adam.trains is True
            holds = False if refuted else None if None in (row.trains, adam.trains) else True
            yield Check(name, holds, f"rows at 0.01: {row}; Adam at 0.001: {adam}")
    yield from _unequal(evidence, 25, adam_lr=0.001, row_lr=0.01)


def _climbs_higher(rows: str, *controls: str) -> Checks:
    """Check that rows train at a larger learning rate than Adam does."""

    def checks(evidence: Evidence) -> Iterator[Check]:
        for setting, depth in evidence.ladders:
            limits = {name: evidence.limit(setting, depth, name) for name in (ADAM, rows, *controls)}
            if limits[ADAM].possible or limits[rows].possible:
                figures = "; ".join(f"{name} trains {limit}" for name, limit in limits.items())
                yield Check(f"setting {setting}, {depth} layers", limits[rows].exceeds(limits[ADAM]), figures)

    return checks


def _columns_alike(evidence: Evidence) -> Iterator[Check]:
    words = {True: "train", False: "fail", None: "are not decided"}
    for setting in evidence.settings:
        alike, figures = [], []
        for depth in (15, 25):
            for lr in LRS:
                column, row = (evidence.networks(setting, depth, lr, name) for name in (COLUMN, ROW))
                if column and row:
                    said = (
                        f"{who} {words[found.trains]} ({found.below})"
                        for who, found in (("columns", column), ("rows", row))
                    )
                    figures.append(f"{depth} layers, lr {lr}: {', '.join(said)}")
                    if None not in (column.trains, row.trains):
                        alike.append(column.trains is row.trains)
        if figures:
            yield Check(f"setting {setting}", all(alike) if alike else None, "; ".join(figures))


CLAIMS = (
    Claim(
        "entries-oscillate-at-15",
        "§5.2, Fig. 2",
        "At 15 layers and lr 0.01, entry-wise scaling is highly unstable, with pronounced oscillations of the loss; "
        "row-wise scaling is not.",
        f"{RISE} is higher for Adam than for Row-wise Momentum: the 95 % interval over seeds is above 0",
        _rises_more(((ADAM, 0.01, 15), (ROW, 0.01, 15))),
    ),
    Claim(
        "entries-fail-at-22",
        "§5.2",
        "At 22 layers and lr 0.01, entry-wise scaling already fails.",
        f"Adam {FAILS}",
        _trains(ADAM, 0.01, 22, expected=False),
    ),
    Claim(
        "entries-fail-at-25",
        "§5.2, Fig. 2",
        "At 25 layers and lr 0.01, entry-wise scaling is untrainable.",
        f"Adam {FAILS}",
        _trains(ADAM, 0.01, 25, expected=False),
    ),
    Claim(
        "rows-train-at-25",
        "§5.2, Fig. 2",
        "At 25 layers and lr 0.01, row-wise scaling trains.",
        f"Row-wise Momentum {TRAINS}",
        _trains(ROW, 0.01, 25),
    ),
    Claim(
        "rows-fluctuate-at-25",
        "§5.2",
        "Row-wise scaling has increased loss fluctuations at 25 layers.",
        f"{RISE} is higher at 25 layers than at 15: the 95 % interval over seeds is above 0",
        _rises_more(((ROW, 0.01, 25), (ROW, 0.01, 15))),
    ),
    Claim(
        "not-a-learning-rate",
        "§5.2",
        "Row-wise scaling has different dynamics from entry-wise scaling, not merely a different learning rate.",
        "where either trains at 25 layers: the loss of Adam at lr/√width minus that of Row-wise Momentum with whole "
        "biases, which moves weights and biases by as much, has a 95 % interval over seeds that does not contain 0. "
        f"✗: an interval inside of ±{LEVEL:.0%} of the linear fit's loss, so that a relevant difference is ruled out",
        _differs_from_a_learning_rate,
    ),
    Claim(
        "better-than-a-learning-rate",
        "§5.2",
        "Its advantage, that deeper networks train, is not due to a smaller learning rate.",
        "where either trains at 25 layers: the same interval is above 0",
        _beats_a_learning_rate,
    ),
    Claim(
        "calmer-at-0.001",
        "App. G, Fig. 3",
        "At 15 layers both methods fluctuate less with lr 0.001.",
        f"{RISE} is higher at lr 0.01 than at 0.001: the 95 % interval over seeds is above 0 for both",
        _rises_more(
            ((ADAM, 0.01, 15), (ADAM, 0.001, 15)),
            ((ROW, 0.01, 15), (ROW, 0.001, 15)),
        ),
    ),
    Claim(
        "rows-lower-at-15",
        "App. G, Fig. 3",
        "At 15 layers and lr 0.001, row-wise scaling reaches a lower training loss than Adam.",
        "the 95 % interval over seeds of Adam's loss minus Row-wise Momentum's is above 0",
        _lower_loss,
    ),
    Claim(
        "entries-fail-at-0.001",
        "§5.2, App. G, Fig. 3",
        "At 25 layers Adam fails with lr 0.001 too: a large learning rate is not the reason.",
        f"Adam {FAILS}",
        _trains(ADAM, 0.001, 25, expected=False),
    ),
    Claim(
        "rows-train-at-0.001",
        "App. G, Fig. 3",
        "At 25 layers and lr 0.001, row-wise scaling trains.",
        f"Row-wise Momentum {TRAINS}",
        _trains(ROW, 0.001, 25),
    ),
    Claim(
        "ten-times",
        "App. G",
        "Row-wise scaling trains at a learning rate ten times as large as one at which entry-wise scaling fails.",
        f"at 25 layers Row-wise Momentum at 0.01 {TRAINS}; Adam at 0.001 {FAILS}",
        _ten_times,
    ),
    Claim(
        "larger-rates",
        "§5.2, App. G",
        "Row-wise scaling trains at larger learning rates than entry-wise scaling.",
        f"{LARGEST} Row-wise Momentum trains is larger than that of Adam",
        _climbs_higher(ROW, SMALL_ADAM),
    ),
    Claim(
        "larger-steps",
        "§5.2, App. G",
        "That is a property of the scaling, rather than of steps which are smaller at the same learning rate.",
        f"{LARGEST} Row-wise Momentum with the mean of squares trains, whose steps are as large as Adam's, is larger "
        "than that of Adam",
        _climbs_higher(MEAN),
    ),
    Claim(
        "columns-alike",
        "§5.2, footnote",
        "Column-wise scaling gives similar results.",
        "the same pattern: at 15 and 25 layers and at both learning rates, Column-wise Momentum trains wherever "
        "Row-wise Momentum trains, and fails wherever it fails, as far as both are decided",
        _columns_alike,
    ),
)
