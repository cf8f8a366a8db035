"""Text that ships with Python: its licence, its principles, and the help texts of ``help()``."""

from __future__ import annotations

import codecs
import contextlib
import io
import sys
import sysconfig
from pathlib import Path

import torch
from torch import Tensor

__all__ = ["characters", "help_texts", "python_text"]


def python_text() -> str:
    """All of these texts that this Python installation has.

    Raises:
        OSError: if it has none of them.
    """
    parts = []
    for source in (_licence, _principles, help_texts):  # the longest last, since the end may be held out
        with contextlib.suppress(ImportError, OSError):
            parts.append(source())
    if not parts:
        raise OSError("this Python has none of the texts that ship with it: LICENSE.txt, this, pydoc_data.topics")
    return "\n".join(parts)


def help_texts() -> str:
    """The language topics of ``help()``, one after another."""
    from pydoc_data.topics import topics

    return "".join(topics[key] for key in sorted(topics))


def characters(text: str) -> Tensor:
    """The text as indices into its sorted alphabet."""
    alphabet = {character: number for number, character in enumerate(sorted(set(text)))}
    return torch.tensor([alphabet[character] for character in text])


def _licence() -> str:
    folders = (Path(sysconfig.get_path("stdlib")), Path(sys.base_prefix))  # the second on Windows
    files = [folder / name for folder in folders for name in ("LICENSE.txt", "LICENSE")]
    for file in filter(Path.is_file, files):
        return file.read_text("utf-8", errors="replace")
    raise FileNotFoundError(f"there is none of {', '.join(map(str, files))}")


def _principles() -> str:
    with contextlib.redirect_stdout(io.StringIO()):  # the first import prints them
        import this
    return codecs.decode(this.s, "rot13")
