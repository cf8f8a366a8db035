"""Run the tests with another release of torch, in a venv of its own, and print a row for a table of releases.

    python3.12 .ci/torch_release.py 2.11.0 [--numpy 1.26.4|none] [pytest's arguments…]

The venv is kept in build/, for the next run. On Linux, the registry's wheels of torch bring several GB of CUDA.
"""

from __future__ import annotations

import datetime
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("expecttest", "hypothesis", "pytest", "pytest-xdist", "setuptools")  # what the tests need besides torch
VERSIONS = """
import importlib.util, torch
print(torch.__version__)
print(__import__("numpy").__version__ if importlib.util.find_spec("numpy") else "–")
"""


def make_venv(folder: Path, torch: str, numpy: str) -> Path:
    """A venv with this release, NumPy, what the tests need, and this package with its kernels. Returns its Python."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    wanted = [] if numpy == "none" else [f"numpy=={numpy}" if numpy else "numpy"]
    subprocess.run([*pip, f"torch=={torch}", *PACKAGES, *wanted], check=True)
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", "--editable", ROOT], check=True)
    return python


def row(versions: list[str], arguments: list[str], outcome: str) -> str:
    """A row of the table: torch, Python, NumPy, the tests, how they went, and when.

    >>> row(["2.9.1", "2.4.6"], ["tests/optim"], "12 passed").count("|")
    7
    """
    python = ".".join(map(str, sys.version_info[:3])) + "t" * bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    tests = f"`{' '.join(arguments)}`" if arguments else "all"
    today = datetime.datetime.now(datetime.UTC).date()
    return f"| {versions[0]} | {python} | {versions[1]} | {tests} | {outcome} | {today} |"


def outcome_of(output: str) -> str:
    """The counts in pytest's last line.

    >>> outcome_of("3 failed, 120 passed, 2 skipped in 61.02s (0:01:01)")
    '3 failed, 120 passed, 2 skipped'
    """
    found = re.findall(r"^=*\s*(\d+ [a-z][^=\n]*?) in [\d.]+s.*$", output, re.M)
    return found[-1] if found else "did not run"


def main(arguments: list[str]) -> int:
    """Run the tests, and return pytest's exit code."""
    torch, *rest = arguments
    numpy = ""
    if rest[:1] == ["--numpy"]:
        numpy, rest = rest[1], rest[2:]
    name = f"torch-{torch}-{sysconfig.get_config_var('SOABI')}" + (f"-numpy-{numpy}" if numpy else "")
    python = make_venv(ROOT / "build" / name, torch, numpy)
    command = [python, "-m", "pytest", "-q", *(rest or ["-n", "2"])]
    said = []
    with subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": ""}, encoding="utf-8", stdout=subprocess.PIPE
    ) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            said.append(line)
    versions = subprocess.check_output([python, "-c", VERSIONS], cwd=ROOT, encoding="utf-8").split()
    print(row(versions, rest, outcome_of("".join(said))))
    return process.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
