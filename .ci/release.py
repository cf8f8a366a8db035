"""Everything before the upload of a release: python3 .ci/release.py

1. The tree is clean, the changelog begins with the version and the date of the release, and there is no such tag.
2. The targets in CHECKS pass.
3. The release files are built twice, with the same bytes, and both wheels are tested.
4. dist/ gets the bill of materials, the section of the changelog, the digests, and a message for the tag.

CHECKS="lint docs" replaces the targets, to try this out: the message of the tag says so then. Nothing is uploaded.
"""

import datetime
import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
CHECKS = "test test-integrations test-sanitized analyze fuzz docs test-readme audit"
FILES = "test-build test-wheels sbom"


def git(*arguments: str) -> str:
    """What git says."""
    return subprocess.check_output(["git", *arguments], cwd=ROOT, encoding="utf-8").strip()


def version() -> str:
    """The version of the package."""
    return re.search(r'"(.+)"', (ROOT / "src/matrix_adagrad/version.py").read_text(encoding="utf-8").splitlines()[-1])[
        1
    ]


def section(changelog: str) -> tuple[str, str]:
    """The title and the text of the newest section of the changelog."""
    _, newest, *_ = re.split(r"^## ", changelog, flags=re.M)
    title, _, text = newest.partition("\n")
    return title.strip(), text.strip() + "\n"


def problem(title: str, number: str, today: datetime.date) -> str | None:
    """Why this is no release, by the title of its section."""
    found = re.fullmatch(r"(\S+) \((\d{4}-\d\d-\d\d)\)", title)
    if not found:
        return f'the changelog begins with "## {title}", not with "## {number} ({today})"'
    if found[1] != number:
        return f"the changelog begins with {found[1]}, and the package has version {number}"
    if found[2] != str(today):
        return f"the changelog is of {found[2]}, and today is {today} (UTC)"
    return None


def ready() -> tuple[str, str]:
    """The version and its section of the changelog. Exits if this commit is no release."""
    if changed := git("status", "--porcelain"):
        sys.exit(f"release: there are files that are not committed:\n{changed}")
    number, (title, text) = version(), section((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    if wrong := problem(title, number, datetime.datetime.now(datetime.UTC).date()):
        sys.exit(f"release: {wrong}")
    if git("tag", "--list", f"v{number}"):
        sys.exit(f"release: there is a tag v{number} already: a release is never replaced")
    return number, text


def make(targets: str) -> None:
    """Run targets of the Makefile, each once."""
    if subprocess.run(["make", "--no-print-directory", *targets.split()], cwd=ROOT).returncode:
        sys.exit(f"release: stopped, since one of these failed: make {targets}")


def sums() -> str:
    """The digests of the files in dist/, as sha256sum writes them."""
    files = sorted([*DIST.glob("*.whl"), *DIST.glob("pure/*.whl"), *DIST.glob("*.tar.gz"), DIST / "sbom.cdx.json"])
    return "".join(f"{hashlib.sha256(own.read_bytes()).hexdigest()}  {own.relative_to(DIST)}\n" for own in files)


def main() -> None:
    """Make a release, up to its upload."""
    number, text = ready()
    checks = os.environ.get("CHECKS", CHECKS)
    print(f"release: {number}, of commit {git('rev-parse', 'HEAD')}; checks: {checks}", flush=True)
    for target in checks.split():
        make(target)
    make(FILES)
    if changed := git("status", "--porcelain"):
        sys.exit(f"release: the targets left behind\n{changed}")
    skipped = [target for target in CHECKS.split() if target not in checks.split()]
    warning = f"These checks were not run: {', '.join(skipped)}.\n\n" if skipped else ""
    (DIST / "changelog.md").write_text(text, encoding="utf-8")
    (DIST / "SHA256SUMS").write_text(sums(), encoding="utf-8")
    (DIST / "tag-message").write_text(f"matrix-adagrad {number}\n\n{warning}{text}\n{sums()}", encoding="utf-8")
    print(f"\n{sums()}\nrelease: {warning}{number} is in dist/. Look at it, then run:\n")
    print(f"  git tag --sign --cleanup=whitespace --file dist/tag-message v{number} && git push origin v{number}")
    print("  python3 -m twine upload dist/*.whl dist/pure/*.whl dist/*.tar.gz")


if __name__ == "__main__":
    main()
