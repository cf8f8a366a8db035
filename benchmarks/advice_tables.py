"""The tables of `benchmarks.advice`, from its stored results, and their place in docs/advisor.md."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.markdown import DOCS, markdown_table, update_page
from matrix_adagrad.advisor.verdicts import has_learned, margin
from matrix_adagrad.intervals import Interval, interval

__all__ = ["Judged", "judged", "publish", "text"]

RIGHT, LEVEL, MISS, UNDECIDED = "right", "level", "miss", "undecided"
BAR, LARGEST = 0.9, 0.05  # right or level on so many of the settled tasks, and no miss that costs more

Found = dict[str, Any]


@dataclass(frozen=True)
class Judged:
    """What became of an advice: its verdict, and its loss above the best candidate's, relative to that."""

    verdict: str
    cost: float
    interval: Interval | None = None


def judged(task: Found, advice: Found) -> Judged:
    """Judge an advice by the runs on fresh seeds.

    It is right if it names the best candidate, or says that nothing is learned where nothing is; level if its plan ends
    within the margin of the best one; undecided if it said so itself; else a miss.
    """
    start, best = statistics.fmean(task["starts"]), statistics.fmean(task["best"]["scores"])
    gains = [before - after for before, after in zip(task["starts"], task["best"]["scores"], strict=True)]
    learned = has_learned(gains, start)
    if advice["scores"] is None:
        return Judged(MISS, (start - best) / abs(best)) if learned else Judged(RIGHT, 0.0)
    loss = statistics.fmean(score if score is not None else math.inf for score in advice["scores"])
    if not learned:
        return Judged(MISS, (loss - start) / abs(start))
    behind = _paired(advice["scores"], task["best"]["scores"]) if math.isfinite(loss) else None
    cost = (loss - best) / abs(best) if best else math.inf if loss else 0.0
    if not advice["settled"]:
        return Judged(UNDECIDED, cost, behind)
    if loss - best > margin(best, start):
        return Judged(MISS, cost, behind)
    return Judged(RIGHT if advice["chosen"] == task["best"]["candidate"] else LEVEL, cost, behind)


def _paired(scores: Sequence[float], others: Sequence[float]) -> Interval:
    return interval([mine - theirs for mine, theirs in zip(scores, others, strict=True)])


def publish(tests: Sequence[Found], development: Sequence[Found]) -> None:
    """Replace the tables on the page."""
    update_page(DOCS / "advisor.md", {"advice": lambda: text(tests, development)})


def text(tests: Sequence[Found], development: Sequence[Found]) -> str:
    """The tables, with summaries."""
    parts = []
    if tests:
        parts += [f"**The test: {_summary(tests)}** {_bar(tests)} {_costs(tests)}", _choices(tests)]
    if development:
        parts += [
            f"Tasks that were looked at while the rules were made: {_summary(development)}",
            _choices(development),
        ]
    return "\n\n".join(parts)


def _summary(found: Sequence[Found]) -> str:
    verdicts = [judged(task, task["advice"]).verdict for task in found]
    right, level, misses, undecided = (verdicts.count(name) for name in (RIGHT, LEVEL, MISS, UNDECIDED))
    return (
        f"of {len(found)} tasks the advisor settled {len(found) - undecided}, and was right on {right} and level on "
        f"{level} of them; {misses} {'is a miss' if misses == 1 else 'are misses'}. On {undecided} it said that it was "
        "undecided."
    )


def _bar(tests: Sequence[Found]) -> str:
    results = [judged(task, task["advice"]) for task in tests]
    settled = [result for result in results if result.verdict != UNDECIDED]
    good = [result for result in settled if result.verdict != MISS]
    worst = max((result.cost for result in settled if result.verdict == MISS), default=0.0)
    share = len(good) / max(1, len(settled))
    met = share >= BAR and worst <= LARGEST
    largest = f", the largest miss costs {_percent(worst)}" if len(good) < len(settled) else ""
    return (
        f"That is {share:.0%} of what it settled{largest}. The bar is {BAR:.0%}, and no miss above {LARGEST:.0%}: "
        f"{'met' if met else 'missed'}."
    )


def _costs(tests: Sequence[Found]) -> str:
    results = [judged(task, task["advice"]) for task in tests]
    undecided = [result.cost for result in results if result.verdict == UNDECIDED]
    kept = ""
    if undecided:
        within = [_is_level(task) for task in tests if judged(task, task["advice"]).verdict == UNDECIDED]
        kept = (
            f"Where it was undecided, its plan was within the margin all the same on {sum(within)} of {len(within)} "
            f"tasks; it cost {_spread(undecided)}. "
        )
    short = [judged(task, task["short"]).cost for task in tests if task["short"]["scores"] is not None]
    seconds = statistics.median(task["advised_seconds"] for task in tests)
    versions = ", ".join(sorted({f"torch {task['torch']}" for task in tests}))
    return (
        f"{kept}From a race at a quarter of the length, which never claims to be settled, the plan cost "
        f"{_spread(short)}. Advice took {seconds:.0f} s of CPU time in the median ({versions})."
    )


def _is_level(task: Found) -> bool:
    """Whether the plan ends within the margin of the best candidate, whatever the advisor said about it."""
    start, best = statistics.fmean(task["starts"]), statistics.fmean(task["best"]["scores"])
    return statistics.fmean(task["advice"]["scores"]) - best <= margin(best, start)


def _spread(costs: Sequence[float]) -> str:
    """The median and the largest of the costs; they are infinite where the best loss is 0, and the plan's is not."""
    finite = [cost for cost in costs if math.isfinite(cost)]
    others = f", not counting {len(costs) - len(finite)} where the best loss is 0" if len(finite) < len(costs) else ""
    return f"{_percent(statistics.median(costs))} in the median, and {_percent(max(finite))} at most{others}"


def _choices(found: Sequence[Found]) -> str:
    head = [
        "task",
        "steps",
        "loss at the start",
        "best at full length",
        "its loss",
        "the advice",
        "its lr / the best's",
    ]
    head += ["verdict", "the plan costs", "95 % interval", "from a quarter"]
    return markdown_table(head, [_row(task) for task in found])


def _row(task: Found) -> list[str]:
    best, advice = task["best"], task["advice"]
    result, short = judged(task, advice), judged(task, task["short"])
    loss = statistics.fmean(best["scores"])
    same = advice["chosen"] == best["candidate"]
    ends = [end / abs(loss) for end in (result.interval.low, result.interval.high)] if result.interval and loss else []
    return [
        task["task"],
        str(task["steps"]),
        f"{statistics.fmean(task['starts']):.4g}",
        best["candidate"],
        f"{loss:.4g}",
        advice["chosen"] or "nothing was learned: no plan",
        f"{advice['lr'] / best['lr']:.2g}" if same else "–",
        result.verdict,
        "–" if advice["chosen"] is None else _percent(result.cost),
        f"{_percent(ends[0])} to {_percent(ends[1])}" if ends else "–",
        "no plan" if task["short"]["chosen"] is None else f"{task['short']['chosen']}: {_percent(short.cost)}",
    ]


def _percent(share: float) -> str:
    return f"{100 * share:+.1f} %".replace("-", "−") if math.isfinite(share) else "∞"
