"""Digests of a checkpoint's files, in a file that ``sha256sum --check SHA256SUMS`` reads too.

They tell bytes that have changed by accident. Whoever can write the files can write their digests: they do not sign.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from matrix_adagrad.checkpoints.ranks import by_all, by_the_first, rank_and_world
from matrix_adagrad.files import write

__all__ = ["NAME", "changed_in", "write_sums"]

NAME = "SHA256SUMS"
_LINES = re.compile(r"(?:[0-9a-f]{64}  [^\n/]+\n)+")


def write_sums(checkpoint: Path) -> None:
    """Write the digests of all files that torch has written there. All ranks call this."""
    names = by_the_first(lambda: sorted({".metadata", *(file.name for file in checkpoint.glob("*.distcp"))}))
    found = _digests(checkpoint, names)

    def lines() -> str:
        for digest in found.values():
            if isinstance(digest, OSError):
                raise digest
        return "".join(f"{digest}  {name}\n" for name, digest in found.items())

    by_the_first(lambda: write(checkpoint / NAME, lines()))


def changed_in(checkpoint: Path) -> str | None:
    """Which file is not as it was written, in words; empty if all are, ``None`` if there are no digests.

    All ranks call this, and get the same answer.
    """
    text = by_the_first(lambda: _read(checkpoint / NAME))
    if text is None:
        return None
    if not _LINES.fullmatch(text):
        return f"{NAME} is damaged"
    expected = {line[66:]: line[:64] for line in text[:-1].split("\n")}
    for name, digest in _digests(checkpoint, list(expected)).items():
        if isinstance(digest, OSError):
            return f"{name} cannot be read: {digest.strerror}"
        if digest != expected[name]:
            return f"{name} has other bytes than were saved"
    return ""


def _read(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None


def _digests(checkpoint: Path, names: list[str]) -> dict[str, str | OSError]:
    """The digests of the files; each rank reads those that it has written itself, if it is one of so many."""
    rank, world = rank_and_world()
    own = [name for name in names if _writer(name) % world == rank]
    found: dict[str, str | OSError] = {}
    for part in by_all(lambda: {name: _digest(checkpoint / name) for name in own}):
        found |= part
    return {name: found[name] for name in names}


def _writer(name: str) -> int:
    match = re.match(r"__(\d+)_", name)
    return int(match[1]) if match else 0


def _digest(file: Path) -> str | OSError:
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        return error
