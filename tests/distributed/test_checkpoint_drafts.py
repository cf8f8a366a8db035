"""A save that failed or died blocks no other one, and what somebody may be writing is left alone."""

import errno
import fcntl
import functools
import logging
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint.api import CheckpointException

from matrix_adagrad.checkpoints import drafts
from tests.distributed.test_checkpoints import FOUR, ROW, a_run, two_checkpoints

write_item = filesystem._write_item


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def warnings(caplog):
    return [record.message for record in caplog.records if record.name == "matrix_adagrad"]


def full_after(items):
    """The disk is full when so many tensors are written."""
    left = iter(range(items))

    def write(*args):
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_item(*args)

    return write


def test_a_full_disk_costs_only_that_save_and_its_space_is_freed(tmp_path, monkeypatch):
    checkpoints = two_checkpoints(tmp_path)
    monkeypatch.setattr(filesystem, "_write_item", full_after(10))
    with pytest.raises(CheckpointException, match="No space left on device"):
        checkpoints.save(5)
    assert names(tmp_path) == ["step-000000003", "step-000000004"]
    monkeypatch.undo()
    checkpoints.save(6)
    assert names(tmp_path) == ["step-000000004", "step-000000006"]
    assert checkpoints.resume() == 6


def save_on_a_disk_that_gets_full(folder):
    checkpoints = a_run(ROW, FOUR, folder)[2]
    checkpoints.save(1)
    if checkpoints.model.p0.device_mesh.get_rank() == 2:  # on one of the machines
        filesystem._write_item = full_after(3)
    try:
        with pytest.raises(CheckpointException, match="No space left on device"):
            checkpoints.save(2)
    finally:
        filesystem._write_item = write_item
    assert checkpoints.resume() == 1
    checkpoints.save(3)
    assert checkpoints.resume() == 3


def test_a_full_disk_on_one_rank_fails_the_save_on_all(ranks, tmp_path):
    ranks.run(4, save_on_a_disk_that_gets_full, tmp_path)
    assert names(tmp_path) == ["step-000000001", "step-000000003"]


PROGRAM = textwrap.dedent("""
    import sys, torch
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from matrix_adagrad import RowAdaGrad
    from matrix_adagrad.checkpoints import Checkpoints

    finish = FileSystemWriter.finish

    def waiting(self, *args, **kwargs):
        print("writing", flush=True)
        sys.stdin.read()
        finish(self, *args, **kwargs)

    FileSystemWriter.finish = waiting
    model = torch.nn.Linear(4, 3)
    Checkpoints(sys.argv[1], model, RowAdaGrad(model.parameters())).save(1)
""")


@pytest.fixture
def other(tmp_path):
    """Another process that has written its tensors, and goes on when its input ends."""
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"writing\n"
        yield process
        process.kill()


def unfinished(folder):
    return sorted(folder.glob("*.unfinished"))


@pytest.mark.separate_process
def test_the_draft_of_a_live_process_is_left_alone_and_can_be_finished(tmp_path, other, caplog):
    (draft,) = unfinished(tmp_path)
    before = {file.name: file.read_bytes() for file in draft.iterdir()}
    two_checkpoints(tmp_path)
    assert {file.name: file.read_bytes() for file in draft.iterdir()} == before
    other.communicate()
    assert other.returncode == 0
    assert names(tmp_path) == ["step-000000001", "step-000000003", "step-000000004"]
    assert names(tmp_path / "step-000000001") == [".metadata", "SHA256SUMS", "__0_0.distcp"]
    assert warnings(caplog) == []


@pytest.mark.separate_process
def test_the_next_save_removes_what_a_killed_process_left(tmp_path, other, caplog):
    (draft,) = unfinished(tmp_path)
    other.kill()
    other.wait()
    assert draft.exists()
    a_run(ROW, None, tmp_path)[2].save(7)  # of another step
    assert names(tmp_path) == ["step-000000007"]
    assert warnings(caplog) == []


def dead_draft(folder):
    """As a process that was killed has left it."""
    draft = drafts.Draft(folder / "step-000000001")
    (draft.folder / "__0_0.distcp").write_bytes(bytes(1000))
    draft._release()
    return draft.folder


@pytest.mark.parametrize("doubt", ["no lock", "another machine", "locks cannot be tested"])
def test_a_draft_that_may_be_live_is_left_alone_and_named_once_with_its_size(tmp_path, doubt, caplog, monkeypatch):
    draft = dead_draft(tmp_path)
    if doubt == "no lock":  # as other versions leave it
        (draft / ".lock").unlink()
    elif doubt == "another machine":
        (draft / ".lock").write_bytes(b"of another machine")
        monkeypatch.setattr(drafts, "_is_local", lambda _: False)
    else:
        monkeypatch.setattr(fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOLCK, "No locks")))
    size = sum(file.stat().st_size for file in draft.iterdir())
    two_checkpoints(tmp_path)  # saves four times
    assert names(tmp_path) == [draft.name, "step-000000003", "step-000000004"]
    (warning,) = warnings(caplog)
    assert warning.startswith(f"{draft} ({size:,} bytes) is unfinished and is left alone")


def test_on_a_local_disk_drafts_from_before_a_reboot_are_dead(tmp_path, monkeypatch):
    draft = dead_draft(tmp_path)
    (draft / ".lock").write_bytes(b"of this machine before it was restarted")
    monkeypatch.setattr(drafts, "_is_local", lambda _: True)
    assert drafts.remove_dead(tmp_path, "step-") == []
    assert names(tmp_path) == []


def test_network_file_systems_are_distinguished_from_local_disks(tmp_path):
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n"
        "23 22 0:5 / /runs rw shared:2 - nfs4 server:/runs rw\n"
        "24 22 0:6 / /my\\040runs rw - fuse.sshfs me@there: rw\n"
        "25 23 0:7 / /runs/scratch rw - xfs /dev/sdb1 rw\n",
        encoding="utf-8",
    )
    is_local = functools.partial(drafts._is_local, mounts=mounts)
    places = ("/data/me", "/runs", "/runs/mine", "/my runs/mine", "/runs/scratch/mine", "/runscratch")
    assert [is_local(Path(place)) for place in places] == [True, False, False, False, True, True]
    assert not drafts._is_local(tmp_path, tmp_path / "no such file")


def test_an_interrupted_removal_is_finished_later(tmp_path, monkeypatch, caplog):
    checkpoints = two_checkpoints(tmp_path)

    def broken_off(folder, **_):
        os.unlink(next(folder.glob("*.distcp")))
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "matrix_adagrad"):
        patch.setattr(shutil, "rmtree", broken_off)
        checkpoints.save(5)
    assert "step-000000003 could not be removed: [Errno 5] Input/output error" in caplog.text
    assert len(names(tmp_path)) == 3
    assert checkpoints._all() == [tmp_path / "step-000000005", tmp_path / "step-000000004"]
    checkpoints.save(6)
    assert names(tmp_path) == ["step-000000005", "step-000000006"]


def test_an_incomplete_old_checkpoint_is_removed_once_enough_newer_ones_exist(tmp_path):
    checkpoints = two_checkpoints(tmp_path)
    (tmp_path / "step-000000003" / ".metadata").unlink()
    checkpoints.save(5)
    assert names(tmp_path) == ["step-000000004", "step-000000005"]


def test_an_incomplete_checkpoint_does_not_count_towards_keep(tmp_path):
    checkpoints = two_checkpoints(tmp_path)
    (tmp_path / "step-000000004" / ".metadata").unlink()
    checkpoints.save(5)
    assert names(tmp_path) == ["step-000000003", "step-000000004", "step-000000005"]
    checkpoints.save(6)
    assert names(tmp_path) == ["step-000000005", "step-000000006"]


def test_other_files_in_the_folder_stay(tmp_path):
    for name in ("notes.unfinished", "notes.removed", "step-3"):
        (tmp_path / name).write_text("mine", encoding="utf-8")
    (tmp_path / "mine.removed").mkdir()
    a_run(ROW, None, tmp_path)[2].save(1)
    assert names(tmp_path) == ["mine.removed", "notes.removed", "notes.unfinished", "step-000000001", "step-3"]
