"""Measures a model while it trains, and recommends a geometry for each parameter, with reasons."""

from matrix_adagrad.advisor.advise import Advice, advise
from matrix_adagrad.advisor.candidates import Candidate, lrs_around, make_candidate
from matrix_adagrad.advisor.plan import ParameterChoice, Plan
from matrix_adagrad.advisor.probe import Probe
from matrix_adagrad.advisor.probe_report import ProbeReport
from matrix_adagrad.advisor.race import Race, race
from matrix_adagrad.advisor.race_result import RaceResult, Rival
from matrix_adagrad.advisor.standings import Outcome, Standing
from matrix_adagrad.advisor.summary import ParameterSummary, Spread
from matrix_adagrad.advisor.task import Task
from matrix_adagrad.advisor.training import Run

__all__ = [
    "Advice",
    "Candidate",
    "Outcome",
    "ParameterChoice",
    "ParameterSummary",
    "Plan",
    "Probe",
    "ProbeReport",
    "Race",
    "RaceResult",
    "Rival",
    "Run",
    "Spread",
    "Standing",
    "Task",
    "advise",
    "lrs_around",
    "make_candidate",
    "race",
]
