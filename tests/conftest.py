"""What has to be set before torch is imported: see the Makefile and benchmarks for why."""

import os

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

import pytest
import torch
from hypothesis import settings

# Examples are drawn anew in every run; a failure prints the lines that reproduce it.
settings.register_profile("default", deadline=None, print_blob=True)
settings.load_profile("default")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
