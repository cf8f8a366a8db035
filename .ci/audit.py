"""Look up the known vulnerabilities of pinned packages: python .ci/audit.py FILE…, in a venv with pip-audit.

The exit code is 1 if there are some, and 2 if the service that knows them could not be asked, or not about all of
them: then nothing is said about those. AUDIT_SERVICE=osv asks another service.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path


def pins(file: Path) -> list[str]:
    """The lines that pin a version, without digests."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return [
        line.split(";")[0].rstrip(" \\") for line in lines if "==" in line and not line.lstrip().startswith(("#", "-"))
    ]


def audit(packages: list[str]) -> list[dict] | str:
    """What pip-audit knows of each package; or why it says nothing."""
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder, "requirements.txt")
        listed.write_text("\n".join(packages) + "\n", encoding="utf-8")
        options = ("--no-deps", "--disable-pip", "--progress-spinner=off", "--format=json", "--timeout=15")
        service = f"--vulnerability-service={os.environ.get('AUDIT_SERVICE', 'pypi')}"
        command = [sys.executable, "-m", "pip_audit", *options, service, "--requirement", listed]
        done = subprocess.run(command, capture_output=True, encoding="utf-8")
    try:
        return json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        return (done.stderr.strip().splitlines() or ["pip-audit said nothing"])[-1]


def main(*files: str) -> int:
    """Print what was found, and return the exit code."""
    packages = sorted({pin for file in files for pin in pins(Path(file))}, key=str.lower)
    found = audit(packages)
    if isinstance(found, str):
        print(f"audit: NOT DONE, the known vulnerabilities could not be looked up: {found}")
        return 2
    unknown = [own["name"] for own in found if "skip_reason" in own]
    vulnerable = [own for own in found if own.get("vulns")]
    for own in vulnerable:
        print(f"audit: {own['name']} {own['version']}: {', '.join(vuln['id'] for vuln in own['vulns'])}")
    print(f"audit: {len(found) - len(unknown)} packages were looked up, {len(vulnerable)} have known vulnerabilities")
    if unknown:
        print(f"audit: NOT DONE, the service did not know {len(unknown)} of {len(found)}: {', '.join(unknown)}")
    return 1 if vulnerable else 2 if unknown else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
