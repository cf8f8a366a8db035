"""Folders that are still being written, and the removal of those whose writer died.

Rank 0, which writes a draft for all, holds a lock on a file in it. The kernel releases the lock when the process ends,
however it ends. So a draft whose lock is free is dead: nobody is left to finish it. On a network file system, another
machine may hold a lock that this one does not see. There, the lock file must also name this boot of this machine.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex

from matrix_adagrad.files import sync_folder

try:
    import fcntl
except ImportError:  # without flock no draft is ever known to be dead
    fcntl = None  # type: ignore[assignment]

__all__ = ["Draft", "folder_size", "remove", "remove_dead"]

UNFINISHED, REMOVED, LOCK = ".unfinished", ".removed", ".lock"
LOCAL = ("btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs")  # file systems of a single machine
_logger = logging.getLogger("matrix_adagrad")


class Draft:
    """A new folder that this process writes, to be renamed to ``path``."""

    def __init__(self, path: Path) -> None:
        self.folder = path.with_name(f"{path.name}.{token_hex(4)}{UNFINISHED}")
        self.folder.mkdir(parents=True)
        try:
            self._lock = _locked_file(self.folder)
        except BaseException:
            remove(self.folder)
            raise

    def finish(self, path: Path) -> None:
        """Rename the finished folder."""
        sync_folder(self.folder)
        self.folder.rename(path)
        sync_folder(path.parent)
        (path / LOCK).unlink(missing_ok=True)
        self._release()

    def discard(self) -> None:
        """Remove what was written, unless it is finished."""
        if self.folder.exists():
            remove(self.folder)
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def remove_dead(folder: Path, prefix: str) -> list[Path]:
    """Remove dead drafts, and return those that may or may not be dead."""
    for removed in folder.glob(f"{prefix}*{REMOVED}"):
        shutil.rmtree(removed, ignore_errors=True)
    doubtful = []
    for draft in sorted(folder.glob(f"{prefix}*{UNFINISHED}")):
        with _is_dead(draft) as is_dead:
            if is_dead:
                remove(draft)
            elif is_dead is None and draft.exists():
                doubtful.append(draft)
    return doubtful


def remove(folder: Path) -> None:
    """Rename a folder, then delete it. The next save finishes an interrupted deletion."""
    removed = folder.with_name(f"{folder.name}.{token_hex(4)}{REMOVED}")
    try:
        folder.rename(removed)
        shutil.rmtree(removed)
    except OSError as error:
        _logger.warning("%s could not be removed: %s", folder, error)


def folder_size(folder: Path) -> int:
    """The bytes in a folder, which another process may be writing."""
    total = 0
    for file in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += file.lstat().st_size * (not file.is_dir())
    return total


def _locked_file(folder: Path) -> int | None:
    """The locked file, or ``None`` where files cannot be locked."""
    part = folder / f"{LOCK}.part"
    descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        os.write(descriptor, _machine())
        is_locked = _try_lock(descriptor)
        if is_locked:
            os.rename(part, folder / LOCK)  # under this name it is always locked
    except BaseException:
        os.close(descriptor)
        raise
    if is_locked:
        return descriptor
    os.close(descriptor)  # first: Windows removes no file that is open
    os.unlink(part)
    return None


@contextlib.contextmanager
def _is_dead(draft: Path) -> Iterator[bool | None]:
    """Whether a draft is dead, or ``None`` if unknown. Inside the context, no other process can claim it."""
    try:
        descriptor = os.open(draft / LOCK, os.O_RDWR)
    except OSError:
        yield None
        return
    try:
        is_free = _try_lock(descriptor)
        is_proof = is_free is False or os.read(descriptor, 256) == _machine() or _is_local(draft)
        yield is_free if is_proof else None
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool | None:
    """Lock a file; ``False`` if another process holds the lock, ``None`` if files cannot be locked there."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _machine() -> bytes:
    """This boot of this machine."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    return platform.node().encode()


def _is_local(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> bool:
    """Whether a folder is on a local disk, where no other machine can hold a lock."""
    kinds = {}
    with contextlib.suppress(OSError):
        for line in mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
            mounted, _, kind = line.partition(" - ")
            place = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), mounted.split(" ")[4])
            kinds[place] = kind.split(" ")[0]
    folder = folder.resolve()
    return next((kinds[str(place)] for place in (folder, *folder.parents) if str(place) in kinds), "") in LOCAL
