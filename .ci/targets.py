"""Run every target of the Makefile, each in its own clone with an empty home.

    python3 .ci/targets.py [TARGET…]     slow targets only in part
    python3 .ci/targets.py --whole       all tests

No target can rely on what another one has set up. Clones contain only what is committed.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
QUICK = ("help", "lint", "format", "docs", "clean", "publish", "sbom", "test-readme")
PART = {  # ARGS for a part that takes a minute
    "test": "tests/test_intervals.py",
    "test-integrations": "-k test_solvers",
    "test-sanitized": "-k test_library",
}
ALWAYS_PART = {  # the same for slow targets that are not tests, or that another target covers
    "pytest": "tests/test_intervals.py",
    "reproduce": "games --quick",
    "bench": "--quick --rounds 2",
    "advice": "planted-none",
}
BEFORE = {"clean": "build", "sbom": "test-wheels"}  # in the same clone: something to remove, and to describe
NOT_HERE = {  # targets that are not run here, and why
    "analyze": "needs clang-tidy; .github/workflows/ci.yml runs it",
    "audit": "asks a service that knows vulnerabilities; make release runs it",
    "fuzz": "needs clang, and compiles the kernels three times; .github/workflows/ci.yml runs it",
    "release": "refuses a commit that is no release",
    "test-build": "builds twice; make release runs it",
    "test-platforms": "needs cross compilers and QEMU",
    "test-torch": "downloads several GB",
}
REFUSED = {"publish": "results/claims.json is missing: run make reproduce first"}
SELF = "test-targets"
AS_TEST = ("pytest", "lint", "format")  # set up like test, which --whole runs


def targets() -> list[str]:
    """The Makefile's targets. This script must know how to run each of them."""
    found = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)[1].split()
    known = {*QUICK, *PART, *ALWAYS_PART, *BEFORE.values(), *NOT_HERE, SELF}
    assert set(found) == known, f"the Makefile and this script have different targets: {set(found) ^ known}"
    return [name for name in found if name not in {SELF, *BEFORE.values(), *NOT_HERE}]


def environment(home: Path) -> dict[str, str]:
    """A fresh environment: nothing from this shell's Python, caches or make."""
    own = ("PYTHON", "VIRTUAL_ENV", "XDG_", "MAKE", "MFLAGS", "ARGS", "HF_", "TORCH")
    return {**{key: value for key, value in os.environ.items() if not key.startswith(own)}, "HOME": str(home)}


def problem(target: str, clone: Path, home: Path, args: str) -> str | None:
    """Run the target, show its output, and return what went wrong."""
    command = ["make", *filter(None, [BEFORE.get(target), target, args and f"ARGS={args}"])]
    said = []
    with subprocess.Popen(
        command, cwd=clone, env=environment(home), encoding="utf-8", stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        for line in process.stdout:
            print(line, end="", flush=True)
            said.append(line.strip())
    if target in REFUSED:
        words = [line for line in said if not line.startswith(("make", "setup: ", f"{target}: "))]
        return None if process.returncode and words == [REFUSED[target]] else f"it should say: {REFUSED[target]}"
    if process.returncode:
        return f"exit code {process.returncode}"
    state = ["git", "status", "--porcelain", *(["--ignored"] if target == "clean" else [])]
    left = subprocess.check_output(state, cwd=clone, encoding="utf-8")
    return f"it left behind\n{left}" if left else None


def main(arguments: list[str]) -> str | None:
    """Run the given targets, or all of them, and return which ones failed."""
    whole, names = "--whole" in arguments, [name for name in arguments if name != "--whole"]
    known, failed = targets(), []
    assert set(names) <= set(known), f"no such target: {set(names) - set(known)}"
    for target in names or [name for name in known if not (whole and name in AS_TEST)]:
        folder, started = Path(tempfile.mkdtemp()), time.monotonic()
        (folder / "home").mkdir()
        subprocess.run(["git", "clone", "--quiet", ROOT, folder / "clone"], check=True)
        print(f"targets: make {target}", flush=True)
        args = ALWAYS_PART.get(target) or ("" if whole else PART.get(target, ""))
        wrong = problem(target, folder / "clone", folder / "home", args)
        shutil.rmtree(folder)
        print(f"targets: make {target}: {wrong or 'works'}, {time.monotonic() - started:.0f} s\n", flush=True)
        failed += [target] * bool(wrong)
    return f"targets: these fail in a fresh clone: {', '.join(failed)}" if failed else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
