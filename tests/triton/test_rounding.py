"""Rounding at random in the Triton kernels, by counters."""

from dataclasses import replace

import pytest
import torch
from hypothesis import strategies as st

from matrix_adagrad.geometry import Column, Entry, Factored, Row
from matrix_adagrad.optim.step import triton_tensors
from matrix_adagrad.optim.step.dispatch import NATIVE
from tests.optim.batches import (
    a_config,
    copied,
    spread,
    state_of,
)
from tests.triton.steps import step

COVERED = (torch.float32, torch.bfloat16, torch.float16)
sizes = st.one_of(st.integers(1, 9), st.sampled_from([16, 31, 33, 64, 65]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("geometry", [Row(), Column(), Entry(), Factored()], ids=str)
@pytest.mark.usefixtures("small_tiles")
def test_rounding_at_random_draws_the_numbers_of_the_c_kernels(dtype, geometry):
    config = replace(a_config(geometry), stochastic_rounding=True)
    batch = state_of([spread((40, 24), 0, dtype)], [spread((40, 24), 1, dtype)], config)
    other = copied(batch)
    step(batch, config)
    for update in other:
        assert not NATIVE.reason_against(update, config)
    NATIVE.step(other, config)
    # The last bits of sums differ, and so does a result that is that close to the edge.
    assert (batch.params[0] == other.params[0]).float().mean() > 0.98


def test_rounding_does_not_depend_on_tiles_and_is_right_on_average(monkeypatch):
    config = replace(a_config(Entry(), eps=0.0), lr=1e-3, stochastic_rounding=True)
    ends = []
    for tile in (32, 4096):
        monkeypatch.setattr(triton_tensors, "TILE", tile)
        batch = state_of([torch.ones(64, 64, dtype=torch.bfloat16)], [torch.ones(64, 64, dtype=torch.bfloat16)], config)
        step(batch, config)
        ends.append(batch.params[0])
    assert torch.equal(*ends)
    assert abs(ends[0].double().mean() - 0.999) < 3e-4
    assert len(ends[0].unique()) == 2


def test_a_narrow_average_is_rounded_at_random():
    config = replace(a_config(Row(), betas=(0.999, 0.99)), momentum_dtype=torch.bfloat16)
    ends = []
    for seed in (1, 2):
        batch = state_of([torch.ones(64, 64)], [torch.ones(64, 64)], config)
        batch[0].average, batch[0].stream = torch.full((64, 64), 0.5, dtype=torch.bfloat16), seed
        step(batch, config)
        ends.append(batch[0].average)
    assert not torch.equal(*ends)
    for end in ends:
        assert abs(end.double().mean() - 0.5005) < 1e-4
