"""The tables of `benchmarks.advice`, from its stored results, and their place in docs/advisor.md."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.markdown import DOCS, markdown_table, update_page
from matrix_adagrad.advisor.race_result import CLOSE, LEVEL
from matrix_adagrad.intervals import Interval, interval

__all__ = ["publish", "text"]

OUTSIDE = ("Adam", "SGD", "Adafactor", "Muon")

Found = dict[str, Any]


def publish(found: Sequence[Found]) -> None:
    """Replace the tables on the page."""
    update_page(DOCS / "advisor.md", {"advice": lambda: text(found)})


def text(found: Sequence[Found]) -> str:
    """All tables, with summaries."""
    right = [task for task in found if _chosen(task)["verdict"] in LEVEL]
    close = [task for task in right if _behind(_chosen(task), _best(task)) <= CLOSE]
    costs = [_behind(_chosen(task), _best(task)) for task in found if task not in right]
    wrong = (
        f" On the others, it ended {_percent(min(costs))} to {_percent(max(costs))} above the best." if costs else ""
    )
    versions = ", ".join(sorted({f"torch {task['torch']}" for task in found}))
    minutes = statistics.median(task["advised_seconds"] for task in found) / 60
    return "\n\n".join(
        (
            f"On **{len(right)} of {len(found)}** tasks, the chosen candidate was level with the best one at full "
            f"length; on {len(close)} of them, its loss was at most {CLOSE:.0%} higher.{wrong} The median time for "
            f"advice was {minutes:.1f} minutes, on one core of a shared machine ({versions}).",
            _choices(found),
            "Outside optimizers at full length, each with its own learning rate, tuned the same way: the loss relative "
            "to that of the best candidate, above (+) or below it (−). In bold, the paired 95 % interval excludes 0.",
            _references(found),
            "What the probe's statistics would have chosen, with one geometry for the whole model: how often this "
            "choice was level with the best of the four geometries at full length, over all tasks and both families, "
            "and what it cost.",
            _predictions(found),
        )
    )


def _choices(found: Sequence[Found]) -> str:
    rows = []
    for task in found:
        chosen, best = _chosen(task), _best(task)
        as_planned = statistics.fmean(task["as_planned"])
        rows.append(
            [
                task["task"],
                chosen["candidate"],
                best["candidate"],
                f"{best['score']:.4g}",
                "–" if chosen is best else f"{_percent(_behind(chosen, best))} ({chosen['verdict']})",
                _percent((as_planned - best["score"]) / abs(best["score"])),
                f"{chosen['state_bytes'] / best['state_bytes']:.2g}",
            ]
        )
    head = [
        "task",
        "the advice",
        "best at full length",
        "its loss",
        "the advice is behind by",
        "with the plan's lr",
        "state",
    ]
    return markdown_table(head, rows)


def _references(found: Sequence[Found]) -> str:
    rows = []
    for task in found:
        best = _best(task)
        cells = []
        for name in OUTSIDE:
            scores = task["outside"][name]
            if isinstance(scores, str):
                cells.append("not applicable")
                continue
            if any(score is None or not math.isfinite(score) for score in scores):
                cells.append("failed")
                continue
            difference = _paired(scores, best["scores"])
            shown = _percent(difference.mean / abs(best["score"]))
            cells.append(f"**{shown}**" if difference.low > 0 or difference.high < 0 else shown)
        rows.append([task["task"], *cells])
    return markdown_table(["task", *OUTSIDE], rows)


def _predictions(found: Sequence[Found]) -> str:
    rows = []
    for statistic in found[0]["predictions"]:
        level, costs = 0, []
        for task in found:
            for family in ("adagrad", "momentum"):
                geometries = {name: _standing(task, f"{name} {family}") for name in ("row", "column", "entry", "whole")}
                there = {name: standing for name, standing in geometries.items() if standing is not None}
                best = min(there.values(), key=lambda standing: standing["score"])
                guess = there.get(task["predictions"][statistic], there["entry"])
                difference = _paired(guess["scores"], best["scores"])
                cost = _behind(guess, best)
                level += difference.low <= 0 or cost <= 0.01
                costs.append(cost)
        rows.append([statistic, f"{level} of {len(costs)}", _percent(statistics.fmean(costs)), _percent(max(costs))])
    return markdown_table(["statistic", "level with the best", "mean cost", "largest cost"], rows)


def _standing(task: Found, name: str) -> Found | None:
    return next((standing for standing in task["full"]["standings"] if standing["candidate"] == name), None)


def _chosen(task: Found) -> Found:
    chosen = _standing(task, task["chosen"])
    assert chosen is not None
    return chosen


def _best(task: Found) -> Found:
    best: Found = task["full"]["standings"][0]
    return best


def _behind(standing: Found, best: Found) -> float:
    behind: float = (standing["score"] - best["score"]) / abs(best["score"])
    return behind


def _paired(scores: Sequence[float], others: Sequence[float]) -> Interval:
    return interval([mine - theirs for mine, theirs in zip(scores, others, strict=True)])


def _percent(share: float) -> str:
    return f"{100 * share:+.1f} %".replace("-", "−") if math.isfinite(share) else "failed"
