"""Measures a model while it trains, and says which geometry pays for which of its parameters, and why."""

from matrix_adagrad.advisor.portrait import Portrait, Spread
from matrix_adagrad.advisor.probe import Probe
from matrix_adagrad.advisor.report import Report
from matrix_adagrad.advisor.task import Task

__all__ = ["Portrait", "Probe", "Report", "Spread", "Task"]
