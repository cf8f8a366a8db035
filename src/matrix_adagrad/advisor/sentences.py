"""The result of a race in a few sentences: what to use, how sure that is, and what it would take to know more."""

from __future__ import annotations

import math

from matrix_adagrad.advisor.race_result import RaceResult, Rival
from matrix_adagrad.advisor.standings import Standing, difference
from matrix_adagrad.advisor.verdicts import BETTER, MOST_SEEDS, SAME, UNDECIDED, compare, seeds_needed
from matrix_adagrad.intervals import Interval
from matrix_adagrad.text import size

__all__ = ["NOTHING_LEARNED", "planned_lr", "verdict"]

NOTHING_LEARNED = "Nothing was learned: no plan."


def planned_lr(result: RaceResult, chosen: Standing, length: int) -> float:
    """The learning rate of the plan: that of the race, extrapolated if the training run is longer."""
    return chosen.outcome.lr * math.pow(length / result.steps, chosen.outcome.exponent)


def verdict(result: RaceResult, length: int) -> str:
    """The result for a training run of so many steps."""
    chosen = result.chosen
    if chosen is None:
        return _no_plan(result)
    sentences = [_choice(result, chosen, length)]
    sentences += [_rival(rival, result) for rival in _others(result)]
    if rates := [rival for rival in result.rivals if rival.name == chosen.name]:
        most = max(rates, key=lambda rival: rival.difference.high)
        lrs = " and ".join(f"{rival.lr:.2g}" for rival in rates)
        sentences.append(f"Its rate is not settled: {lrs} may be better by up to {_share(most, result)}.")
    sentences += _state(result, chosen)
    if result.baseline is not None:
        sentences.append(_baseline(result[result.baseline], chosen, result))
    if chosen.outcome.is_at_edge:
        sentences.append("Its learning rate is at the edge of those tried: a better one may lie beyond.")
    if length > result.steps:
        sentences += _extrapolated(result, chosen, length)
    if not result.seeds_differ:
        sentences.append("All seeds gave the same run, so the intervals mean nothing: let batches depend on the seed.")
    return " ".join(sentences)


def _no_plan(result: RaceResult) -> str:
    best = result.best
    fell = (
        f"the loss is {result.start:.4g} at the start, and {best.outcome.score:.4g} at best after {result.steps} steps"
    )
    if result.learned(best.outcome):
        return f"No optimizer of this package learned anything, so there is no plan: {fell}, with {best.name}."
    return (
        f"{NOTHING_LEARNED} {fell[0].upper()}{fell[1:]} ({best.name}). It has to fall on every seed, by 1 % or more in "
        f"the mean: it fell by {result.gain(best.outcome)}. Is there anything to learn, or are more steps needed?"
    )


def _choice(result: RaceResult, chosen: Standing, length: int) -> str:
    use = f"“{chosen.name}” with lr {planned_lr(result, chosen, length):.2g} for runs of {length:,} steps"
    if others := _others(result):
        names = " and ".join([chosen.name, *(rival.name for rival in others)])
        return f"Undecided between {names}: until more is known, use {use}."
    ours = next(standing for standing in result.finalists if standing.outcome.candidate.geometries is not None)
    if chosen is ours:
        why = "it has the lowest loss" if chosen is result.best else "it has the lowest loss of this package"
    else:
        behind = difference(chosen.outcome, ours.outcome)
        why = f"it shows no difference from {ours.name} ({behind}, within ±{result.margin:.2g}) and has less state"
    if chosen is not result.best and ours is not result.best:
        why += f", behind {result.best.name} by {difference(chosen.outcome, result.best.outcome)}"
    return f"Use {use}: {why}."


def _state(result: RaceResult, chosen: Standing) -> list[str]:
    """What the choice saves: against one scale per entry in the same family, or against Adam."""
    standings = {standing.name: standing for standing in result.standings}
    same = standings.get(f"entry {chosen.outcome.candidate.family}")
    reference = same or standings.get("entry momentum")
    if reference is None or chosen.state_bytes >= reference.state_bytes:
        return []
    other = "one scale per entry" if same else "entry momentum, which is Adam,"
    return [f"Its state takes {size(chosen.state_bytes)}; {other} takes {size(reference.state_bytes)}."]


def _others(result: RaceResult) -> list[Rival]:
    """The rivals that are other candidates."""
    return [rival for rival in result.rivals if result.chosen is not None and rival.name != result.chosen.name]


def _rival(rival: Rival, result: RaceResult) -> str:
    takes = _what_it_takes(rival.difference, result)
    return f"“{rival.name}” may be better by up to {_share(rival, result)}: {takes}."


def _share(rival: Rival, result: RaceResult) -> str:
    """By how much a rival may be better, as a share of the best loss."""
    return (
        f"{rival.difference.high / abs(result.best.outcome.score):.1%}" if result.best.outcome.score else "any amount"
    )


def _what_it_takes(behind: Interval, result: RaceResult) -> str:
    """How to decide about a difference, if its mean and its spread stay what they are."""
    seeds = seeds_needed(behind, result.margin)
    return f"about {seeds} seeds would tell" if seeds else f"{MOST_SEEDS} seeds would not tell, longer runs might"


def _baseline(baseline: Standing, chosen: Standing, result: RaceResult) -> str:
    """The baseline compared with the chosen candidate."""
    subject = f"{baseline.name}, which you use now, with {size(baseline.state_bytes)} of state,"
    if math.isinf(baseline.outcome.score):
        return f"{subject} failed."
    behind = difference(baseline.outcome, chosen.outcome)
    found = compare(behind, result.margin)
    if found == UNDECIDED:
        lower = behind if behind.mean <= 0 else difference(chosen.outcome, baseline.outcome)
        return f"{subject} may be better or worse ({behind}): {_what_it_takes(lower, result)}."
    if found == SAME:
        return f"{subject} shows no difference ({behind}, within ±{result.margin:.2g})."
    side = "below" if found == BETTER else "above"
    return f"{subject} is {found}: it ends {side} it by {behind}."


def _extrapolated(result: RaceResult, chosen: Standing, length: int) -> list[str]:
    """What a race with fewer steps than the training run leaves open."""
    steps, outcome = result.steps, chosen.outcome
    fits = f"the best rate goes like steps^{outcome.exponent:.2f}" if outcome.exponent else "the best rate stays"
    sentences = [
        f"Nothing was measured beyond {steps:,} steps: the rate is extrapolated ({fits} in runs of "
        f"{min(outcome.rungs):,} to {steps:,}), and which family is best at {length:,} steps is not known."
    ]
    for other in result.finalists:
        gaps = [other.outcome.score_at(at) - outcome.score_at(at) for at in sorted(outcome.rungs)[-2:]]
        if other.outcome.candidate.family != outcome.candidate.family and 0 < gaps[1] < gaps[0]:
            sentences.append(
                f"{other.name} is catching up: behind by {gaps[0]:.3g} at {sorted(outcome.rungs)[-2]:,} steps, and by "
                f"{gaps[1]:.3g} at {steps:,}."
            )
    return sentences
