"""Measures a model while it trains, and recommends a geometry for each parameter, with reasons."""

from matrix_adagrad.advisor.advise import Advice, advise
from matrix_adagrad.advisor.candidates import Candidate, lrs_around, make_candidate
from matrix_adagrad.advisor.plan import ParameterChoice, Plan
from matrix_adagrad.advisor.probe import Probe
from matrix_adagrad.advisor.probe_report import ProbeReport
from matrix_adagrad.advisor.race import Race, race
from matrix_adagrad.advisor.race_result import Outcome, RaceResult, Run, Standing
from matrix_adagrad.advisor.summary import ParameterSummary, Spread
from matrix_adagrad.advisor.task import Task

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
    "Run",
    "Spread",
    "Standing",
    "Task",
    "advise",
    "lrs_around",
    "make_candidate",
    "race",
]
