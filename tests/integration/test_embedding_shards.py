"""Tables that TorchRec shards by rows, trained by RowAdaGrad: the losses of one process, and a part of its memory."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torchrec.distributed", reason="TorchRec is not installed: make test-integrations")
EXAMPLE = Path(__file__).parents[2] / "examples" / "embedding_shards.py"
# A process that may grow by so many bytes, from what it has after all imports.
LIMITED = """
import os, resource, runpy
import matrix_adagrad, torchrec.distributed.model_parallel
used = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmData")) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (used + {room}, used + {room}))
os.environ["ROWS"] = "{rows}"
runpy.run_path({example!r}, run_name="__main__")
"""


def torchrun(ranks, *script):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *script]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
    return subprocess.run(list(map(str, command)), capture_output=True, encoding="utf-8", env=environment, timeout=300)


def test_two_ranks_have_the_losses_of_one_and_half_of_its_rows_and_scales():
    losses, rows = [], 100_001 + 100_001 // 5
    for ranks in (1, 2):
        run = torchrun(ranks, EXAMPLE)
        assert run.returncode == 0, run.stderr
        losses.append(re.findall(r"loss (\S+)", run.stdout))
        held = [int(size.replace(",", "")) for size in re.findall(r"([\d,]+) bytes of state", run.stdout)]
        assert len(held) == ranks
        for state in held:  # a scale a row, and those of the linear layer: one for its row and one for its bias
            assert abs(state - 4 * (rows / ranks + 2)) <= 8
    assert losses[0] == losses[1]
    assert float(losses[0][-1]) < float(losses[0][0]) - 0.1


def test_a_table_that_is_too_large_for_one_process_is_trained_by_two(tmp_path):
    rows = 2_000_000
    table = 4 * 32 * (rows + rows // 5)
    script = tmp_path / "limited.py"
    script.write_text(
        LIMITED.format(room=int(1.6 * table), rows=rows, example=str(EXAMPLE)), encoding="utf-8"
    )  # with its gradient: 2 ×
    alone = torchrun(1, script)
    assert alone.returncode != 0
    assert "memory" in alone.stderr.lower()
    together = torchrun(2, script)
    assert together.returncode == 0, together.stdout + together.stderr
    assert "step   49" in together.stdout
