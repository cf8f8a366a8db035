"""Probe, race and plan: finds the geometry that works best for each parameter of a model."""

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
    candidates_by_agreement,
    candidates_by_kind,
    distinct,
)
from matrix_adagrad.advisor.errors import AdvisorValueError
from matrix_adagrad.advisor.plan import ParameterChoice, Plan
from matrix_adagrad.advisor.probe import Probe
from matrix_adagrad.advisor.probe_report import ProbeReport
from matrix_adagrad.advisor.race import SEEDS, STEPS, Progress, Race
from matrix_adagrad.advisor.race_result import RaceResult
from matrix_adagrad.advisor.sentences import planned_lr, verdict
from matrix_adagrad.advisor.summary import HEADINGS, ParameterSummary
from matrix_adagrad.advisor.task import Task, as_task, generators_restored
from matrix_adagrad.advisor.tuning import Tuning
from matrix_adagrad.geometry import Geometry, as_geometry
from matrix_adagrad.text import columns, json_text, shape_text

__all__ = ["Advice", "advise", "by_agreement"]

AGREES = 0.9  # from this agreement on, sharing one scale loses little
SHOWN = 20  # parameters in a terminal
OBSERVATIONS = 100  # of the probe, at most, in a run


@dataclass(frozen=True)
class Advice:
    """A verdict, a plan unless nothing was learned, and the measurements behind them.

    The plan is for runs of ``length`` steps.
    """

    task: str
    verdict: str
    plan: Plan | None
    probe: ProbeReport
    race: RaceResult
    length: int

    @property
    def is_settled(self) -> bool:
        """Whether nothing that raced at full length may be better than the plan by more than the margin."""
        return self.plan is not None and not self.race.rivals and self.length <= self.race.steps

    def __str__(self) -> str:
        return "\n\n".join((self.race.table(), self.table(), self.verdict))

    def table(self) -> str:
        """The geometry of each matrix, and what the probe measured, for a terminal."""
        geometries = {choice.name: choice.geometry for choice in self.plan.choices} if self.plan else {}
        matrices = [parameter for parameter in self.probe if parameter.is_matrix]
        rows = [
            (matrix.name, shape_text(matrix.shape), geometries.get(matrix.name, "–"), *matrix.table_row)
            for matrix in matrices[:SHOWN]
        ]
        more = f"\n… and {len(matrices) - SHOWN} more matrices" if len(matrices) > SHOWN else ""
        return columns(("parameter", "shape", "geometry", *HEADINGS), rows, left=(0, 1, 2)) + more

    def to_json(self) -> str:
        """All numbers as JSON."""
        numbers = {
            "task": self.task,
            "verdict": self.verdict,
            "settled": self.is_settled,
            "length": self.length,
            "plan": self.plan.to_dict() if self.plan else None,
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
    length: int | None = None,
    seeds: int = SEEDS,
    progress: Progress | None = None,
) -> Advice:
    """Measure a model's gradients, race geometries on it, and make a plan.

    The entry geometry races first. The probe observes one of its runs, and its measurements give one more candidate,
    with a geometry for each parameter. Other candidates have a geometry for each kind of layer. The plan takes the
    candidate with the least state among those that are level with the best. If nothing was learned, there is no plan.

    Args:
        task: the model, its loss and its batches, as a `Task` or as the tuple of its first arguments.
        families: the update rules to try, as in `Plan`; by default all of them.
        baseline: the optimizer that you use now; by default the task's.
        steps: the number of steps of the race's longest runs; the race takes some 100 times as many, in all. Give the
            length of your training run if you can afford it.
        length: the length of your training run, if you cannot. The learning rate is extrapolated to it, and the verdict
            says what that leaves open.
        seeds: the number of runs of each candidate, from 2 to 15.
        progress: called with the number of steps done, about the total, and what is running.

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
        >>> advice = advise(task, families=["adagrad"], steps=32, seeds=2)
        >>> optimizer = advice.plan.optimizer(nn.Linear(8, 4))
    """
    task = as_task(task, "task must be")
    families = [families] if isinstance(families, str) else list(families)
    baseline = baseline or task.baseline
    if not families:
        raise AdvisorValueError(f"families must name at least one of {', '.join(map(repr, FAMILIES))}, got none")
    length = steps if length is None else length
    if length < steps:
        raise AdvisorValueError(f"length must be steps, {steps:,}, or more, got {length:,}: lower steps to it")
    with generators_restored():
        race = Race(task, steps=steps, seeds=seeds, progress=progress)
        entered = distinct([*race.uniform_candidates(families), *candidates_by_kind(race.initial_model(0), families)])
        if baseline is not None:
            entered.append(baseline)
        race.enter(entered)
        first = [candidate for candidate in entered if candidate.name.startswith("entry ")] or entered[:1]
        tunings = {candidate.name: race.sift(candidate) for candidate in first}
        report = _probed(race, min(tunings.values(), key=lambda tuning: tuning.score(tuning.steps)))
        candidates = distinct([*entered, *candidates_by_agreement(by_agreement(report), families)])
        race.enter(candidates[len(entered) :])
        tunings |= {candidate.name: race.sift(candidate) for candidate in candidates if candidate not in first}
        result = race.decide(list(tunings.values()), baseline.name if baseline else None)
    said = verdict(result, length)
    return Advice(task.name, said, make_plan(result, report, length, said), report, result, length)


def by_agreement(report: ProbeReport) -> dict[str, Geometry]:
    """For each parameter, the geometry with the fewest scales among those in which scales agree well."""
    return {parameter.name: as_geometry(_agreeing(parameter)) for parameter in report}


def _agreeing(parameter: ParameterSummary) -> str:
    if not parameter.is_matrix:
        return "entry"
    fewest_first = sorted(("row", "column", "entry"), key=lambda name: as_geometry(name).scales(parameter.shape))
    return next((name for name in fewest_first if parameter.agreement[name] >= AGREES), "entry")


def make_plan(result: RaceResult, report: ProbeReport, length: int, said: str) -> Plan | None:
    """The plan of the candidate that the race chose, if there is one, with reasons from the probe."""
    if result.chosen is None:
        return None
    candidate = result.chosen.outcome.candidate
    assert candidate.geometries is not None
    names = {name: str(geometry) for name, geometry in candidate.geometries.items()}
    choices = [
        ParameterChoice(
            parameter.name, parameter.shape, names[parameter.name], reason(parameter, names[parameter.name])
        )
        for parameter in report
    ]
    return Plan(candidate.family, planned_lr(result, result.chosen, length), tuple(choices), said, length)


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


def _probed(race: Race, tuning: Tuning) -> ProbeReport:
    probes = []

    def observer(model: nn.Module, optimizer: Optimizer) -> AbstractContextManager[Any]:
        probes.append(Probe(model, optimizer, every=math.ceil(race.steps / OBSERVATIONS)))
        return probes[0]

    race.observe(tuning, observer)
    report: ProbeReport = probes[0].report()
    return report
