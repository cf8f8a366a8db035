"""A file is there as a whole, or not at all."""

import os
import stat
import threading

import pytest

from matrix_adagrad.files import replacing, write


def mode(file):
    return stat.S_IMODE(file.stat().st_mode)


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    file = tmp_path / "folder" / "file"
    assert write(file, "before √").read_text(encoding="utf-8") == "before √"

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        write(file, "after")
    assert [left.read_text(encoding="utf-8") for left in file.parent.iterdir()] == ["before √"]


def test_a_writer_that_fails_half_way_leaves_what_was_there(tmp_path):
    file = write(tmp_path / "file", "before")
    with pytest.raises(TypeError), replacing(file) as out:
        out.writelines([b"half of it", "no bytes"])
    assert [left.read_bytes() for left in tmp_path.iterdir()] == [b"before"]


def test_a_new_file_has_the_mode_that_open_gives_and_the_umask_is_never_touched(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "umask", lambda _: pytest.fail("other threads make files too"))
    (tmp_path / "plain").touch()
    assert mode(write(tmp_path / "file", "")) == mode(tmp_path / "plain")


@pytest.mark.parametrize("private", [0o600, 0o640, 0o444])
def test_a_file_keeps_its_mode(tmp_path, private):
    file = write(tmp_path / "file", "before")
    file.chmod(private)
    with replacing(file) as out:
        (part,) = set(tmp_path.iterdir()) - {file}
        assert mode(part) == private  # also while it is written
        out.write(b"after")
    assert (mode(file), file.read_bytes()) == (private, b"after")


def test_a_file_is_on_the_disk_before_it_has_its_name_and_then_the_name_is(tmp_path, monkeypatch):
    did, sync, replace = [], os.fsync, os.replace

    def syncs(descriptor):
        did.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else os.fstat(descriptor).st_size)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", syncs)
    monkeypatch.setattr(os, "replace", lambda *paths: (did.append("name"), replace(*paths)))
    write(tmp_path / "file", "12345")
    assert did == [5, "name", "folder"]


def test_a_link_in_the_place_of_the_part_is_not_followed(tmp_path, monkeypatch):
    victim = write(tmp_path / "victim", "untouched")
    monkeypatch.setattr("matrix_adagrad.files.token_hex", lambda _: "guessed")
    (tmp_path / ".file.guessed.part").symlink_to(victim)
    with pytest.raises(FileExistsError):
        write(tmp_path / "file", "written")
    assert victim.read_text(encoding="utf-8") == "untouched"
    assert (tmp_path / ".file.guessed.part").is_symlink()  # nor is what somebody else made removed


def test_threads_that_write_one_file_leave_one_of_their_contents(tmp_path):
    contents = [str(i) * 100_000 for i in range(4)]
    threads = [threading.Thread(target=write, args=(tmp_path / "file", content)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [file.read_text(encoding="utf-8") in contents for file in tmp_path.iterdir()] == [True]
