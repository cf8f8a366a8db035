"""The modules for TorchRec and FBGEMM: their examples run, and without the packages they say what to install."""

import doctest
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

if "INTEGRATIONS" not in os.environ:
    pytest.skip("it imports TorchRec and FBGEMM: make test-integrations", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore")  # of the peers' own
EXAMPLE = Path(__file__).parents[2] / "examples" / "leave_torchrec.py"


@pytest.mark.parametrize(("name", "package"), [("torchrec", "TorchRec"), ("fbgemm", "FBGEMM")])
def test_the_examples_run_and_without_the_package_an_error_says_what_to_install(name, package):
    tested = doctest.testmod(importlib.import_module(f"matrix_adagrad.interop.{name}"))
    assert (tested.failed, tested.attempted > 0) == (0, True)
    hidden = "import sys; sys.modules.update(dict.fromkeys(['torchrec', 'fbgemm_gpu']))"
    command = [sys.executable, "-c", f"{hidden}; import matrix_adagrad.interop.{name}"]
    last = subprocess.run(command, capture_output=True, encoding="utf-8").stderr.splitlines()[-1]
    assert f"needs {package}" in last
    assert "pip install --no-deps" in last


def test_the_example_ends_where_the_unbroken_run_does():
    shown = subprocess.run([sys.executable, EXAMPLE], capture_output=True, encoding="utf-8")
    assert shown.returncode == 0, shown.stderr
    assert float(shown.stdout.splitlines()[-1].split()[-1]) < 1e-6
