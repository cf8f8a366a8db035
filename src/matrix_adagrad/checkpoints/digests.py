"""SHA-256 digests of a checkpoint's files, in a file that ``sha256sum --check SHA256SUMS`` reads too.

They detect accidental changes. They are not a signature: whoever can write the files can write the digests too.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from matrix_adagrad.checkpoints.collective import on_all_ranks, on_first_rank, rank_and_world
from matrix_adagrad.files import write

__all__ = ["NAME", "changed_in", "digest_of", "recorded", "write_digests"]

NAME = "SHA256SUMS"
_LINES = re.compile(r"(?:[0-9a-f]{64}  [^\n/]+\n)+")


def write_digests(checkpoint: Path) -> None:
    """Write the digests of all files that torch wrote to a checkpoint. All ranks must call this."""
    names = on_first_rank(lambda: sorted({".metadata", *(file.name for file in checkpoint.glob("*.distcp"))}))
    found = _digests(checkpoint, names)

    def lines() -> str:
        for digest in found.values():
            if isinstance(digest, OSError):
                raise digest
        return "".join(f"{digest}  {name}\n" for name, digest in found.items())

    on_first_rank(lambda: write(checkpoint / NAME, lines()))


def changed_in(checkpoint: Path) -> str | None:
    """A message that names the changed file; empty if none has changed, ``None`` if there are no digests.

    All ranks must call this, and get the same answer.
    """
    text = on_first_rank(lambda: _read(checkpoint / NAME))
    if text is None:
        return None
    expected = _parsed(text)
    if not expected:
        return f"{NAME} is damaged"
    for name, digest in _digests(checkpoint, list(expected)).items():
        if isinstance(digest, OSError):
            return f"{name} cannot be read: {digest.strerror}"
        if digest != expected[name]:
            return f"{name} has changed since it was saved"
    return ""


def recorded(checkpoint: Path) -> dict[str, str]:
    """The digests that a checkpoint has of its files, by name; nothing if it has none."""
    return _parsed(_read(checkpoint / NAME) or "")


def _parsed(text: str) -> dict[str, str]:
    return {line[66:]: line[:64] for line in text[:-1].split("\n")} if _LINES.fullmatch(text) else {}


def _read(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None


def _digests(checkpoint: Path, names: list[str]) -> dict[str, str | OSError]:
    """The digests of the files. Each rank reads the ones it wrote, if the number of ranks is the same."""
    rank, world = rank_and_world()
    own = [name for name in names if _writer(name) % world == rank]
    found: dict[str, str | OSError] = {}
    for part in on_all_ranks(lambda: {name: digest_of(checkpoint / name) for name in own}):
        found |= part
    return {name: found[name] for name in names}


def _writer(name: str) -> int:
    match = re.match(r"__(\d+)_", name)
    return int(match[1]) if match else 0


def digest_of(file: Path) -> str | OSError:
    """The digest of a file, or why it cannot be read."""
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        return error
