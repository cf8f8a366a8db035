"""Outputs of many tables have memory that nobody else sees, in any thread."""

import functools
import io
import sys
import threading

import numpy as np
import pytest
import torch

from matrix_adagrad import (
    MatrixAdaGrad,
    native,
    step_in_backward,
)
from matrix_adagrad.geometry import Column, Row
from matrix_adagrad.torch_private import has_free_memory
from tests.bags.tables import bags_of, batch
from tests.optim.training import assert_bitwise

pytestmark = pytest.mark.skipif(bool(native.missing()), reason=f"no native kernels: {native.missing()}")


def test_the_bits_do_not_depend_on_threads():
    """With tables of very different sizes: small ones are shared out, a large one is split."""
    tables = {"user": (40_000, 64), "items": (300, 64), "type": (7, 20), "shop": (2000, 1)}
    random, before = torch.Generator().manual_seed(0), torch.get_num_threads()
    index = torch.cat([torch.randint(rows, (900 * 7,), generator=random) for rows, _ in tables.values()])
    offsets, upstream = torch.arange(900 * 4 + 1) * 7, torch.randn(900, 149, generator=random)
    for geometry in (Row(), Column()):
        ends = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            try:
                bags = bags_of(tables)
                optimizer = MatrixAdaGrad(bags.parameters(), geometry=geometry)
                step_in_backward(optimizer)
                outs = []
                for _ in range(2):
                    outs.append(bags(index, offsets))
                    outs[-1].backward(upstream)
                ends.append([*outs, *bags.tables.values()])
            finally:
                torch.set_num_threads(before)
        assert_bitwise(ends[0] * 2, ends[1] + ends[2])


def saved_for_backward(out):
    square = out.square()
    return lambda: torch.autograd.grad(square.sum(), out, retain_graph=True)[0] / 2


@pytest.mark.parametrize(
    "keep",
    [
        lambda out: out,
        lambda out: out.detach(),
        lambda out: out[1:, 2:],
        lambda out: out.detach().view(-1)[3:].as_strided((2, 3), (1, 1)),
        lambda out: torch.from_numpy(out.detach().numpy()),
        lambda out: torch.from_numpy(np.asarray(out.detach())[1:]),
        lambda out: torch.frombuffer(memoryview(out.detach().numpy()), dtype=torch.float32),
        lambda out: torch.from_dlpack(out.detach()),
        lambda out: out.relu_(),
        saved_for_backward,
        lambda out: functools.partial(torch.tensor([]).set_, out.detach().untyped_storage()),
    ],
    ids=["output", "detached", "view", "strided", "numpy", "array", "buffer", "dlpack", "in_place", "saved", "storage"],
)
def test_an_output_that_somebody_keeps_is_never_overwritten(keep):
    bags = bags_of()
    kept = []
    for seed in range(6):
        found = keep(bags(*batch(seed)))
        read = found if callable(found) and not isinstance(found, torch.Tensor) else lambda found=found: found
        kept.append((read, read().detach().clone()))
        del found, read
    for read, before in kept:
        assert_bitwise([read()], [before])


def test_an_output_that_another_process_may_see_is_never_overwritten():
    """Such as one that was sent through a queue: the sender lets go of it before the receiver has read it."""
    bags = bags_of()
    out = bags(*batch()).detach().share_memory_()
    handle = out.untyped_storage()._share_filename_cpu_()
    expected = out.clone()
    del out
    for seed in range(3):
        bags(*batch(seed + 1))
    received = torch.UntypedStorage._new_shared_filename_cpu(*handle)
    assert_bitwise([torch.tensor([]).set_(received)[: expected.numel()].view_as(expected)], [expected])


def test_outputs_of_threads_are_their_own():
    bags, errors, interval = bags_of({"user": (1000, 16)}), [], sys.getswitchinterval()

    def run(seed):
        random, kept = torch.Generator().manual_seed(seed), []
        try:
            for _ in range(200):
                index = torch.randint(1000, (50,), generator=random)
                kept = [*kept[-2:], (index, bags(index, torch.arange(51)))]
                for own, out in kept:
                    assert torch.equal(out, bags.tables["user"][own])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert errors == []


def test_the_memory_of_an_output_is_used_again_once_it_is_gone():
    bags = bags_of()
    bags(*batch())  # of this size, and never seen again
    places = {bags(*batch(seed)).data_ptr() for seed in range(5)}
    assert len(places) == 1


def test_an_output_has_memory_for_itself_alone():
    """torch.save writes all the memory that a tensor lies in."""
    bags = bags_of()
    bags(*batch(bags=100))
    out, file = bags(*batch(bags=1)).detach(), io.BytesIO()
    torch.save(out, file)
    assert out.untyped_storage().nbytes() == out.numel() * 4
    assert file.tell() < 100 * out.numel() * 4


def test_memory_that_was_given_back_is_not_used():
    bags = bags_of()
    out = bags(*batch()).detach()
    expected = out.clone()
    out.untyped_storage().resize_(0)
    del out
    assert_bitwise([bags(*batch())], [expected])
    assert has_free_memory(expected)
