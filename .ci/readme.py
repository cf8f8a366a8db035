"""Run every command in the README, in order, in a copy of this checkout with an empty venv and an empty home.

python3 .ci/readme.py
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
ELSEWHERE = {  # commands that are not run here, and why
    "make reproduce": "takes 7 minutes; .ci/targets.py runs part of it",
    "make test": ".ci/targets.py runs it",
}


def blocks(readme: str) -> list[str]:
    """The README's shell blocks, without the commands in ELSEWHERE."""
    found = re.findall(r"^```sh\n(.*?)^```$", readme, re.M | re.S)
    commands = [line.partition("#")[0].strip() for block in found for line in block.splitlines()]
    unknown = [command for command in ELSEWHERE if command not in commands]
    assert not unknown, f"the README has no such command: {unknown}"
    kept = [[line for line in block.splitlines() if line.partition("#")[0].strip() not in ELSEWHERE] for block in found]
    return ["\n".join(lines) for lines in kept if lines]


def copy_checkout(folder: Path) -> None:
    """Copy all files except those that git ignores."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    for name in filter(None, subprocess.check_output(listed, cwd=ROOT, encoding="utf-8").split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def main() -> None:
    """Run the commands until one fails."""
    with tempfile.TemporaryDirectory() as folder:
        checkout, venv, home = (Path(folder, name) for name in ("checkout", "venv", "home"))
        home.mkdir()
        copy_checkout(checkout)
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        kept = {
            key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV", "XDG_"))
        }
        environment = {**kept, "HOME": str(home), "PATH": f"{venv / 'bin'}:{kept['PATH']}", "PIP_QUIET": "1"}
        for block in blocks((ROOT / "README.md").read_text(encoding="utf-8")):
            started = time.monotonic()
            print("readme: " + block.replace("\n", "\n        "), flush=True)
            done = subprocess.run(["bash", "-euo", "pipefail", "-c", block], cwd=checkout, env=environment)
            if done.returncode:
                sys.exit(f"readme: exit code {done.returncode} from\n{block}")
            print(f"readme: {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
