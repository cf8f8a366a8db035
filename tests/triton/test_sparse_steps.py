"""Sparse gradients in the Triton kernels: cost by the batch, and nothing outside of the table."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from matrix_adagrad.geometry import Row
from matrix_adagrad.native.matrices import NotCoveredError
from matrix_adagrad.optim.step import triton as backend
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


@pytest.mark.parametrize("is_coalesced", [False, True])
def test_a_gradient_of_one_row_moves_that_row(is_coalesced):
    grad = torch.sparse_coo_tensor(
        torch.tensor([[2]]), torch.ones(1, 16), (4, 16), is_coalesced=is_coalesced, check_invariants=True
    )
    for geometry in KINDS:
        batch = state_of([spread((4, 16), 0, torch.float32)], [grad], a_config(geometry))
        other = copied(batch)
        step(batch, a_config(geometry))
        sparse(other, a_config(geometry))
        assert_close(batch, other)


@pytest.mark.parametrize("is_coalesced", [False, True])
def test_nothing_outside_of_the_table_is_written_where_devices_raise_no_errors(monkeypatch, is_coalesced):
    """AMD's builds of torch leave assertions on the device out."""
    monkeypatch.setattr(backend, "assert_async", lambda *_: None)
    index = torch.tensor([[-1, 2, 6]])
    grad = torch.sparse_coo_tensor(index, torch.ones(3, 16), (6, 16), is_coalesced=is_coalesced, check_invariants=False)
    for geometry in KINDS:
        around = torch.ones(24, 16)
        batch = state_of([around[8:14]], [grad], a_config(geometry))
        step(batch, a_config(geometry))
        is_moved = (around != 1).any(1)
        assert is_moved.nonzero().flatten().tolist() == [10]
