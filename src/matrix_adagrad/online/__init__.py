"""The theory as code: proximal functions, mirror descent with an adaptive geometry, regret and its bounds."""

from matrix_adagrad.online.bounds import Inequality, Ledger, TradeOff
from matrix_adagrad.online.games import (
    Adversarial,
    Completion,
    Game,
    Hinge,
    Linear,
    Logistic,
    Motivating,
)
from matrix_adagrad.online.mirror_descent import AdaGrad, Fixed, FullAdaGrad, MirrorDescent, Scheme
from matrix_adagrad.online.proximal import ColumnWise, Proximal, RowWise, Scaled, Vectorised
from matrix_adagrad.online.regret import RegretMeter
from matrix_adagrad.online.report import Regret
from matrix_adagrad.online.solver import Solution, minimise
from matrix_adagrad.online.streams import Stream, Trace

__all__ = [
    "AdaGrad",
    "Adversarial",
    "ColumnWise",
    "Completion",
    "Fixed",
    "FullAdaGrad",
    "Game",
    "Hinge",
    "Inequality",
    "Ledger",
    "Linear",
    "Logistic",
    "MirrorDescent",
    "Motivating",
    "Proximal",
    "Regret",
    "RegretMeter",
    "RowWise",
    "Scaled",
    "Scheme",
    "Solution",
    "Stream",
    "Trace",
    "TradeOff",
    "Vectorised",
    "minimise",
]
