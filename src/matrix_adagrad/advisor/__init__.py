"""Measures a model while it trains, and says which geometry pays for which of its parameters, and why."""

from matrix_adagrad.advisor.advise import Advice, advise
from matrix_adagrad.advisor.candidates import Candidate, around
from matrix_adagrad.advisor.plan import Choice, Plan
from matrix_adagrad.advisor.portrait import Portrait, Spread
from matrix_adagrad.advisor.probe import Probe
from matrix_adagrad.advisor.race import Race, race
from matrix_adagrad.advisor.report import Report
from matrix_adagrad.advisor.result import Outcome, Result, Run, Standing
from matrix_adagrad.advisor.task import Task

__all__ = [
    "Advice",
    "Candidate",
    "Choice",
    "Outcome",
    "Plan",
    "Portrait",
    "Probe",
    "Race",
    "Report",
    "Result",
    "Run",
    "Spread",
    "Standing",
    "Task",
    "advise",
    "around",
    "race",
]
