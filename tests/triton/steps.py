"""Single steps in the Triton kernels, and what the tests of them share."""

import pytest
import torch
from hypothesis import HealthCheck, settings

from matrix_adagrad.geometry import Partition
from matrix_adagrad.native.matrices import NotCoveredError
from matrix_adagrad.optim.step import triton as backend
from matrix_adagrad.optim.step.config import Config
from matrix_adagrad.optim.step.dispatch import TRITON
from tests.optim.batches import KINDS, spread, state_of

# The interpreter takes a millisecond for what a device does in one program.
few = settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])

FAMILIES = {
    "adagrad": {},
    "momentum": {"betas": (0.9, 0.99), "bias_correction": True},
    "nesterov": {"betas": (0.9, 0.99), "bias_correction": True, "nesterov": True},
    "averages alone": {"betas": (0.0, 0.99), "bias_correction": True},
    "steepest": {"momentum": 0.9, "nesterov": True},
}
every_pair = pytest.mark.parametrize(
    ("geometry", "family"),
    [
        pytest.param(geometry, options, id=f"{geometry}-{family}")
        for geometry in KINDS
        for family, options in FAMILIES.items()
        if family != "steepest" or isinstance(geometry, Partition)  # others have no norm
    ],
)


def step(batch, config):
    """A step in the kernels; `NotCoveredError` if they do not cover it."""
    for update in batch:
        update.prepared = None
        if reason := TRITON.reason_against(update, config):
            raise NotCoveredError(reason)
    TRITON.step(batch, config)


def of_shapes(shapes, config, dtype=torch.float32):
    params, grads = ([spread(shape, 9 * i + j, dtype) for j, shape in enumerate(shapes)] for i in range(2))
    return state_of(params, grads, config)


def renewed(batch):
    repeated = TRITON.repeated(batch)
    assert repeated.renew(Config(), [update.grad for update in batch])
    return repeated


class Recorded:
    """The kernels, and the names of those that ran."""

    def __init__(self):
        self.ran, self._kernels = [], backend._kernels()

    def __getattr__(self, name):
        found = getattr(self._kernels, name)
        if not hasattr(found, "run"):
            return found
        return _Noted(found, name, self.ran)


class _Noted:
    def __init__(self, kernel, name, ran):
        self._kernel, self._name, self._ran = kernel, name, ran

    def __getitem__(self, grid):
        self._ran.append(self._name)
        return self._kernel[grid]
