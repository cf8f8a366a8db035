"""The whole table of optimizers, in the Triton kernels."""

import pytest
import torch

from matrix_adagrad import SteepestDescent
from matrix_adagrad.optim.step import dispatch
from tests.optim.table import TABLE, settings
from tests.optim.training import SHAPES, assert_same, make_params, train

DTYPES = {torch.float32: {"rtol": 1e-5, "atol": 1e-6}, torch.bfloat16: {"rtol": 2**-6, "atol": 1e-3}}


@pytest.fixture
def only_triton(monkeypatch):
    """Steps run in the Triton kernels, or are refused; those of the reference run there."""

    def backends(config):
        is_reference = config.fused is False or config.foreach is False
        return chosen(config) if is_reference else (dispatch.TRITON,)

    chosen = dispatch._backends
    monkeypatch.setattr(dispatch, "_backends", backends)


@pytest.mark.parametrize("entrant", TABLE, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.usefixtures("only_triton")
def test_every_optimizer_in_every_setting(entrant, dtype):
    for options in settings(entrant):
        ends = [
            train(lambda p, how=how, options=options: entrant(p, **options, **how), make_params(dtype), steps=2)
            for how in ({}, {"foreach": False})
        ]
        (params, optimizer), (expected, other) = ends
        assert_same(params, expected, **DTYPES[dtype])
        for param, same in zip(params, expected, strict=True):
            for name, value in optimizer.state[param].items():
                torch.testing.assert_close(value, other.state[same][name], **DTYPES[dtype])


@pytest.mark.parametrize("geometry", ["row", "column", "entry", "whole", "spectral"])
@pytest.mark.usefixtures("only_triton")
def test_steepest_descent(geometry):
    shapes = [shape for shape in SHAPES if geometry != "spectral" or len(shape) == 2]
    for options in ({}, {"nesterov": True, "weight_decay": 0.1}, {"momentum": 0.0, "scale": None}):
        (params, _), (expected, _) = (
            train(
                lambda p, how=how, options=options: SteepestDescent(p, geometry=geometry, lr=0.1, **options, **how),
                make_params(torch.float32, shapes),
                steps=2,
            )
            for how in ({}, {"fused": False})
        )
        assert_same(params, expected, rtol=1e-4, atol=1e-5)
