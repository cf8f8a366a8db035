"""Text that ships with Python: its licence, its principles, the help texts of ``help()``, and its library's sources."""

from __future__ import annotations

import codecs
import contextlib
import io
import sys
import sysconfig
from pathlib import Path

import torch
from torch import Tensor

__all__ = ["characters", "help_texts", "library_sources", "python_text"]

# Folders and files of the library that are tests, generated tables, or other people's packages.
_TESTS = frozenset({"idle_test", "test", "tests"})
_TABLES = frozenset({"encodings", "entities.py", "pydoc_data"})
_PACKAGES = frozenset({"dist-packages", "site-packages"})


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


def library_sources() -> list[str]:
    """The modules of the standard library, in the order of their paths, without tests and generated tables."""
    library = Path(sysconfig.get_path("stdlib"))
    paths = sorted(file.relative_to(library) for file in library.rglob("*.py"))
    return [
        (library / path).read_text("utf-8", errors="replace")
        for path in paths
        if not (_TESTS | _TABLES | _PACKAGES).intersection(path.parts) and not path.name.startswith("_sysconfigdata")
    ]


def characters(text: str) -> Tensor:
    """The text as indices into its sorted alphabet."""
    alphabet = {character: number for number, character in enumerate(sorted(set(text)))}
    return torch.tensor([alphabet[character] for character in text])


def _licence() -> str:
    folders = (Path(sysconfig.get_path("stdlib")), Path(sys.base_prefix))  # the second on Windows
    files = [folder / name for folder in folders for name in ("LICENSE.txt", "LICENSE")]
    for file in filter(Path.is_file, files):
        return file.read_text("utf-8", errors="replace")
    raise FileNotFoundError(f"found none of {', '.join(map(str, files))}")


def _principles() -> str:
    with contextlib.redirect_stdout(io.StringIO()):  # the first import prints them
        import this
    return codecs.decode(this.s, "rot13")
