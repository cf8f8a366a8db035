"""Training under torchrun, as the example does it: a worker that is killed is started again, and nothing is lost."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

if "INTEGRATIONS" not in os.environ:
    pytest.skip("it starts torchrun many times: make test-integrations", allow_module_level=True)

EXAMPLE = Path(__file__).parents[2] / "examples" / "fsdp2_train.py"
SHORT = ("--steps", "120", "--every", "20")


@contextlib.contextmanager
def torchrun(folder, *options, ranks=2):
    """The example under torchrun, in a session of its own, of which nothing is left behind."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command += ["--max-restarts", "2", "--monitor-interval", "0.1", str(EXAMPLE), "--folder", str(folder), *options]
    environment = {"OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        env={**os.environ, **environment},
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def workers(process):
    return [
        int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="utf-8").split()
    ]


def finished(process):
    """Its output; the stacks of workers that hang are in it."""
    try:
        output, _ = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        for pid in workers(process):
            os.kill(pid, signal.SIGABRT)  # prints the stack, with PYTHONFAULTHANDLER
        time.sleep(2)
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        pytest.fail(f"it hangs:\n{output}")
    assert process.returncode == 0, output
    return output


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken")
    with torchrun(folder, *SHORT) as process:
        return finished(process), torch.load(folder / "weights.pt")


def test_the_example_trains(unbroken):
    output, _ = unbroken
    losses = [float(line.split()[-1]) for line in output.splitlines() if line.startswith("step")]
    assert len(losses) == 6
    assert losses[-1] < 0.9 * losses[0]
    assert "rank 0 holds 32 of the 64 scales" in output


def test_after_a_worker_is_killed_the_run_ends_where_an_unbroken_one_does(unbroken, tmp_path):
    with torchrun(tmp_path, *SHORT) as process:
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob("step-*[0-9]")):
            assert time.monotonic() < deadline, "there never was a checkpoint"
            time.sleep(0.02)
        os.kill(workers(process)[-1], signal.SIGKILL)
        output = finished(process)
    assert "resuming after step" in output, "it was over before it was killed"
    _, expected = unbroken
    weights = torch.load(tmp_path / "weights.pt")
    assert weights.keys() == expected.keys()
    for name, value in weights.items():
        assert torch.equal(value, expected[name]), name
