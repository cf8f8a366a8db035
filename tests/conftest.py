"""What has to be set before torch is imported: see the Makefile and benchmarks for why."""

import os
from pathlib import Path

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

import pytest
import torch
import torch.testing._internal.common_utils  # noqa: F401 – it loads a profile of its own, with 10 examples: ours comes after
from hypothesis import settings

from matrix_adagrad import native

# Examples are drawn anew in every run; a failure prints the lines that reproduce it. More of them:
# HYPOTHESIS_PROFILE=thorough make test
settings.register_profile("default", deadline=None, print_blob=True)
settings.register_profile("thorough", deadline=None, print_blob=True, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_addoption(parser):
    parser.addoption("--kernels", type=Path, help="the library of native kernels to test instead of the installed one")


def pytest_configure(config):
    config.addinivalue_line("markers", "separate_process: starts a program that is not this one")
    if config.getoption("--kernels"):
        native.LIBRARY = config.getoption("--kernels").resolve()
    if hasattr(config, "workerinput"):  # pytest -n: each of its workers has one core, and tests that need more say so
        torch.set_num_threads(1)


# With pytest -n: tests that share something which takes long to make, and so go to one worker, by how their ids start.
# The mark xdist_group would say the same, but pytest-xdist 3.8 sets ids in a way that pytest 9.2 no longer reads.
TOGETHER = (
    "tests/distributed/",
    "tests/reproduction/test_reproduce.py",
    "tests/native/test_library.py::test_a_step_needs_less_than_a_megabyte_whatever_the_size",
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            if nodeid.startswith("tests/integration/"):  # files have much that their tests share
                return nodeid.partition("::")[0]
            return next(filter(nodeid.startswith, TOGETHER), nodeid)

    return Scheduling(config, log)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
