"""Folders that are being written, and what is left of those that nobody will finish.

Who writes a draft (rank 0, for all) holds a lock on a file in it, and the kernel takes the lock back when the process
ends, however it ends. So a draft whose lock can be taken is dead: nobody is left who could give it its name. That is no
proof where another machine may hold a lock that this one does not see: on network file systems, the file must say that
it was locked on this machine since it was started.
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
except ImportError:  # where there is no flock, no draft is ever taken for dead
    fcntl = None  # type: ignore[assignment]

__all__ = ["Draft", "remove", "size", "sweep"]

UNFINISHED, REMOVED, LOCK = ".unfinished", ".removed", ".lock"
LOCAL = ("btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs")  # locks hold for all who see them
_logger = logging.getLogger("matrix_adagrad")


class Draft:
    """A new folder that this process writes; ``path`` is what it will be called."""

    def __init__(self, path: Path) -> None:
        self.folder = path.with_name(f"{path.name}.{token_hex(4)}{UNFINISHED}")
        self.folder.mkdir(parents=True)
        try:
            self._lock = _lock(self.folder)
        except BaseException:
            remove(self.folder)
            raise

    def finish(self, path: Path) -> None:
        """Give it its name."""
        sync_folder(self.folder)
        self.folder.rename(path)
        sync_folder(path.parent)
        (path / LOCK).unlink(missing_ok=True)
        self._release()

    def discard(self) -> None:
        """Remove what was written, if it has no name yet."""
        if self.folder.exists():
            remove(self.folder)
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def sweep(folder: Path, prefix: str) -> list[Path]:
    """Remove what is dead; returns the drafts that may be dead or not."""
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
    """Take a folder's name away at once, and then its files; if that is broken off, the next sweep goes on with it."""
    removed = folder.with_name(f"{folder.name}.{token_hex(4)}{REMOVED}")
    try:
        folder.rename(removed)
        shutil.rmtree(removed)
    except OSError as error:
        _logger.warning("%s could not be removed: %s", folder, error)


def size(folder: Path) -> int:
    """How many bytes the files in a folder have, which others may be writing."""
    total = 0
    for file in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += file.lstat().st_size * (not file.is_dir())
    return total


def _lock(folder: Path) -> int | None:
    """The locked file, or ``None`` where files cannot be locked."""
    part = folder / f"{LOCK}.part"
    descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        os.write(descriptor, _machine())
        is_locked = _take(descriptor)
        if is_locked:
            os.rename(part, folder / LOCK)  # who sees it under this name sees it locked
        else:
            os.unlink(part)
    except BaseException:
        os.close(descriptor)
        raise
    if is_locked:
        return descriptor
    os.close(descriptor)
    return None


@contextlib.contextmanager
def _is_dead(draft: Path) -> Iterator[bool | None]:
    """Whether nobody will finish a draft, ``None`` if that cannot be known; meanwhile nobody else can say the same."""
    try:
        descriptor = os.open(draft / LOCK, os.O_RDWR)
    except OSError:
        yield None
        return
    try:
        taken = _take(descriptor)
        is_proof = taken is False or os.read(descriptor, 256) == _machine() or _is_local(draft)
        yield taken if is_proof else None
    finally:
        os.close(descriptor)


def _take(descriptor: int) -> bool | None:
    """Lock a file; ``False`` if another process has it locked, ``None`` if files cannot be locked there."""
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
    """This machine since it was started."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    return platform.node().encode()


def _is_local(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> bool:
    """Whether a folder is on a disk of this machine, so that nobody else can have locked a file there."""
    kinds = {}
    with contextlib.suppress(OSError):
        for line in mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
            mounted, _, kind = line.partition(" - ")
            place = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), mounted.split(" ")[4])
            kinds[place] = kind.split(" ")[0]
    folder = folder.resolve()
    return next((kinds[str(place)] for place in (folder, *folder.parents) if str(place) in kinds), "") in LOCAL
