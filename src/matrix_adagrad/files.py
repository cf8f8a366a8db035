"""Files that are there as a whole, or not at all."""

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
    """Write the file, make its folder if need be, and leave what was there, and nothing else, if that fails.

    Text is written as UTF-8, whatever the locale.
    """
    with replacing(file) as out:
        out.write(content.encode() if isinstance(content, str) else content)
    return file


@contextlib.contextmanager
def replacing(file: Path) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of ``file`` when all of it is on the disk, or goes if that fails.

    It has a name of its own beside it, and is never somebody else's file. A file that was there keeps its mode.
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
                os.fchmod(out.fileno(), mode)  # what the umask took off
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
    """See that the names in a folder are on the disk, where the file system can do that."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
