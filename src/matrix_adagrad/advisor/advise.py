"""Probe, race and plan: finds the geometry that pays for each parameter of a model."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer

from matrix_adagrad.advisor.candidates import (
    FAMILIES,
    RACED,
    Candidate,
    distinct,
    geometries_by_layer,
    geometries_by_recipe,
    make_candidate,
)
from matrix_adagrad.advisor.errors import AdvisorValueError
from matrix_adagrad.advisor.plan import ParameterChoice, Plan
from matrix_adagrad.advisor.probe import Probe
from matrix_adagrad.advisor.probe_report import ProbeReport
from matrix_adagrad.advisor.race import SEEDS, STEPS, Progress, Race
from matrix_adagrad.advisor.race_result import Outcome, RaceResult, Standing, difference
from matrix_adagrad.advisor.summary import HEADINGS, ParameterSummary
from matrix_adagrad.advisor.task import Task, as_task, generators_restored
from matrix_adagrad.geometry import Geometry, as_geometry
from matrix_adagrad.text import columns, json_text, shape_text, size

__all__ = ["Advice", "advise", "by_agreement"]

AGREES = 0.9  # from this agreement on, sharing one scale loses little
SHOWN = 20  # parameters in a terminal
OBSERVATIONS = 100  # of the probe, at most, in a run


@dataclass(frozen=True)
class Advice:
    """A plan, and the measurements behind it."""

    task: str
    plan: Plan
    probe: ProbeReport
    race: RaceResult

    def __str__(self) -> str:
        return "\n\n".join((self.race.table(), self.table(), self.plan.verdict))

    def table(self) -> str:
        """The geometry of each matrix, and what the probe measured, for a terminal."""
        geometries = {choice.name: choice.geometry for choice in self.plan.choices}
        matrices = [parameter for parameter in self.probe if parameter.is_matrix]
        rows = [
            (matrix.name, shape_text(matrix.shape), geometries[matrix.name], *matrix.table_row)
            for matrix in matrices[:SHOWN]
        ]
        more = f"\n… and {len(matrices) - SHOWN} more matrices" if len(matrices) > SHOWN else ""
        return columns(("parameter", "shape", "geometry", *HEADINGS), rows, left=(0, 1, 2)) + more

    def to_json(self) -> str:
        """All numbers as JSON."""
        numbers = {
            "task": self.task,
            "plan": self.plan.to_dict(),
            "race": self.race.to_dict(),
            "probe": self.probe.to_dict(),
        }
        return json_text(numbers)


def advise(
    task: Task | tuple[Any, ...],
    *,
    families: Iterable[str] = RACED,
    baseline: Candidate | None = None,
    steps: int = STEPS,
    seeds: int = SEEDS,
    progress: Progress | None = None,
) -> Advice:
    """Measure a model's gradients, race geometries on it, and make a plan.

    The entry geometry races first. The probe observes its best run, and its measurements give one more candidate, with
    a geometry for each parameter. Another candidate has the geometries that `geometry_groups` chooses by kind of layer,
    and one is `matrix_optimizer`. The plan takes the candidate with the least state among those that are level with the
    best.

    Args:
        task: the model, its loss and its batches, as a `Task` or as the tuple of its first arguments.
        families: the update rules to try, by default ``"adagrad"``, ``"momentum"`` and ``"matrix_optimizer"``; or
            ``"no-momentum"`` and ``"steepest"``, as in `Plan`.
        baseline: the optimizer that you use now; by default the task's.
        steps: the number of steps of a run.
        seeds: the number of runs of each candidate, from 2 to 15.
        progress: called with the number of steps done, the total, and what is running.

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
    baseline = baseline or task.baseline
    if not families:
        raise AdvisorValueError(f"families must name at least one of {', '.join(map(repr, FAMILIES))}, got none")
    with generators_restored():
        race = Race(task, steps=steps, seeds=seeds, progress=progress)
        uniform = race.uniform_candidates(families)
        model = race.initial_model(0)
        by_layer, by_recipe = geometries_by_layer(model), geometries_by_recipe(model)
        scaled = [family for family in families if "entry" in FAMILIES[family].uniform]
        recipes = [family for family in families if family not in scaled]
        entered = distinct([*uniform, *(make_candidate("by kind", family, by_layer) for family in scaled)])
        entered += [make_candidate("", family, by_recipe) for family in recipes]
        if baseline is not None:
            entered.append(baseline)
        race.enter(entered)
        first = [candidate for candidate in entered if candidate.name.startswith("entry ")] or entered[:1]
        outcomes = [race.train(candidate) for candidate in first]
        report = _probed(race, min(outcomes, key=lambda outcome: outcome.score))
        by_probe = by_agreement(report)
        candidates = distinct([*entered, *(make_candidate("by probe", family, by_probe) for family in scaled)])
        race.enter(candidates[len(entered) :])
        outcomes += [race.train(candidate) for candidate in candidates if candidate not in first]
        result = race.result(outcomes, baseline.name if baseline else None)
        return Advice(task.name, make_plan(result, report), report, result)


def by_agreement(report: ProbeReport) -> dict[str, Geometry]:
    """For each parameter, the geometry with the fewest scales among those in which scales agree well."""
    return {parameter.name: as_geometry(_agreeing(parameter)) for parameter in report}


def _agreeing(parameter: ParameterSummary) -> str:
    if not parameter.is_matrix:
        return "entry"
    fewest_first = sorted(("row", "column", "entry"), key=lambda name: as_geometry(name).scales(parameter.shape))
    return next((name for name in fewest_first if parameter.agreement[name] >= AGREES), "entry")


def make_plan(result: RaceResult, report: ProbeReport) -> Plan:
    """The plan of the candidate that the race chose, with reasons from the probe."""
    chosen = result.chosen
    candidate = chosen.outcome.candidate
    assert candidate.geometries is not None
    names = {name: str(geometry) for name, geometry in candidate.geometries.items()}
    choices = [
        ParameterChoice(
            parameter.name, parameter.shape, names[parameter.name], reason(parameter, names[parameter.name])
        )
        for parameter in report
    ]
    return Plan(candidate.family, chosen.outcome.lr, tuple(choices), verdict(result))


def reason(parameter: ParameterSummary, geometry: str) -> str:
    """What the probe's measurements say about a choice."""
    agreement = parameter.agreement
    if not parameter.gradient_norm["whole"]:
        return "no gradient was observed"
    if geometry == "entry" and not parameter.is_matrix:
        return "a vector: it has no rows or columns"
    if geometry == "entry":
        best = max(("row", "column"), key=lambda name: agreement[name])
        agree = f"scales inside a {best} agree to {agreement[best]:.2f}"
        return (
            f"entries differ: {agree}" if agreement[best] < AGREES else f"{agree}, but one scale per entry raced better"
        )
    if geometry not in agreement:
        return "by the kind of its layer"  # a batch of matrices: the probe does not measure its geometry
    where = {"row": "inside a row", "column": "inside a column", "whole": "of the whole parameter"}[geometry]
    inactive = {"row": parameter.rows.inactive, "column": parameter.columns.inactive}.get(geometry, 0.0)
    reasons = [f"scales {where} agree to {agreement[geometry]:.2f}"]
    reasons += ["which is low, but the race shows no loss"] * (agreement[geometry] < AGREES)
    reasons += [f"{inactive:.0%} of the {geometry}s have no gradient at a step"] * (inactive >= 0.01)
    return ", ".join(reasons)


def verdict(result: RaceResult) -> str:
    """The result of the race in a few sentences."""
    chosen, best = result.chosen, result.best
    sentences = [f"Use “{chosen.name}” with lr {chosen.outcome.lr:.2g}: {_standing(chosen, best)}."]
    reference = f"entry {chosen.outcome.candidate.family}"
    entry = next((standing for standing in result.standings if standing.name == reference), None)
    if entry is not None and chosen.state_bytes < entry.state_bytes:
        states = size(chosen.state_bytes), size(entry.state_bytes)
        sentences.append("Its state takes {}; one scale per entry takes {}.".format(*states))
    if result.baseline is not None:
        sentences.append(_baseline(result[result.baseline], chosen))
    if chosen.outcome.is_at_edge:
        sentences.append("Its learning rate is at the edge of its grid: a better one may lie beyond.")
    if not result.seeds_differ:
        sentences.append("All seeds gave the same run, so the intervals mean nothing: let batches depend on the seed.")
    return " ".join(sentences)


def _baseline(baseline: Standing, chosen: Standing) -> str:
    """The baseline compared with the chosen candidate."""
    subject = f"{baseline.name}, which you use now, with {size(baseline.state_bytes)} of state,"
    if math.isinf(baseline.outcome.score):
        return f"{subject} failed."
    behind = difference(baseline.outcome, chosen.outcome)
    if behind.low <= 0 <= behind.high:
        return f"{subject} may be better or worse: its loss differs by {behind}."
    return f"{subject} ends {'above' if behind.mean > 0 else 'below'} it by {behind}."


def _standing(chosen: Standing, best: Standing) -> str:
    if chosen is best:
        return "it has the lowest loss"
    if chosen.verdict == "no difference":
        return f"it shows no difference from the best, {best.name} ({chosen.difference})"
    if chosen.is_level:
        return f"it is within 1 % of the loss of the best, {best.name} ({chosen.difference})"
    return f"it is the best of this package, behind {best.name} by {chosen.difference}"


def _probed(race: Race, outcome: Outcome) -> ProbeReport:
    probes = []

    def observer(model: nn.Module, optimizer: Optimizer) -> AbstractContextManager[Any]:
        probes.append(Probe(model, optimizer, every=math.ceil(race.steps / OBSERVATIONS)))
        return probes[0]

    race.repeat(outcome, observer)
    report: ProbeReport = probes[0].report()
    return report
