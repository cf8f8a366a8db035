"""The versions of the site, side by side in one folder: `python docs/versions.py site`.

Every version is a folder, such as site/0.1.0/. This writes beside them what leads to all of them: `versions.js`, which
the pages of every version load to offer the others, and `index.html`, which goes to the newest one.
"""

import json
import re
import sys
from pathlib import Path

VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)(\D.*)?")
INDEX = """<!doctype html>
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url={newest}/index.html">
<title>matrix-adagrad</title>
<a href="{newest}/index.html">matrix-adagrad {newest}</a>
"""


def age(version):
    """What sorts versions: a candidate for a release, such as 1.0.0rc1, is older than the release."""
    *numbers, rest = VERSION.fullmatch(version).groups()
    return [int(number) for number in numbers], rest is None, rest or ""


def versions(site):
    """The pages of each version, from the newest on."""
    found = sorted((folder.name for folder in site.iterdir() if VERSION.fullmatch(folder.name)), key=age, reverse=True)
    return {
        name: sorted(page.relative_to(site / name).as_posix() for page in (site / name).glob("*.html"))
        for name in found
    }


def write(site):
    """Write the list and the page that leads to the newest version."""
    found = versions(site)
    (site / "versions.js").write_text(f"window.VERSIONS = {json.dumps(found)};\n", encoding="utf-8")
    (site / "index.html").write_text(INDEX.format(newest=next(iter(found))), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
