"""Steepest descent, one tensor at a time, line for line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from matrix_adagrad.geometry.base import quotient
from matrix_adagrad.optim.step.backend import Backend
from matrix_adagrad.optim.step.config import SteepestConfig
from matrix_adagrad.optim.step.update import Update, count, direction_of, store, widen

__all__ = ["Steepest"]

RMS = 0.2  # of a step with lr=1, as torch's Muon matches AdamW
EPS = 1e-8


class Steepest(Backend):
    """Supports any tensor and any geometry with a direction of steepest descent."""
