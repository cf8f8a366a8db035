"""PyTorch's own generic optimizer tests, with these classes entered into its table.

The file comes with PyTorch's source, not with its wheel. Where there is a copy, name it and these run too::

    PYTORCH_TEST_OPTIM=path/to/pytorch/test/test_optim.py make test-integrations
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PLUGIN = """
from torch.testing._internal import common_optimizers
from tests.optim.table import OPTIMIZER_INFOS
common_optimizers.optim_db.extend(OPTIMIZER_INFOS)
"""


def test_pytorchs_generic_optimizer_tests(tmp_path):
    if "PYTORCH_TEST_OPTIM" not in os.environ:
        pytest.skip("PYTORCH_TEST_OPTIM does not name a copy of PyTorch's test/test_optim.py")
    suite = Path(os.environ["PYTORCH_TEST_OPTIM"]).resolve()
    (tmp_path / "enter_into_the_table.py").write_text(PLUGIN, encoding="utf-8")
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "pytest", "-p", "enter_into_the_table", "-p", "no:cacheprovider", "-q", suite.name]
    classes = "MatrixAdaGrad or RowAdaGrad or ColumnAdaGrad or MatrixMomentum or RowMomentum or ColumnMomentum"
    run = subprocess.run(
        [*command, "-k", f"({classes}) and cpu"],
        cwd=suite.parent,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(root)])},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    sys.stdout.write(run.stdout)
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-5000:]
    assert " passed" in run.stdout
