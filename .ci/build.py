"""Build the release files into dist/: the same bytes from the same commit with the same tools, wherever and whenever.

    python .ci/build.py             in a venv with the packages of .ci/build.txt
    python .ci/build.py --again     elsewhere, in a clone, and compare with dist/

Times are those of the commit, or SOURCE_DATE_EPOCH.
"""

import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLATFORM = "manylinux_2_28_x86_64"
BIN = Path(sys.executable).parent


def epoch() -> int:
    """The time of all files, in seconds."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    return int(subprocess.check_output(["git", "log", "-1", "--format=%ct"], cwd=ROOT))


def normalized_tar(file: Path) -> None:
    """Rewrite a .tar.gz: sorted, with the same times, owners and modes."""
    out = io.BytesIO()
    with tarfile.open(file) as old, tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            own = tarfile.TarInfo(member.name)
            own.type, own.size, own.mtime = member.type, member.size, epoch()
            own.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            new.addfile(own, old.extractfile(member) if member.isfile() else None)
    with file.open("wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=epoch()) as packed:
        packed.write(out.getvalue())


def normalized_zip(file: Path) -> None:
    """Rewrite a wheel: sorted, its metadata last, with the same times and modes."""
    with zipfile.ZipFile(file) as old:
        contents = {info.filename: (old.read(info), info.is_dir()) for info in old.infolist()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as new:
        for name in sorted(contents, key=lambda name: (".dist-info/" in name, name.endswith("/RECORD"), name)):
            content, is_folder = contents[name]
            own = zipfile.ZipInfo(name, time.gmtime(epoch())[:6])
            own.create_system, own.compress_type = 3, zipfile.ZIP_DEFLATED
            own.external_attr = (0o40755 if is_folder else 0o100755 if name.endswith(".so") else 0o100644) << 16
            if not is_folder:
                new.writestr(own, content)


def run(log: Path, *command: str | Path, cwd: Path, **environment: str) -> None:
    """Run a command; show what it said if it fails."""
    environment = {
        **os.environ,
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "SOURCE_DATE_EPOCH": str(epoch()),
        **environment,
    }
    with log.open("a", encoding="utf-8") as out:
        done = subprocess.run(command, cwd=cwd, env=environment, stdout=out, stderr=subprocess.STDOUT)
    if done.returncode:
        sys.exit(f"{log.read_text(encoding='utf-8')}\nbuild: exit code {done.returncode} from {command}")


def build() -> None:
    """The source distribution, and from it the wheel with kernels and the one without."""
    made, dist = ROOT / "build" / "wheel", ROOT / "dist"
    for folder in (made, dist):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    log, wheel = made / "log", (sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir")
    run(log, sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", made, cwd=ROOT)
    (sdist,) = made.glob("*.tar.gz")
    normalized_tar(sdist)
    trees = {}
    for kind in ("kernels", "pure"):
        with tarfile.open(sdist) as archive:
            archive.extractall(made / kind, filter="data")
        (trees[kind],) = (made / kind).iterdir()
    run(log, *wheel, made, ".", cwd=trees["kernels"])
    run(log, *wheel, dist / "pure", ".", cwd=trees["pure"], MATRIX_ADAGRAD_PURE="1")
    # libgomp comes with torch, whose threads the kernels share.
    repair = ("auditwheel", "repair", "--strip", "--exclude", "libgomp.so.1", "--plat", PLATFORM, "--wheel-dir", dist)
    run(log, *repair, *made.glob("*.whl"), cwd=made)
    for file in dist.rglob("*.whl"):
        normalized_zip(file)
    shutil.move(sdist, dist)


def digests(dist: Path) -> dict[str, str]:
    """The digest of every file, by its path."""
    files = [file for file in dist.rglob("*") if file.name.endswith((".whl", ".tar.gz"))]
    return {str(file.relative_to(dist)): hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(files)}


def build_again() -> str | None:
    """Build a clone of this commit in another folder, and return how its files differ from those in dist/."""
    if subprocess.check_output(["git", "status", "--porcelain"], cwd=ROOT):
        return "build: what is not committed would not be built again: commit it first"
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder, "another folder", "with-a-longer-name")
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
        subprocess.run([sys.executable, ".ci/build.py"], cwd=clone, check=True)
        one, other = digests(ROOT / "dist"), digests(clone / "dist")
    different = sorted(file for file in {*one, *other} if one.get(file) != other.get(file))
    if different:
        return f"build: a build in another folder has other bytes: {', '.join(different)}"
    for file, digest in one.items():
        print(f"build: the same bytes again: {digest}  {file}")
    return None


if __name__ == "__main__":
    sys.exit(build_again() if sys.argv[1:] == ["--again"] else build())
