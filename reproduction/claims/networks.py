"""The paper's claims about stacked MLPs (§5.2, App. G)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from matrix_adagrad.intervals import interval
from reproduction import mlp
from reproduction.claims.verdict import Check, Claim
from reproduction.evidence import Evidence
from reproduction.sweep import WHOLE

__all__ = ["CLAIMS"]

ALIKE = 0.1  # of the loss of the best linear fit

GAIN = "the mean over seeds of 1 - loss / (loss of the seed's best linear fit) has a 95 % interval"
TRAINS, FAILS = f"trains: {GAIN} above 0", f"fails: {GAIN} at or below 0"
RISE = "the mean rise of log loss from one hundredth of the run to the next, in its second half,"


Networks = Callable[..., mlp.Result | None]
SETTINGS = (("setting A", "A", 1e-8), ("setting B with eps 1e-8", "B", 1e-8), ("setting B with eps 1e-16", "B", 1e-16))


def _settings(evidence: Evidence, lr: float, depth: int) -> Iterator[tuple[str, Networks]]:
    """The settings run at this learning rate and depth, each with a function that finds an optimizer's networks."""
    for name, setting, eps in SETTINGS:

        def find(
            optimizer: str, depth: int = depth, lr: float = lr, setting: str = setting, eps: float = eps
        ) -> mlp.Result | None:
            return evidence.networks(setting, eps, depth, lr, optimizer)

        if find("Row-wise Momentum") is not None:
            yield name, find


def _outcome(evidence: Evidence, result: mlp.Result) -> str:
    below = sum(ratio < 1 for ratio in evidence.ratios(result))
    return f"{below} of {len(result.losses)} seeds below the linear fit, gain {evidence.gain(result)}"


def _trains(optimizer: str, lr: float, depth: int, expected: bool = True) -> Callable[[Evidence], Iterator[Check]]:
    """Check that the gain over the linear fit is positive, or that it is not."""

    def checks(evidence: Evidence) -> Iterator[Check]:
        for name, find in _settings(evidence, lr, depth):
            if result := find(optimizer):
                trains = evidence.gain(result).is_positive
                yield Check(name, None if trains is None else trains is expected, _outcome(evidence, result))

    return checks


Run = tuple[str, float, int]  # an optimizer, a learning rate, a depth


def _rises_more(*pairs: tuple[Run, Run]) -> Callable[[Evidence], Iterator[Check]]:
    """Check that in each pair the first run's loss rises more from point to point than the second's."""

    def checks(evidence: Evidence) -> Iterator[Check]:
        for name, find in _settings(evidence, *pairs[0][0][1:]):
            found = []
            for wild, calm in pairs:
                results = [find(optimizer, depth, lr) for optimizer, lr, depth in (wild, calm)]
                if results[0] and results[1]:
                    rises = zip(*(evidence.fluctuations(result) for result in results if result), strict=True)
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
        adam, row = find("Adam"), find("Row-wise Momentum")
        if adam and row:
            by = evidence.excess(adam, row)
            yield Check(name, by.is_positive, f"Adam's loss minus rows', relative to the linear fit's: {by}")


def _matched(evidence: Evidence) -> Iterator[tuple[str, mlp.Result, mlp.Result, mlp.Result]]:
    """The settings where Adam or rows train at 25 layers and lr 0.01, with equal step sizes; and rows at Adam's."""
    for name, find in _settings(evidence, 0.01, 25):
        adam, row, mean = find("Adam, lr/√width"), find(WHOLE), find("Row-wise, mean")
        if adam and row and mean and (evidence.gain(adam).is_positive or evidence.gain(row).is_positive):
            yield name, adam, row, mean


def _differs_from_a_learning_rate(evidence: Evidence) -> Iterator[Check]:
    for name, adam, row, _ in _matched(evidence):
        by = evidence.excess(adam, row)
        yield Check(name, True if by.low > 0 or by.high < 0 else None, f"loss of Adam minus that of rows: {by}")


def _beats_a_learning_rate(evidence: Evidence) -> Iterator[Check]:
    for name, adam, row, mean in _matched(evidence):
        by = evidence.excess(adam, row)
        other = f"rows at Adam's step size (the mean): {_outcome(evidence, mean)}"
        yield Check(name, by.is_positive, f"loss of Adam minus that of rows: {by}; {other}")


def _ten_times(evidence: Evidence) -> Iterator[Check]:
    for name, find in _settings(evidence, 0.01, 25):
        row, adam = find("Row-wise Momentum"), find("Adam", lr=0.001)
        if row and adam:
            trains = evidence.gain(row).is_positive, evidence.gain(adam).is_positive
            figures = f"rows at 0.01: {_outcome(evidence, row)}; Adam at 0.001: {_outcome(evidence, adam)}"
            yield Check(name, None if None in trains else trains == (True, False), figures)


def _columns_alike(evidence: Evidence) -> Iterator[Check]:
    for lr in (0.01, 0.001):
        for depth in (15, 25):
            for name, find in _settings(evidence, lr, depth):
                column, row = find("Column-wise Momentum"), find("Row-wise Momentum")
                if column and row and (evidence.gain(column).is_positive or evidence.gain(row).is_positive):
                    by = evidence.excess(column, row)
                    inside = by.low >= -ALIKE and by.high <= ALIKE
                    outside = by.high < -ALIKE or by.low > ALIKE
                    figures = f"loss above rows' by {by}; {_outcome(evidence, column)}"
                    holds = True if inside else False if outside else None
                    yield Check(f"{name}, {depth} layers, lr {lr}", holds, figures)


CLAIMS = (
    Claim(
        "entries-oscillate-at-15",
        "§5.2, Fig. 2",
        "At 15 layers and lr 0.01, entry-wise scaling is highly unstable, with pronounced oscillations of the loss; "
        "row-wise scaling is not.",
        f"{RISE} is higher for Adam than for Row-wise Momentum: the 95 % interval over seeds is above 0",
        "mlp",
        _rises_more((("Adam", 0.01, 15), ("Row-wise Momentum", 0.01, 15))),
    ),
    Claim(
        "entries-fail-at-22",
        "§5.2",
        "At 22 layers and lr 0.01, entry-wise scaling already fails.",
        f"Adam {FAILS}",
        "mlp",
        _trains("Adam", 0.01, 22, expected=False),
    ),
    Claim(
        "entries-fail-at-25",
        "§5.2, Fig. 2",
        "At 25 layers and lr 0.01, entry-wise scaling is untrainable.",
        f"Adam {FAILS}",
        "mlp",
        _trains("Adam", 0.01, 25, expected=False),
    ),
    Claim(
        "rows-train-at-25",
        "§5.2, Fig. 2",
        "At 25 layers and lr 0.01, row-wise scaling trains.",
        f"Row-wise Momentum {TRAINS}",
        "mlp",
        _trains("Row-wise Momentum", 0.01, 25),
    ),
    Claim(
        "rows-fluctuate-at-25",
        "§5.2",
        "Row-wise scaling has increased loss fluctuations at 25 layers.",
        f"{RISE} is higher at 25 layers than at 15: the 95 % interval over seeds is above 0",
        "mlp",
        _rises_more((("Row-wise Momentum", 0.01, 25), ("Row-wise Momentum", 0.01, 15))),
    ),
    Claim(
        "not-a-learning-rate",
        "§5.2",
        "Row-wise scaling has different dynamics from entry-wise scaling, not merely a different learning rate.",
        "where either trains at 25 layers: the loss of Adam at lr/√width minus that of Row-wise Momentum with whole "
        "biases, which moves weights and biases by as much, has a 95 % interval over seeds that does not contain 0",
        "mlp",
        _differs_from_a_learning_rate,
    ),
    Claim(
        "better-than-a-learning-rate",
        "§5.2",
        "Its advantage, that deeper networks train, is not due to a smaller learning rate.",
        "where either trains at 25 layers: the same interval is above 0",
        "mlp",
        _beats_a_learning_rate,
    ),
    Claim(
        "calmer-at-0.001",
        "App. G, Fig. 3",
        "At 15 layers both methods fluctuate less with lr 0.001.",
        f"{RISE} is higher at lr 0.01 than at 0.001: the 95 % interval over seeds is above 0 for both",
        "mlp",
        _rises_more(
            (("Adam", 0.01, 15), ("Adam", 0.001, 15)),
            (("Row-wise Momentum", 0.01, 15), ("Row-wise Momentum", 0.001, 15)),
        ),
    ),
    Claim(
        "rows-lower-at-15",
        "App. G, Fig. 3",
        "At 15 layers and lr 0.001, row-wise scaling reaches a lower training loss than Adam.",
        "the 95 % interval over seeds of Adam's loss minus Row-wise Momentum's is above 0",
        "mlp",
        _lower_loss,
    ),
    Claim(
        "entries-fail-at-0.001",
        "§5.2, App. G, Fig. 3",
        "At 25 layers Adam fails with lr 0.001 too: a large learning rate is not the reason.",
        f"Adam {FAILS}",
        "mlp",
        _trains("Adam", 0.001, 25, expected=False),
    ),
    Claim(
        "rows-train-at-0.001",
        "App. G, Fig. 3",
        "At 25 layers and lr 0.001, row-wise scaling trains.",
        f"Row-wise Momentum {TRAINS}",
        "mlp",
        _trains("Row-wise Momentum", 0.001, 25),
    ),
    Claim(
        "ten-times",
        "App. G",
        "Row-wise scaling trains at a learning rate ten times as large as one at which entry-wise scaling fails.",
        f"at 25 layers Row-wise Momentum at 0.01 {TRAINS}; Adam at 0.001 {FAILS}",
        "mlp",
        _ten_times,
    ),
    Claim(
        "columns-alike",
        "§5.2, footnote",
        "Column-wise scaling gives similar results.",
        "where either trains: the 95 % interval over seeds of Column-wise Momentum's loss minus Row-wise "
        "Momentum's lies within "
        f"{ALIKE:.0%} of the loss of the best linear fit",
        "mlp",
        _columns_alike,
    ),
)
