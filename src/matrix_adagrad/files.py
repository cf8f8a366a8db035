"""Atomic writes: a file has either its old content or its new content, never part of it."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO

__all__ = ["replacing", "sync_folder", "write"]


def write(file: Path, content: str | bytes) -> Path:
    """Write a file atomically, and create its folder if needed. If that fails, the old content stays.

    Text is written as UTF-8, whatever the locale.
    """
    with replacing(file) as out:
        out.write(content.encode() if isinstance(content, str) else content)
    return file


@contextlib.contextmanager
def replacing(file: Path) -> Iterator[BinaryIO]:
    """A temporary file to write to, which replaces ``file`` once it is synced to disk, or is deleted if that fails.

    It is created next to ``file``, under a name that is not taken. The mode of an existing ``file`` is kept.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{file.name}.{token_hex(8)}.part")
    try:
        mode = stat.S_IMODE(file.stat().st_mode)
    except FileNotFoundError:
        mode = None
    # "x" is O_CREAT | O_EXCL, which follows no link; the kernel takes the umask off a new file's mode by itself.
    out = open(part, "xb", opener=lambda path, flags: os.open(path, flags, 0o666 if mode is None else mode))  # noqa: SIM115
    try:
        with out:
            if mode is not None:
                os.fchmod(out.fileno(), mode)  # restore what the umask removed
            yield out
            out.flush()
            os.fsync(out.fileno())
        os.replace(part, file)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise
    sync_folder(file.parent)


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder to disk, where the file system supports it."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
