"""Sparse gradients in the Triton kernels: cost by the batch, and nothing outside of the table."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from matrix_adagrad.geometry import Row
from matrix_adagrad.native.matrices import NotCoveredError
from matrix_adagrad.optim.step.config import SteepestConfig
from tests.optim.batches import (
    KINDS,
    a_config,
    assert_close,
    configs,
    copied,
    sparse,
    spread,
    state_of,
)
from tests.triton.steps import few, step

COVERED = (torch.float32, torch.bfloat16, torch.float16)
sizes = st.one_of(st.integers(1, 9), st.sampled_from([16, 31, 33, 64, 65]))


@st.composite
def sparse_cases(draw):
    config = draw(configs(geometries=KINDS, floors=(0.0,)))
    rows, width, entries = draw(st.integers(1, 20)), draw(st.sampled_from([1, 3, 16, 40])), draw(st.integers(1, 40))
    dtype = draw(st.sampled_from(COVERED))
    index = torch.tensor(draw(st.lists(st.integers(0, rows - 1), min_size=entries, max_size=entries)))
    grad = torch.sparse_coo_tensor(
        index[None], spread((entries, width), 1, dtype), (rows, width), check_invariants=True
    )
    if draw(st.booleans()):
        grad = grad.coalesce()
    return state_of([spread((rows, width), 0, dtype)], [grad], config), config


@few
@given(sparse_cases())
@pytest.mark.usefixtures("small_tiles")
def test_a_sparse_step_is_that_of_torchs_operators(case):
    batch, config = case
    other = copied(batch)
    for _ in range(2):
        if isinstance(config, SteepestConfig) and not config.geometry.separates_rows((2, 2)):
            with pytest.raises(NotCoveredError, match="depend on each other"):
                step(batch, config)
            return
        step(batch, config)
        sparse(other, config)
    assert_close(batch, other)


def test_a_row_that_is_there_a_thousand_times_is_summed_in_runs():
    index = torch.cat([torch.zeros(1000, dtype=torch.int64), torch.arange(50)])
    values = spread((1050, 16), 1, torch.float32)
    grad = torch.sparse_coo_tensor(index[None], values, (50, 16), check_invariants=True)
    config = a_config(Row())
    batch = state_of([spread((50, 16), 0, torch.float32)], [grad], config)
    other = copied(batch)
    step(batch, config)
    sparse(other, config)
    assert_close(batch, other)


@pytest.mark.parametrize("wrong", [-1, 6])
def test_a_row_that_is_out_of_range_is_found_before_anything_is_written(wrong):
    grad = torch.sparse_coo_tensor(torch.tensor([[0, wrong]]), torch.ones(2, 4), (6, 4), check_invariants=False)
    batch = state_of([torch.ones(6, 4)], [grad], a_config(Row()))
    with pytest.raises(RuntimeError, match="out of range"):
        step(batch, a_config(Row()))
    assert (batch.params[0] == 1).all()
