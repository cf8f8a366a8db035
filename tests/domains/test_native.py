"""The native projection onto balls gives what torch's operators give, with the same bits for any number of threads."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from matrix_adagrad import native
from matrix_adagrad.domains import Balls, FrobeniusBall, balls

pytestmark = pytest.mark.skipif(bool(native.missing()), reason="there are no native kernels here")


def lengths_and_scales(shape, seed, size=1.0, orders=1.0):
    random = torch.Generator().manual_seed(seed)
    a = torch.randn(shape, dtype=torch.float64, generator=random).abs() * size
    return a, 10 ** (orders * (2 * torch.rand(shape, dtype=torch.float64, generator=random) - 1))


@given(
    st.sampled_from([((1, 1), (0, 1)), ((7, 1), (0,)), ((5, 9), (0, 1)), ((6, 11), (1,)), ((4, 3, 5), (0, 2))]),
    st.integers(0, 10**6),
    st.floats(-4, 4),
    st.floats(0, 120),
)
def test_it_agrees_with_torchs_operators(layout, seed, size, orders):
    shape, dims = layout
    a, s = lengths_and_scales(shape, seed, 10**size, orders)
    torch.testing.assert_close(
        balls._native(a, s, dims, 1e-15), balls._with_operators(a, s, dims, 1e-15), rtol=1e-9, atol=1e-200
    )


@pytest.mark.parametrize("shape", [(3, 100_003), (1, 700_001), (500, 257), (2, 5)])
def test_the_bits_do_not_depend_on_the_number_of_threads(shape):
    a, s = lengths_and_scales(shape, 1)
    before = torch.get_num_threads()
    runs = []
    try:
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            runs.append(balls._native(a, s, (1,), 1e-15))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(run, runs[0]) for run in runs)
    assert ((runs[0] * a).norm(dim=1) - 1).abs().max() < 1e-12


def test_nan_stays_in_its_block():
    a, s = lengths_and_scales((3, 10), 1)
    a[1, 4] = math.nan
    factors = balls._native(a, s, (1,), 1e-15)
    assert factors[1].isnan().all()
    assert factors[[0, 2]].isfinite().all()


def test_without_the_kernels_the_projection_is_the_same(monkeypatch):
    x, scale = torch.randn(6, 4, dtype=torch.float64), torch.rand(6, 1, dtype=torch.float64) + 0.1
    fast = [domain.project(x, scale) for domain in (FrobeniusBall(1.0), Balls(0.5, "column"))]
    monkeypatch.setattr(native, "missing", lambda: "none here")
    for domain, y in zip((FrobeniusBall(1.0), Balls(0.5, "column")), fast, strict=True):
        torch.testing.assert_close(domain.project(x, scale), y, rtol=1e-12, atol=1e-14)
