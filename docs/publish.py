"""Copy the results of a full run into the documentation: `make publish`, after `make reproduce` on a clean checkout."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from reproduction.cells import source_hash

ROOT = Path(__file__).parents[1]
RESULTS, PUBLISHED, PAGE = ROOT / "results", ROOT / "docs" / "results", ROOT / "docs" / "reproduction.md"
FIGURES = ("movielens.png", "mlp-depth.png")
MARKS = ("<!-- the claims, by make publish -->", "<!-- end of the claims -->")


def rendered(published):
    """The claims as a table, with the commit and the torch version of the run."""
    rows = []
    for claim in published["claims"]:
        verdict = re.sub(r"^(holds only if|holds|does not hold here|not decided)", r"**\1**", claim["verdict"])
        rows.append(f"| {claim['place']} | {claim['statement']} | {verdict} |")
    made = f"From `make reproduce` at commit {published['commit']}, with torch {published['torch']}."
    return "\n".join([MARKS[0], made, "", "| place | the paper says | here it |", "|---|---|---|", *rows, MARKS[1]])


def with_claims(page, published):
    """The page with its table replaced."""
    found = re.compile(f"{re.escape(MARKS[0])}.*{re.escape(MARKS[1])}", re.DOTALL)
    if not found.search(page):
        raise SystemExit(f"{PAGE} has no place for the claims: {MARKS[0]} … {MARKS[1]}")
    return found.sub(lambda _: rendered(published), page)


def main():
    """Copy figures and claims, and rewrite the table on the page."""
    if not (RESULTS / "claims.json").exists():
        raise SystemExit("results/claims.json is missing: run make reproduce first")
    claims = json.loads((RESULTS / "claims.json").read_text(encoding="utf-8"))
    if claims["code"] != source_hash()[:12]:
        raise SystemExit("results/ comes from a different version of the code: run make reproduce")
    if claims["quick"] or any(claim["verdict"] == "not run" for claim in claims["claims"]):
        raise SystemExit("results/ does not come from a full run: run make reproduce")
    if subprocess.run(
        ["git", "status", "--porcelain", "src", "reproduction"], cwd=ROOT, capture_output=True, encoding="utf-8"
    ).stdout:
        raise SystemExit("src/ or reproduction/ has uncommitted changes: the results would belong to no commit")
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, encoding="utf-8"
    ).stdout
    published = {"commit": commit.strip(), **claims}
    PUBLISHED.mkdir(exist_ok=True)
    for figure in FIGURES:
        shutil.copy(RESULTS / "figures" / figure, PUBLISHED / figure)
    (PUBLISHED / "claims.json").write_text(json.dumps(published, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(with_claims(PAGE.read_text(encoding="utf-8"), published), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
