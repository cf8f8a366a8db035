"""Probe, race and plan, one after the other: which geometry pays for this model, and why."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer

from matrix_adagrad.advisor.candidates import FAMILIES, Candidate, by_kind, distinct, ours
from matrix_adagrad.advisor.errors import RefusedValueError
from matrix_adagrad.advisor.plan import Choice, Plan
from matrix_adagrad.advisor.portrait import FIGURES, Portrait
from matrix_adagrad.advisor.probe import Probe, Report
from matrix_adagrad.advisor.race import SEEDS, STEPS, Progress, Race
from matrix_adagrad.advisor.result import Outcome, Result, Standing, difference, size
from matrix_adagrad.advisor.task import Task, as_task, generators_restored
from matrix_adagrad.geometry import Geometry, as_geometry
from matrix_adagrad.text import columns, json_text, shape_text

__all__ = ["Advice", "advise", "by_agreement"]

AGREES = 0.9  # where entries agree so well, one scale for all of them loses little
SHOWN = 20  # parameters in a terminal
LOOKS = 100  # of the probe, at most, in a run


@dataclass(frozen=True)
class Advice:
    """A plan, and the evidence for it."""

    task: str
    plan: Plan
    probe: Report
    race: Result

    def __str__(self) -> str:
        return "\n\n".join((self.race.table(), self.table(), self.plan.verdict))

    def table(self) -> str:
        """For each matrix the geometry, and what the probe saw, for a terminal."""
        geometries = {choice.name: choice.geometry for choice in self.plan.choices}
        matrices = [one for one in self.probe if one.is_matrix]
        rows = [(one.name, shape_text(one.shape), geometries[one.name], *one.figures) for one in matrices[:SHOWN]]
        more = f"\n… and {len(matrices) - SHOWN} more matrices" if len(matrices) > SHOWN else ""
        return columns(("parameter", "shape", "geometry", *FIGURES), rows, left=(0, 1, 2)) + more

    def to_json(self) -> str:
        """The text of a JSON file, with all numbers."""
        found = {
            "task": self.task,
            "plan": self.plan.to_dict(),
            "race": self.race.to_dict(),
            "probe": self.probe.to_dict(),
        }
        return json_text(found)


def advise(
    task: Task | tuple[Any, ...],
    *,
    families: Iterable[str] = tuple(FAMILIES),
    present: Candidate | None = None,
    steps: int = STEPS,
    seeds: int = SEEDS,
    progress: Progress | None = None,
) -> Advice:
    """Measure a model, race the geometries on it, and make a plan.

    The first in the race is one scale for each entry. The probe looks on at its best run, and what it sees makes one
    more candidate, with a geometry for each parameter; another one takes those that `geometry_groups` gives by the kind
    of layer. The plan is that of the candidate with the least state among those that are level with the best.

    Args:
        task: the model, its loss and its batches: a `Task`, or the tuple of its first arguments.
        families: the update rules that take part: ``"adagrad"``, ``"momentum"``.
        present: the optimizer that you use now; by default the task's.
        steps: of a run.
        seeds: how many runs each candidate is judged by, from 2 to 15.
        progress: called with the number of steps that are done, the number of all steps, and what is going on.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from matrix_adagrad.advisor import Task, advise
        >>> x = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
        >>> task = Task(
        ...     lambda: nn.Linear(8, 4),
        ...     lambda model, rows: (model(x[rows]) - x[rows, :4]).square().mean(),
        ...     lambda seed: torch.randperm(64).split(16),
        ... )
        >>> advice = advise(task, families=["adagrad"], steps=16, seeds=2)
        >>> optimizer = advice.plan.optimizer(nn.Linear(8, 4))
    """
    task = as_task(task, "task must be")
    families = [families] if isinstance(families, str) else list(families)
    present = present or task.present
    if not families:
        raise RefusedValueError(f"families is empty: give one of {', '.join(map(repr, FAMILIES))}, or both")
    with generators_restored():
        race = Race(task, steps=steps, seeds=seeds, progress=progress)
        everybody = race.everybody(families)
        kinds = by_kind(task.start(0))
        entered = distinct([*everybody, *(ours("by kind", family, kinds) for family in families)])
        if present is not None:
            entered.append(present)
        race.expect(entered)
        entries = [one for one in entered if one.name.startswith("entry ")]
        outcomes = [race.train(one) for one in entries]
        report = _probed(race, min(outcomes, key=lambda one: one.score))
        more = distinct([*entered, *(ours("by probe", family, by_agreement(report)) for family in families)])
        race.expect(more[len(entered) :])
        outcomes += [race.train(one) for one in more if one not in entries]
        result = race.result(outcomes, present.name if present else None)
        return Advice(task.name, make_plan(result, report), report, result)


def by_agreement(report: Report) -> dict[str, Geometry]:
    """For each parameter the fewest scales whose entries agree well."""
    return {one.name: as_geometry(_agreeing(one)) for one in report}


def _agreeing(one: Portrait) -> str:
    if not one.is_matrix:
        return "entry"
    fewest_first = sorted(("row", "column", "entry"), key=lambda name: as_geometry(name).scales(one.shape))
    return next((name for name in fewest_first if one.agreement[name] >= AGREES), "entry")


def make_plan(result: Result, report: Report) -> Plan:
    """The plan of the race's choice, with the race's and the probe's reasons."""
    chosen = result.chosen
    candidate = chosen.outcome.candidate
    assert candidate.geometries is not None
    names = {name: str(geometry) for name, geometry in candidate.geometries.items()}
    choices = [Choice(one.name, one.shape, names[one.name], reason(one, names[one.name])) for one in report]
    return Plan(candidate.family, chosen.outcome.lr, tuple(choices), verdict(result))


def reason(one: Portrait, geometry: str) -> str:
    """What the probe has to say about a choice."""
    if not one.gradients["whole"]:
        return "no gradient was seen"
    if geometry == "entry" and not one.is_matrix:
        return "it has no rows and columns to choose from"
    if geometry == "entry":
        best = max(("row", "column"), key=lambda name: one.agreement[name])
        agree = f"the scales inside a {best} agree to {one.agreement[best]:.2f}"
        return f"entries differ: {agree}" if one.agreement[best] < AGREES else f"{agree}, but the race is for entries"
    if geometry not in one.agreement:
        return "by the kind of its layer"  # a batch of matrices: the probe has no figures for its geometry
    where = {"row": "inside a row", "column": "inside a column", "whole": "in it"}[geometry]
    silent = {"row": one.rows.silent, "column": one.columns.silent}.get(geometry, 0.0)
    found = [f"scales {where} agree to {one.agreement[geometry]:.2f}"]
    found += ["which is little, but the race shows no loss"] * (one.agreement[geometry] < AGREES)
    found += [f"{silent:.0%} of the {geometry}s have no gradient at a step"] * (silent >= 0.01)
    return ", ".join(found)


def verdict(result: Result) -> str:
    """What the race has shown, in a sentence or two."""
    chosen, best = result.chosen, result.best
    said = [f"Use “{chosen.name}” with lr {chosen.outcome.lr:.2g}: {_standing(chosen, best)}."]
    entry = next((one for one in result.standings if one.name == f"entry {chosen.outcome.candidate.family}"), None)
    if entry is not None and chosen.state_bytes < entry.state_bytes:
        states = size(chosen.state_bytes), size(entry.state_bytes)
        said.append("Its state takes {}, and {} with one scale for each entry.".format(*states))
    if result.present is not None:
        said.append(_present(result[result.present], chosen))
    if chosen.outcome.is_at_edge:
        said.append("Its learning rate is at the edge of those that were tried: a better one may lie beyond.")
    if not result.seeds_differ:
        said.append("All seeds gave the same run, so that intervals mean nothing: let batches depend on the seed.")
    return " ".join(said)


def _present(now: Standing, chosen: Standing) -> str:
    """How the present optimizer stands to the chosen one."""
    said = f"{now.name}, which you use now, with {size(now.state_bytes)} of state,"
    if math.isinf(now.outcome.score):
        return f"{said} failed."
    apart = difference(now.outcome, chosen.outcome)
    if apart.low <= 0 <= apart.high:
        return f"{said} may be better or worse: the difference is {apart}."
    return f"{said} ends {'above' if apart.mean > 0 else 'below'} it by {apart}."


def _standing(chosen: Standing, best: Standing) -> str:
    if chosen is best:
        return "it came out best"
    if chosen.verdict == "no difference":
        return f"no difference from the best, {best.name}, was seen ({chosen.difference})"
    if chosen.is_level:
        return f"within 1 % of the loss of the best, {best.name} ({chosen.difference})"
    return f"it is behind the best, {best.name}, by {chosen.difference}, but that is no optimizer of this package"


def _probed(race: Race, outcome: Outcome) -> Report:
    probes = []

    def watch(model: nn.Module, optimizer: Optimizer) -> AbstractContextManager[Any]:
        probes.append(Probe(model, optimizer, every=math.ceil(race.steps / LOOKS)))
        return probes[0]

    race.watched(outcome, watch)
    report: Report = probes[0].report()
    return report
