"""Stochastic rounding to float16: without bias from its subnormal numbers to its largest, on every path."""

import pytest
import torch
from torch.nn import Parameter

from matrix_adagrad import MatrixAdaGrad, MatrixMomentum, RowAdaGrad, SteepestDescent, native
from tests.optim.table import BACKENDS

HALF = torch.float16
NUMBERS = 1 << 16
VALUES = [1.0003, 3.0e4, 2**-14 * 1.0001, 0.7 * 2**-14, 3.1 * 2**-24, 0.3 * 2**-24, 2**-30]
needs_kernels = pytest.mark.skipif(bool(native.missing()), reason=f"no native kernels: {native.missing()}")


def sparse_ones(x):
    return torch.sparse_coo_tensor(torch.arange(len(x))[None], torch.ones_like(x), x.shape, check_invariants=True)


def rounded(value, *, is_sparse=False, start=0.0, seed=0, **backend):
    """So many parameters, each moved from ``start`` to ``value`` by one step."""
    torch.manual_seed(seed)
    x = Parameter(torch.full((NUMBERS, 1), start, dtype=HALF))
    step = value - start
    optimizer = MatrixAdaGrad([x], lr=abs(step), eps=0.0, stochastic_rounding=True, maximize=step > 0, **backend)
    x.grad = sparse_ones(x) if is_sparse else torch.ones_like(x)
    optimizer.step()
    return x.detach().double()


every_path = pytest.mark.parametrize(
    "backend", [{**backend, "is_sparse": sparse} for backend in BACKENDS.values() for sparse in (False, True)], ids=str
)


@every_path
@pytest.mark.parametrize("value", [*VALUES, *(-value for value in VALUES)])
def test_the_mean_of_many_roundings_is_the_value(value, backend):
    x = rounded(value, **backend)
    low, high = x.min().item(), x.max().item()
    unit = max(2.0 ** (torch.tensor(abs(value)).log2().floor().item() - 10), 2.0**-24)
    assert high - low <= unit
    assert low <= torch.tensor(value).item() <= high or value == 2**-30  # so rare that all may be 0
    error = unit * (0.25 / NUMBERS) ** 0.5  # at most, of the mean
    assert abs(x.mean().item() - value) < 5 * error


@every_path
def test_what_is_exact_stays(backend):
    exact = torch.tensor([1.0, -2.0, 0.0, 65504.0, 2**-14, 2**-24, -(2**-24), 1023 * 2**-24, -(2**-14) - 2**-24])
    infinite = torch.tensor([torch.inf, -torch.inf, torch.nan])
    x = Parameter(torch.cat([exact, infinite]).to(HALF)[:, None])
    before = x.detach().clone()
    options = {name: value for name, value in backend.items() if name != "is_sparse"}
    optimizer = MatrixAdaGrad([x], lr=0.0, stochastic_rounding=True, **options)
    x.grad = sparse_ones(x) if backend["is_sparse"] else torch.ones_like(x)
    optimizer.step()
    torch.testing.assert_close(x.detach(), before, rtol=0, atol=0, equal_nan=True)


@every_path
def test_rounding_never_makes_infinity_of_what_is_below_it(backend):
    assert rounded(65535.0, start=65504.0, **backend).eq(65504).all()
    assert rounded(-65535.0, start=-65504.0, **backend).eq(-65504).all()
    assert rounded(65536.0, start=65504.0, **backend).isinf().all()  # a step too far is one


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
@pytest.mark.parametrize("cls", [MatrixAdaGrad, MatrixMomentum, SteepestDescent])
def test_steps_below_half_a_unit_are_not_lost(cls, backend):
    if cls is SteepestDescent:
        backend = {"fused": False} if backend else {}
    x, nearest = (Parameter(torch.ones(40_000, 1, dtype=HALF)) for _ in range(2))
    for param, is_random in ((x, True), (nearest, False)):
        optimizer = cls([param], lr=1e-4, geometry="row", stochastic_rounding=is_random, **backend)
        for _ in range(5):
            param.grad = torch.ones_like(param)
            optimizer.step()
    assert torch.equal(nearest, torch.ones_like(nearest))
    assert 0 < (1 - x.detach().double()).mean() < 1e-3


@needs_kernels
@pytest.mark.parametrize("value", [1.0003, 0.7 * 2**-14, 65510.0])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_the_bits_depend_neither_on_threads_nor_on_the_width_of_registers(value, is_sparse):
    start = 65504.0 if value > 2**15 else 0.0
    library, threads_before, ends = native.load(), torch.get_num_threads(), []
    try:
        for width in range(3):
            library.matrix_adagrad_use_at_most(width)
            for threads in (1, 2):
                torch.set_num_threads(threads)
                ends.append(rounded(value, start=start, is_sparse=is_sparse, fused=True))
    finally:
        library.matrix_adagrad_use_at_most(2)
        torch.set_num_threads(threads_before)
    assert all(torch.equal(end, ends[0]) for end in ends)
    if value < 2**15:
        other = rounded(value, is_sparse=is_sparse, fused=True, seed=1)
        assert not torch.equal(other, ends[0])


def test_a_large_tensor_is_rounded_in_pieces():
    x = Parameter(torch.ones(600, 700, dtype=HALF).t())
    optimizer = RowAdaGrad(
        [x], lr=0.3 * 2**-10, reduction="mean", stochastic_rounding=True, maximize=True, foreach=True
    )
    x.grad = torch.ones_like(x)
    optimizer.step()
    ups = (x.detach().float() - 1) * 2**10
    assert {*ups.unique().tolist()} == {0.0, 1.0}
    for share in (ups.mean(), ups[::2].mean(), ups[:, ::2].mean()):
        assert abs(share - 0.3) < 5 * (0.21 / (ups.numel() / 2)) ** 0.5
