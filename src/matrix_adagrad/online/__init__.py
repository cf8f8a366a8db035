"""The theory as code: proximal functions, mirror descent with an adaptive geometry, regret and its bounds."""

from matrix_adagrad.online.bounds import Inequality, RegretTerms, TradeOff
from matrix_adagrad.online.data_streams import EntryStream, ExampleStream
from matrix_adagrad.online.games import Completion, Game, Hinge, Logistic
from matrix_adagrad.online.linear_games import Adversarial, GivenGradients, Linear, Motivating
from matrix_adagrad.online.meter import RegretMeter
from matrix_adagrad.online.mirror_descent import AdaGrad, Fixed, MirrorDescent, Scheme
from matrix_adagrad.online.proximal import ColumnWise, Proximal, RowWise, Scaled, Vectorised
from matrix_adagrad.online.regret import Regret
from matrix_adagrad.online.solver import Solution, minimise

__all__ = [
    "AdaGrad",
    "Adversarial",
    "ColumnWise",
    "Completion",
    "EntryStream",
    "ExampleStream",
    "Fixed",
    "Game",
    "GivenGradients",
    "Hinge",
    "Inequality",
    "Linear",
    "Logistic",
    "MirrorDescent",
    "Motivating",
    "Proximal",
    "Regret",
    "RegretMeter",
    "RegretTerms",
    "RowWise",
    "Scaled",
    "Scheme",
    "Solution",
    "TradeOff",
    "Vectorised",
    "minimise",
]
