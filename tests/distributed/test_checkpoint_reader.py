"""Reading a checkpoint runs nothing that is in it, and reads all that torch writes."""

import os
import pickle
import re

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata

from matrix_adagrad import RowAdaGrad
from matrix_adagrad.checkpoints import Checkpoints, digests, missing_from, reader
from tests.distributed.test_checkpoints import FOUR, ROW, SQUARE, a_run, every_run, save_first_half


class Evil:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


class Kept:
    """Something else that has a state."""

    def __init__(self, state):
        self.state = state

    def state_dict(self):
        return {"inside": self.state}

    def load_state_dict(self, state):
        self.state = state["inside"]


def named(module, name, *strings):
    """A pickle that calls what is named by a path, as those of newer protocols can."""
    texts = (module, name, *strings)
    module, name, *strings = (b"\x8c" + bytes([len(text)]) + text.encode() for text in texts)
    return b"\x80\x04" + module + name + b"\x93(" + b"".join(strings) + b"tR."


@pytest.mark.parametrize("written", ["theirs", "none"])
def test_metadata_that_would_execute_code_is_refused_by_name(tmp_path, written):
    checkpoints = a_run(ROW, None, tmp_path / "run")[2]
    path = checkpoints.save(1)
    (path / ".metadata").write_bytes(pickle.dumps(Evil(tmp_path / "ran")))
    (path / digests.NAME).unlink()
    if written == "theirs":
        digests.write_digests(path)
    words = rf"\.metadata was refused: it names {os.mkdir.__module__}\.mkdir, .* Nothing in it was executed"
    for look in (checkpoints.resume, checkpoints.newest):
        with pytest.raises(pickle.UnpicklingError, match=words):
            look()
    assert re.search(words, missing_from(path))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "called",
    [
        ("builtins", "eval", "1 + 1"),
        ("torch", "load", "file"),
        ("torch", "serialization.os.system", "true"),
        ("torch.distributed.checkpoint.filesystem", "pickle.loads", ""),
        ("torch.distributed.checkpoint.metadata", "Metadata.__init__.__globals__", ""),
        ("pathlib", "Path.mkdir", "ran"),
        ("torch", "float32.__reduce__"),
    ],
    ids="-".join,
)
def test_nothing_else_can_be_named_not_even_through_allowed_names(tmp_path, called):
    (tmp_path / ".metadata").write_bytes(named(*called))
    with pytest.raises(reader.UnsafeCheckpointError, match=re.escape(f"it names {called[0]}.{called[1]}")):
        reader.needed_files(tmp_path)


def test_metadata_cannot_change_what_it_may_name(tmp_path):
    module = Metadata.__module__.encode()
    (tmp_path / ".metadata").write_bytes(b"c" + module + b"\nMetadata\n(N}Vstorage_data\nVchanged\nstb.")
    assert Metadata.storage_data is None
    with pytest.raises(reader.UnsafeCheckpointError, match="it holds no metadata"):
        reader.needed_files(tmp_path)
    assert Metadata.storage_data is None


def test_metadata_cannot_refer_to_files_outside_its_folder(tmp_path):
    path = a_run(ROW, None, tmp_path)[2].save(1)
    metadata = FileSystemReader(path).read_metadata()
    next(iter(metadata.storage_data.values())).relative_path = "../elsewhere"
    (path / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(reader.UnsafeCheckpointError, match="it names ../elsewhere, which is not in its folder"):
        reader.needed_files(path)


def test_non_tensor_values_execute_nothing_either(tmp_path):
    model, optimizer, _ = a_run(ROW, None, tmp_path)
    checkpoints = Checkpoints(tmp_path / "run", model, optimizer, other=Kept(Evil(tmp_path / "ran")))
    checkpoints.save(1)
    with pytest.raises(pickle.UnpicklingError, match=rf"was refused: it names {os.mkdir.__module__}.mkdir, .*not data"):
        checkpoints.resume()
    assert not (tmp_path / "ran").exists()


def test_tensor_files_execute_nothing_either(tmp_path, monkeypatch):
    checkpoints = a_run(ROW, None, tmp_path / "run")[2]
    save, evil = torch.save, Evil(tmp_path / "ran")
    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", lambda value, file: save(evil if isinstance(value, torch.Tensor) else value, file))
        checkpoints.save(1)
    with pytest.raises(pickle.UnpicklingError, match=rf"was refused: it names {os.mkdir.__module__}.mkdir, .*not data"):
        checkpoints.resume()
    assert not (tmp_path / "ran").exists()


def test_custom_classes_can_be_allowed(tmp_path):
    model, optimizer, _ = a_run(ROW, None, tmp_path)
    checkpoints = Checkpoints(tmp_path, model, optimizer, other=Kept(Kept(3)))
    checkpoints.save(1)
    with pytest.raises(pickle.UnpicklingError, match=r"Kept, .* torch.serialization.add_safe_globals allows classes"):
        checkpoints.resume()
    checkpoints.others["other"].state = None
    with torch.serialization.safe_globals([Kept]):
        assert checkpoints.resume() == 1
    assert checkpoints.others["other"].state.state == 3


# ------------------------------------------------------------------------------------------------- what torch writes


def assert_read_as_by_torch(path):
    ours, theirs = reader._Reader(path).read_metadata(), FileSystemReader(path).read_metadata()
    for metadata in (ours, theirs):
        metadata.storage_meta.load_id, metadata.storage_meta.checkpoint_id = None, str(path)
    assert ours == theirs
    assert set(reader.needed_files(path)) == {file.name for file in path.glob("*.distcp")}


@pytest.mark.parametrize("layout", [FOUR, SQUARE], ids=["four", "square"])
def test_metadata_of_sharded_checkpoints_is_read_as_by_torch(ranks, tmp_path, layout):
    for i, make in enumerate(every_run.args[1]):
        ranks.run(4, save_first_half, make, layout, tmp_path / str(i))
        (path,) = (tmp_path / str(i)).iterdir()
        assert_read_as_by_torch(path)


DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64),
    *(torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.bfloat16, torch.float32),
    *(torch.float64, torch.complex64, torch.complex128),
)


def test_metadata_of_every_dtype_is_read_as_by_torch(tmp_path):
    model = nn.Linear(4, 3)
    for i, dtype in enumerate(DTYPES):
        model.register_buffer(f"b{i}", torch.ones(8, dtype=dtype))
    checkpoints = Checkpoints(tmp_path, model, RowAdaGrad(model.parameters()), other=Kept({"a": (1, None), "b": [2.5]}))
    assert_read_as_by_torch(checkpoints.save(1))
    for buffer in model.buffers():
        buffer.zero_()
    assert checkpoints.resume() == 1
    assert all(torch.equal(buffer.to(torch.complex128), torch.ones(8) + 0j) for buffer in model.buffers())
