"""On a system without POSIX modules and without native kernels, such as Windows, everything still imports and steps."""

import subprocess
import sys

import pytest

# Torch for Linux may import some of these itself: they are taken away from what is imported after it.
PROGRAM = """
import os, pkgutil, sys, tempfile, warnings
import torch, torch.distributed.checkpoint.state_dict
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver

for name in ("fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty"):
    sys.modules[name] = None
for name in ("fork", "geteuid", "getuid", "mkfifo", "sched_getaffinity", "statvfs", "uname"):
    delattr(os, name)

def refuse_open(path, remove=os.unlink):
    held = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
    if os.path.realpath(path) in held:
        raise PermissionError(f"{path} is open")
    remove(path)

os.unlink = os.remove = refuse_open

import matrix_adagrad
from matrix_adagrad import native
from matrix_adagrad.checkpoints import Checkpoints

native.LIBRARY = None
imported = 0
for module in pkgutil.walk_packages(matrix_adagrad.__path__, "matrix_adagrad."):
    if module.name.endswith(("__main__", "_kernels")) or ".interop." in module.name or "triton" in module.name:
        continue  # they need other libraries
    try:
        __import__(module.name)
    except ModuleNotFoundError as error:
        assert error.name in {"jinja2", "matplotlib", "plotly", "yaml", "tqdm", "numpy"}, error
    imported += 1
assert imported > 100, imported

model = torch.nn.Linear(4, 2)
optimizer = matrix_adagrad.RowMomentum(model.parameters(), lr=0.1)
before = model.weight.detach().clone()
model(torch.ones(1, 4)).sum().backward()
optimizer.step()
assert not torch.equal(model.weight, before)
with tempfile.TemporaryDirectory() as folder:
    Checkpoints(folder, model, optimizer).save(1)
    assert Checkpoints(folder, model, optimizer).resume() == 1
print(native.missing())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="open files are found in /proc")
def test_all_modules_import_and_a_step_and_a_checkpoint_work_without_posix_modules_and_kernels():
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    run = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    assert run.returncode == 0, run.stderr
    assert "were not built" in run.stdout
