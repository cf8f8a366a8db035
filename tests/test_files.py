"""A file is there as a whole, or not at all."""

import os

import pytest

from matrix_adagrad.files import write


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    file = tmp_path / "folder" / "file"
    assert write(file, "before").read_text() == "before"
    assert file.stat().st_mode & 0o777 == 0o666 & ~_umask()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        write(file, "after")
    assert [one.read_text() for one in file.parent.iterdir()] == ["before"]


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask
