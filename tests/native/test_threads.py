"""Threads change no bits and need little: whatever modes and stacks they have, and where a fork has lost them."""

import contextlib
import functools
import itertools
import os
import signal
import subprocess
import sys
import threading

import pytest
import torch
from torch.nn import Parameter

from matrix_adagrad import EmbeddingBag, RowAdaGrad, native
from matrix_adagrad.bags import BagGradient
from matrix_adagrad.domains import balls
from matrix_adagrad.geometry import Entry, Row
from matrix_adagrad.optim.step.config import MomentumConfig
from matrix_adagrad.optim.step.dispatch import NATIVE
from tests.native.test_lazy import make_lag
from tests.optim.batches import (
    DTYPES,
    KINDS,
    a_config,
    assert_equal,
    copied,
    described,
    fused,
    spread,
    state_of,
    written,
)

pytestmark = pytest.mark.skipif(bool(native.missing()), reason=f"no native kernels: {native.missing()}")

SHAPES = ((20, 300_000), (300_000, 2), (3000, 100), (90, 100))  # long rows, many, chunks of them, and a small tensor


@pytest.fixture(autouse=True)
def _two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


# ------------------------------------------------------------------------------------------------------------- kernels


def dense_steps():
    options = ({"betas": (0.9, 0.99)}, {"weight_decay": 0.1}, {"stochastic_rounding": True})
    for geometry, shape, dtype, more in itertools.product(KINDS, SHAPES, DTYPES, ({}, *options)):
        config = a_config(geometry, **more)
        x = torch.ones(shape, dtype=dtype)
        yield fused, state_of([x], [torch.ones_like(x)], config), config


def steps_in_parts():
    for geometry, shape in itertools.product(KINDS[:4], SHAPES):
        config = a_config(geometry)
        x = torch.ones(shape)
        batch = state_of([x], [torch.ones_like(x)], config)
        batch[0].sums = (torch.empty_like(batch.statistics[0]),)
        described(batch, config)
        for part in (NATIVE.read, NATIVE.move):
            yield part, batch, config


def sparse_steps():
    index, table = torch.arange(20_000) * 7919 % 5000, torch.ones(5000, 30)
    values = torch.ones(20_000, 30)
    by_rows = torch.sparse_coo_tensor(index[None], values, table.shape, check_invariants=True)
    by_bags = BagGradient(index, torch.arange(0, 20_001, 20), values[:1000], table.shape)
    for geometry, dtype, grad in itertools.product(KINDS, DTYPES, (by_rows, by_bags)):
        for options in ({}, {"betas": (0.9, 0.99)}, {"weight_decay": 0.1}):
            config = a_config(geometry, **options)
            own = grad if dtype is torch.float32 else grad.to_sparse().to(dtype)
            yield fused, state_of([table.to(dtype)], [own], config), config


def sums_and_projections():
    for dtype in DTYPES:
        for bags, rows in ((1000, 20), (3, 10_000)):
            index = torch.arange(bags * rows).view(bags, rows) % 5000
            yield EmbeddingBag(5000, 30, mode="sum", sparse=True, dtype=dtype), index
    for dtype in DTYPES:
        lag = make_lag(Entry(), dtype, 70, 5000)
        yield lag.catch_up, MomentumConfig(lazy="exact", decoupled_weight_decay=True), torch.arange(20_000) % 5000
    for shape in ((3, 100_000), (1000, 50)):
        a = torch.ones(shape, dtype=torch.float64)
        yield balls._native, a, a, (1,), 1e-15


def run_every_kernel():
    """Each in a thread of its own, of the size that is set."""
    errors = []

    def attempt(call, *arguments):
        try:
            with torch.no_grad():
                call(*arguments)
        except Exception as error:  # a thread's own would only be printed
            errors.append(error)

    for kernel in itertools.chain(dense_steps(), steps_in_parts(), sparse_steps(), sums_and_projections()):
        thread = threading.Thread(target=attempt, args=kernel)
        thread.start()
        thread.join()
    if errors:
        raise errors[0]


# --------------------------------------------------------------------------------------------------------- small stacks


IN_SMALL_THREADS = """
import threading, torch
from tests.native.test_threads import run_every_kernel
torch.set_num_threads(2)
threading.stack_size(64 * 1024)
run_every_kernel()
"""


@pytest.mark.separate_process
def test_64_kilobytes_of_stack_are_enough_for_every_kernel():
    environment = {**os.environ, "OMP_STACKSIZE": "64k"}
    subprocess.run([sys.executable, "-c", IN_SMALL_THREADS], env=environment, check=True, timeout=600)


# ----------------------------------------------------------------------------------------------------- denormal numbers


@pytest.fixture(name="flush", params=[False, True])
def _flush(request):
    if not torch.set_flush_denormal(request.param):
        pytest.skip("this CPU has no such mode")
    yield request.param
    torch.set_flush_denormal(False)


def tiny(shape, seed, dtype=torch.float32):
    """Numbers around the smallest normal one."""
    return spread(shape, seed, dtype) * torch.finfo(dtype).tiny


def alone_and_shared(call):
    ends = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        ends.append(call())
    return ends


@pytest.mark.parametrize("geometry", KINDS, ids=str)
@pytest.mark.parametrize("betas", [None, (0.9, 0.99)])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_denormal_numbers_count_alike_in_all_threads(geometry, betas, is_sparse, flush):
    config = a_config(geometry, betas=betas, eps=1.0)
    x, g = tiny((600, 900), 0), tiny((600, 900), 1)
    batch = state_of([x], [g.to_sparse(1) if is_sparse else g], config)

    def step():
        end = copied(batch)
        fused(end, config)
        return end

    alone, shared = alone_and_shared(step)
    assert_equal(alone, shared)
    kept = alone.params[0].abs() < torch.finfo(torch.float32).tiny
    assert (alone.params[0][kept] != 0).any() != flush  # the mode is that of the caller


def test_denormal_numbers_count_alike_in_bags(flush):
    bag = EmbeddingBag(3000, 40, mode="sum", sparse=True, _weight=tiny((3000, 40), 0))
    index = torch.randint(3000, (3000, 2))
    alone, shared = alone_and_shared(lambda: bag(index))
    assert torch.equal(alone.view(torch.int32), shared.view(torch.int32))
    small = alone[alone.abs() < torch.finfo(torch.float32).tiny]
    assert (small != 0).any() != flush


def test_denormal_numbers_count_alike_in_projections(flush):
    a, s = tiny((3, 100_000), 0, torch.float64).abs(), spread((3, 100_000), 1, torch.float64).abs()
    a[:, 0] = 2  # outside the ball
    s[:, 1:] = tiny((3, 99_999), 2, torch.float64).abs()
    alone, shared = alone_and_shared(lambda: balls._native(a, s, (1,), 1e-15))
    assert torch.equal(alone.view(torch.int64), shared.view(torch.int64))
    assert flush == (torch.tensor([1e-310], dtype=torch.float64) * 1).eq(0).item()


def test_threads_have_their_own_modes_back_afterwards():
    """What torch computes in them does not change."""
    x, half = torch.full((600_000,), 2 * torch.finfo(torch.float32).tiny), torch.full((600_000,), 0.25)
    before = x * half
    assert torch.set_flush_denormal(True)
    try:
        config = a_config(Row())
        fused(state_of([torch.ones(600, 900)], [torch.ones(600, 900)], config), config)
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(x * half, before)


# --------------------------------------------------------------------------------------------------------------- rooms


@pytest.mark.parametrize("geometry", KINDS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_that_are_stepped_side_by_side_have_rooms_of_their_own(geometry, dtype):
    """Which thread takes which tensor is chance: so many tensors, and several times."""
    config, shapes = a_config(geometry, weight_decay=0.1), [(1000, 130), (300, 40), (70, 900)] * 4
    grads = [spread(shape, 100 + seed, dtype) for seed, shape in enumerate(shapes)]
    batch = state_of([spread(shape, seed, dtype) for seed, shape in enumerate(shapes)], grads, config)
    before = [grad.clone() for grad in grads]
    ends = []
    for threads in (1, 2, 3, 2, 3):
        ends.append(copied(batch))
        torch.set_num_threads(threads)
        fused(ends[-1], config)
        assert_equal(ends[0], ends[-1])
    assert all(torch.equal(grad, own) for end in ends for grad, own in zip(end.grads, before, strict=True))


# ---------------------------------------------------------------------------------------------------------------- forks


def large_kernels():
    """What is written by each kernel, as functions that can be called again."""
    x, g = spread((600, 900), 0, torch.float32), spread((600, 900), 1, torch.float32)
    cases = [(geometry, g) for geometry in KINDS] + [(Row(), g.to_sparse(1))]
    for geometry, grad in cases:
        config = a_config(geometry, betas=(0.9, 0.99))
        yield functools.partial(written_by_a_step, [state_of([x.clone()], [grad], config) for _ in range(2)], config)
    table = torch.randn(5000, 40)
    bag, index = EmbeddingBag.from_pretrained(table, mode="sum", sparse=True), torch.randint(5000, (100, 20))
    yield lambda: [bag(index)]
    lengths = table.double().abs()
    yield lambda: [balls._native(lengths, lengths, (1,), 1e-15)]
    yield functools.partial(moved_by_a_step, [optimizer_of_many_rows() for _ in range(2)])


def optimizer_of_many_rows():
    """With its state: torch would make it on several threads."""
    x, rows = Parameter(torch.zeros(200_000, 1)), torch.randperm(100_000)[None]
    x.grad = torch.sparse_coo_tensor(rows, torch.ones(100_000, 1), x.shape, check_invariants=False)
    optimizer = RowAdaGrad([x], lr=0.1)
    optimizer.init_state()
    return x.detach(), optimizer


def moved_by_a_step(pairs):
    x, optimizer = pairs.pop()
    optimizer.step()
    return [x]


def written_by_a_step(batches, config):
    batch = batches.pop()
    fused(batch, config)
    return written(batch)


FORKED = """
import ctypes, os, torch
from matrix_adagrad import native
from tests.native.test_threads import large_kernels

torch.set_num_threads(2)
for number, kernel in enumerate(large_kernels()):
    expected = kernel()  # OpenMP has two threads now
    found = [torch.zeros_like(x).share_memory_() for x in expected]
    if not (child := os.fork()):
        for x, y in zip(found, kernel()):
            ctypes.memmove(x.data_ptr(), y.data_ptr(), y.nbytes)  # copy_ would wait for threads that are not there
        os._exit(native.threads() != 1)
    assert os.waitpid(child, 0)[1] == 0, number
    assert all(torch.equal(x, y) for x, y in zip(found, expected)), number
    assert native.threads() == 2  # this process has lost nothing
"""


@pytest.mark.separate_process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_fork_takes_the_same_steps_on_the_one_thread_that_it_has():
    program = subprocess.Popen([sys.executable, "-c", FORKED], start_new_session=True)
    try:
        assert program.wait(timeout=120) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)  # a child that hangs would outlive all
        program.wait()
