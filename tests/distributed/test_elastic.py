"""Training under torchrun, as the example does it: a worker that is killed is started again, and nothing is lost."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

EXAMPLE = Path(__file__).parents[2] / "examples" / "fsdp2_train.py"
SHORT = ("--steps", "120", "--every", "20")


def torchrun(folder, *options, ranks=2):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command += ["--max-restarts", "2", "--monitor-interval", "0.1", str(EXAMPLE), "--folder", str(folder), *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def finished(process):
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    return output


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken")
    return finished(torchrun(folder, *SHORT)), torch.load(folder / "weights.pt")


def test_the_example_trains(unbroken):
    output, _ = unbroken
    losses = [float(line.split()[-1]) for line in output.splitlines() if line.startswith("step")]
    assert len(losses) == 6
    assert losses[-1] < 0.9 * losses[0]
    assert "rank 0 holds 32 of the 64 scales" in output


def test_after_a_worker_is_killed_the_run_ends_where_an_unbroken_one_does(unbroken, tmp_path):
    process = torchrun(tmp_path, *SHORT)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("step-*[0-9]")):
        assert time.monotonic() < deadline, "there never was a checkpoint"
        time.sleep(0.02)
    workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(workers[-1]), signal.SIGKILL)
    output = finished(process)
    assert "going on after step" in output, "it was over before it was killed"
    _, expected = unbroken
    weights = torch.load(tmp_path / "weights.pt")
    assert weights.keys() == expected.keys()
    for name, value in weights.items():
        assert torch.equal(value, expected[name]), name
