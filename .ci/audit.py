"""Look up the known vulnerabilities of pinned packages: python .ci/audit.py FILE…, in a venv with pip-audit.

The exit code is 1 if there are some, and 2 if the service that knows them cannot be asked: then nothing is said about them.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path


def pins(file: Path) -> list[str]:
    """The lines that pin a version, without digests."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return [line.split(";")[0].rstrip(" \\") for line in lines if "==" in line and not line.lstrip().startswith(("#", "-"))]


def audit(packages: list[str]) -> dict[str, list[str]] | str:
    """The names of the known vulnerabilities of each package; or why they could not be looked up."""
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder, "requirements.txt")
        listed.write_text("\n".join(packages) + "\n", encoding="utf-8")
        options = ("--no-deps", "--disable-pip", "--progress-spinner=off", "--format=json", "--timeout=15")
        command = [sys.executable, "-m", "pip_audit", *options, "--requirement", listed]
        done = subprocess.run(command, capture_output=True, encoding="utf-8")
    try:
        found = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        return (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    skipped = [f"{own['name']} ({own['skip_reason']})" for own in found if "skip_reason" in own]
    if skipped:
        return f"nothing is known of {', '.join(skipped)}"
    return {f"{own['name']} {own['version']}": [vuln["id"] for vuln in own["vulns"]] for own in found}


def main(*files: str) -> int:
    """Print what was found, and return the exit code."""
    packages = sorted({pin for file in files for pin in pins(Path(file))}, key=str.lower)
    found = audit(packages)
    if isinstance(found, str):
        print(f"audit: NOT DONE, the known vulnerabilities could not be looked up: {found}")
        return 2
    vulnerable = {package: names for package, names in found.items() if names}
    for package, names in vulnerable.items():
        print(f"audit: {package}: {', '.join(names)}")
    print(f"audit: {len(found)} packages, of which {len(vulnerable)} have known vulnerabilities")
    return 1 if vulnerable else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
