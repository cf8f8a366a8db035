"""Parallel loops run every iteration once. A thread begins with its own range, and takes over from those held up."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from matrix_adagrad import native

COMPILER = shutil.which("cc")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler")

SOURCE = r"""
#include "threads.h"
#include <time.h>

static void wait_for(const int64_t *number, int64_t least)
{
    for (int waits = 0; waits < 10000 && __atomic_load_n(number, __ATOMIC_ACQUIRE) < least; waits++)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
}

/* Who runs each iteration, how often, and the order in which they begin. Iteration `held_up` ends when all others have;
   iteration `second` ends when another one has begun. */
void run(int64_t n, int64_t threads, int64_t held_up, int64_t second, int is_backwards, int64_t *by, int64_t *times,
         int64_t *order)
{
    int64_t begun = 0, done = 0;
    PARALLEL_LOOP(is_backwards, i, n, {
        by[i] = thread_number();
        order[__atomic_fetch_add(&begun, 1, __ATOMIC_RELEASE)] = i;
        __atomic_fetch_add(&times[i], 1, __ATOMIC_RELAXED);
        if (i == held_up) wait_for(&done, n - 1);
        if (i == second) wait_for(&begun, 2);
        __atomic_fetch_add(&done, 1, __ATOMIC_RELEASE);
    });
}
"""


@pytest.fixture(scope="module")
def loops(tmp_path_factory):
    folder = tmp_path_factory.mktemp("loops")
    (folder / "loops.c").write_text(SOURCE, encoding="utf-8")
    headers = Path(native.__file__).parent
    flags = ["-std=gnu11", "-O1", "-shared", "-fPIC", "-fopenmp", f"-I{headers}"]
    subprocess.run([COMPILER, *flags, folder / "loops.c", "-o", folder / "loops.so"], check=True)
    return ctypes.CDLL(str(folder / "loops.so"))


def run(loops, n, threads, *, backwards=False, held_up=-1, second=-1):
    by, times, order = ((ctypes.c_int64 * max(1, n))() for _ in range(3))
    numbers = map(ctypes.c_int64, (n, threads, held_up, second))
    loops.run(*numbers, int(backwards), by, times, order)
    return by[:n], times[:n], order[:n]


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("threads", [1, 2, 3, 40])
@pytest.mark.parametrize("n", [0, 1, 2, 7, 33, 1000])
def test_every_iteration_runs_once(loops, n, threads, backwards):
    assert run(loops, n, threads, backwards=backwards)[1] == [1] * n


@pytest.mark.parametrize(("backwards", "expected"), [(False, [0, 1, 2, 3]), (True, [3, 2, 1, 0])])
def test_one_thread_runs_them_in_order(loops, backwards, expected):
    assert run(loops, 4, 1, backwards=backwards)[2] == expected


@pytest.mark.parametrize(("backwards", "held_up", "second"), [(False, 0, 50), (True, 49, 99)])
def test_another_thread_runs_its_own_range_and_then_what_is_left_of_one_that_is_held_up(
    loops, backwards, held_up, second
):
    by, times, order = run(loops, 100, 2, backwards=backwards, held_up=held_up, second=second)
    assert times == [1] * 100
    assert (by[held_up], by.count(0), by.count(1)) == (0, 1, 99)
    own, left = [*range(50, 100)], [i for i in range(50) if i != held_up]
    step = -1 if backwards else 1
    assert [i for i in order if by[i] == 1] == own[::step] + left[::step]
