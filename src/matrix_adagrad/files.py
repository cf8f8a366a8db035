"""Files that are there as a whole, or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

__all__ = ["write"]


def write(file: Path, content: str | bytes) -> Path:
    """Write the file, make its folder if need be, and leave what was there, and nothing else, if that fails."""
    raw = content.encode() if isinstance(content, str) else content
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, part = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.", suffix=".part")
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(raw)
        os.chmod(part, 0o666 & ~_umask())
        os.replace(part, file)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise
    return file


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
