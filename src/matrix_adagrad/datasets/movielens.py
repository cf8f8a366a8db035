"""MovieLens 100K: 100,000 ratings of 1,682 films by 943 people (Harper and Konstan, 2015).

Its licence does not allow redistribution, so the package does not contain it: `movielens` reads your copy or the cached
one, or downloads it from GroupLens or, with pip, inside the wheel of RecBole. It says on stderr what it downloads.
Whatever the source, the table is checked against the published one.
"""

from __future__ import annotations

import functools
import hashlib
import io
import os
import queue
import struct
import subprocess
import sys
import tempfile
import threading
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from matrix_adagrad.files import write

__all__ = ["Ratings", "movielens"]

COUNTS = {"ratings": 100_000, "users": 943, "items": 1_682}
# sha256 of the rows (user, item, rating, timestamp), sorted, numbered from 1, as little-endian int64
FINGERPRINT = "ec862504a8c24b195f5194e51fb18bb2d59428d00d96d6d1c63433a3bd5f2f47"
GROUPLENS = "https://files.grouplens.org/datasets/movielens/ml-100k.zip"
RECBOLE = "recbole==1.2.1"
CONNECT, DOWNLOAD = 5.0, 60.0  # timeouts in seconds: to connect, and then to download
NAMES = ("u.data", "ml-100k.inter")
TITLES = ("u.item", "ml-100k.item")  # beside them
# The table takes 2 MB and its zip 5. Anything much larger is something else, and not worth the memory.
TABLE_BYTES, ARCHIVE_BYTES = 4 << 20, 32 << 20

Rows = list[tuple[int, int, int, int]]
Titles = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Ratings:
    """The ratings, sorted by user and item, as int64; users and items are numbered from 0, ratings go from 1 to 5.

    ``source`` is where they came from, and ``cached`` the file for the next run, or ``None`` if it cannot be written.
    ``titles`` are those of the items, or ``None`` if the source has none.
    """

    users: Tensor
    items: Tensor
    ratings: Tensor
    timestamps: Tensor
    source: str
    cached: Path | None
    titles: tuple[str, ...] | None = None


def movielens(path: Path | None = None, *, cache: Path | None = None) -> Ratings:
    """MovieLens 100K, from the first source that has it.

    Args:
        path: ``u.data``, ``ml-100k.zip``, ``ml-100k.inter`` or a folder with one of them. No other source is tried.
            The titles are in the zip, or beside the file: ``u.item`` or ``ml-100k.item``.
        cache: the folder for the cached file; by default ``matrix-adagrad`` in the user's cache.

    Raises:
        ValueError: if the file at ``path`` is not MovieLens 100K.
        OSError: if the file at ``path`` cannot be read, or if every source failed; it says why.
    """
    cached = (_default_cache() if cache is None else cache) / "ml-100k.tsv"
    if path is not None:
        file = _file(path)
        try:
            raw = _bytes(file)
            rows, titles = _checked(_parsed(raw)), _titles(raw, file)
        except ValueError as error:
            raise ValueError(f"{file} is not MovieLens 100K: {error}. Get {GROUPLENS} and give its path.") from None
        return _ratings(rows, titles, str(file), _written(rows, titles, cached))
    sources: dict[str, Callable[[], bytes]] = {
        str(cached): functools.partial(_bytes, cached),
        GROUPLENS: _grouplens,
        f"the wheel of {RECBOLE}": _recbole,
    }
    failures = []
    for source, fetch in sources.items():
        try:
            if source != str(cached):
                print(
                    f"MovieLens 100K: downloading {source}" + " with pip" * (fetch is _recbole),
                    file=sys.stderr,
                    flush=True,
                )
            raw = fetch()
            rows, titles = _checked(_parsed(raw)), _titles(raw, cached if source == str(cached) else None)
        except (OSError, ValueError) as error:
            failures.append(f"\n  {source}: {error}")
            continue
        return _ratings(rows, titles, source, cached if source == str(cached) else _written(rows, titles, cached))
    raise OSError(f"no source has MovieLens 100K. Get {GROUPLENS} and give its path.{''.join(failures)}")


def _default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "matrix-adagrad"


def _file(path: Path) -> Path:
    if not path.is_dir():
        return path
    files = [path / name for name in (*NAMES, "ml-100k.zip")]
    for file in filter(Path.is_file, files):
        return file
    raise FileNotFoundError(f"{path} holds none of {', '.join(file.name for file in files)}")


def _bytes(file: Path) -> bytes:
    with file.open("rb") as stream:
        return _limited(stream)


def _limited(stream: IO[bytes]) -> bytes:
    """The whole stream, unless it is too large to be MovieLens."""
    raw = stream.read(ARCHIVE_BYTES + 1)
    if len(raw) > ARCHIVE_BYTES:
        raise ValueError(f"it has more than {ARCHIVE_BYTES:,} bytes")
    return raw


def _parsed(raw: bytes) -> Rows:
    """The rows of a table, or of the table inside a zip, in any order."""
    table = _unzipped(raw, NAMES) if raw.startswith(b"PK") else raw
    if table is None:
        raise ValueError(f"the zip holds neither {' nor '.join(NAMES)}")
    lines = table.splitlines()
    has_header = lines[:1] == [b"user_id:token\titem_id:token\trating:float\ttimestamp:float"]
    rows = []
    for number, line in enumerate(lines[has_header:], 1 + has_header):
        try:
            user, item, rating, timestamp = map(int, line.split(b"\t"))
        except ValueError:
            raise ValueError(f"line {number} is not user, item, rating, timestamp: {line[:60]!r}") from None
        rows.append((user, item, rating, timestamp))
    return rows


def _titles(raw: bytes, file: Path | None) -> Titles | None:
    """The titles, from the zip that the ratings are in, or from a file beside theirs."""
    if raw.startswith(b"PK"):
        table = _unzipped(raw, TITLES)
    else:
        beside = [file.with_name(name) for name in TITLES] if file else []
        table = next((_bytes(other) for other in beside if other.is_file()), None)
    if table is None:
        return None
    is_recboles = table.startswith(b"item_id:token\tmovie_title:token_seq\trelease_year:token\t")
    separator, encoding = (b"\t", "utf-8") if is_recboles else (b"|", "latin-1")
    titles = {}
    for number, line in enumerate(table.splitlines()[is_recboles:], 1 + is_recboles):
        item, *fields = line.split(separator)
        if not item.isdigit() or len(fields) < 1 + is_recboles:
            raise ValueError(f"line {number} of the titles is not item, title, …: {line[:60]!r}")
        title, *more = (field.decode(encoding, "replace") for field in fields)
        titles[int(item)] = f"{title} ({more[0]})" if is_recboles else title  # u.item has the year in the title
    if sorted(titles) != list(range(1, COUNTS["items"] + 1)):
        raise ValueError(f"it has {len(titles):,} titles, not one for each of {COUNTS['items']:,} items")
    return tuple(titles[item] for item in sorted(titles))


def _unzipped(raw: bytes, names: Sequence[str]) -> bytes | None:
    """The first of these files in a zip, in any folder, or None if there is none."""
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            for member in archive.infolist():
                if member.filename.rpartition("/")[2] in names:
                    return _table(archive, member)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"the zip is damaged or cut short ({error})") from None
    return None


def _table(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    size, name = member.file_size, member.filename
    if size > TABLE_BYTES:
        raise ValueError(f"{name} in the zip has {size:,} bytes, and the table at most {TABLE_BYTES:,}")
    with archive.open(member) as stream:
        return stream.read(TABLE_BYTES)  # unpack no more than that, whatever the zip claims


def _checked(rows: Rows) -> Rows:
    """The rows, sorted, if they are those of MovieLens 100K."""
    found = {"ratings": len(rows), "users": len({row[0] for row in rows}), "items": len({row[1] for row in rows})}
    for what, expected in COUNTS.items():
        if found[what] != expected:
            raise ValueError(f"it has {found[what]:,} {what} instead of {expected:,}")
    rows = sorted(rows)
    try:
        packed = b"".join(struct.pack("<4q", *row) for row in rows)
    except struct.error:
        raise ValueError("it has a number that needs more than 64 bits") from None
    found_fingerprint = hashlib.sha256(packed).hexdigest()
    if found_fingerprint != FINGERPRINT:
        raise ValueError(f"its counts are right, but not its values: sha256 {found_fingerprint}, not {FINGERPRINT}")
    return rows


def _ratings(rows: Rows, titles: Titles | None, source: str, cached: Path | None) -> Ratings:
    users, items, ratings, timestamps = torch.tensor(rows).T.contiguous()
    return Ratings(users - 1, items - 1, ratings, timestamps, source, cached, titles)


def _written(rows: Rows, titles: Titles | None, file: Path) -> Path | None:
    """The cached file. If it cannot be written, only the next run pays, with a download."""
    try:
        if titles:
            lines = (f"{item}|{title}\n" for item, title in enumerate(titles, 1))
            write(file.with_name(TITLES[0]), "".join(lines).encode("latin-1", "replace"))
        return write(file, "".join("\t".join(map(str, row)) + "\n" for row in rows))
    except OSError:
        return None


def _grouplens() -> bytes:
    """The zip. A thread waits for it, because socket timeouts do not cover the DNS lookup."""
    answers: queue.SimpleQueue[bytes | Exception] = queue.SimpleQueue()

    def download() -> None:
        try:
            with urllib.request.urlopen(GROUPLENS, timeout=CONNECT) as response:
                answers.put(b"connected")
                is_short = response.length is not None and response.length <= ARCHIVE_BYTES
                answers.put(response.read() if is_short else _limited(response))  # read() detects truncation
        except Exception as error:
            answers.put(error)

    def answer_within(seconds: float) -> bytes:
        try:
            answer = answers.get(timeout=seconds)
        except queue.Empty:
            raise TimeoutError(f"no answer within {seconds:g} seconds") from None
        if isinstance(answer, Exception):
            raise OSError(str(answer)) from answer
        return answer

    threading.Thread(target=download, daemon=True).start()
    answer_within(CONNECT)
    return answer_within(DOWNLOAD)


def _recbole() -> bytes:
    """The wheel, through whatever index pip is set up for."""
    with tempfile.TemporaryDirectory() as folder:
        command = f"pip download {RECBOLE} --no-deps --only-binary=:all: --quiet --disable-pip-version-check --no-input"
        limits = f"--retries 0 --timeout {CONNECT:g}"
        arguments = [sys.executable, "-m", *command.split(), *limits.split(), "-d", folder]
        try:
            subprocess.run(
                arguments, check=True, timeout=DOWNLOAD, capture_output=True, encoding="utf-8", errors="replace"
            )
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"pip did not finish within {DOWNLOAD:g} seconds") from None
        except subprocess.CalledProcessError as error:
            said = error.stderr.strip().rpartition("\n")[2]
            raise OSError(f"pip download failed: {said}") from None
        (wheel,) = Path(folder).iterdir()
        return _bytes(wheel)
