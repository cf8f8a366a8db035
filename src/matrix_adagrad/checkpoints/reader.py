"""Reads checkpoints without executing anything in them.

`torch.distributed.checkpoint` pickles metadata and whatever is not a tensor, and its own reader lets pickles call
anything. Here the metadata may name only the classes that torch writes there. The rest is loaded as with
`torch.load(weights_only=True)`.
"""

from __future__ import annotations

import io
import pathlib
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.state_dict_loader import load as torch_load

from matrix_adagrad.optim.saved import words_for_other_rows
from matrix_adagrad.torch_private import called_by_metadata, set_element, storage_record

__all__ = ["UnsafeCheckpointError", "load", "needed_files", "saved_names", "saved_shapes"]

BUILT = (  # by the pickle, field by field
    *(metadata.Metadata, metadata.MetadataIndex, metadata.StorageMeta, metadata.TensorProperties),
    *(metadata.TensorStorageMetadata, metadata.BytesStorageMetadata, metadata.ChunkStorageMetadata),
    storage_record(),
)
CALLED: dict[
    tuple[str, str], Callable[..., Any]
] = {  # with plain arguments; a path says where the checkpoint was made, and is not opened
    ("torch", "Size"): torch.Size,
    **called_by_metadata(),
    **{
        (module, name): pathlib.PurePath
        for module in ("pathlib", "pathlib._local")
        for name in ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath")
    },
}
DTYPES = {("torch", name): dtype for name, dtype in vars(torch).items() if isinstance(dtype, torch.dtype)}


class UnsafeCheckpointError(pickle.UnpicklingError):
    """A checkpoint names something that is not data. Nothing in it was executed."""


def load(state: dict[str, Any], checkpoint: Path) -> None:
    """Fill the state from a checkpoint. All ranks must call this.

    Raises:
        UnsafeCheckpointError: if a non-tensor value, or a tensor's file, names something that is not data.
        ValueError: if the checkpoint does not fit these parameters (torch's own error is not an `Exception`).
    """
    try:
        torch_load(state, storage_reader=_Reader(checkpoint), planner=_Planner())
    except CheckpointException as error:
        for failure, _ in error.failures.values():
            if isinstance(failure, pickle.UnpicklingError):
                raise UnsafeCheckpointError(f"the checkpoint {checkpoint} was refused: {_reason(failure)}") from error
        reasons = {f"{failure}{_advice(str(failure))}" for failure, _ in error.failures.values()}
        raise ValueError(f"the checkpoint {checkpoint} does not fit: {'; '.join(sorted(reasons))}") from error


def _advice(reason: str) -> str:
    sizes = re.findall(r"torch\.Size\(\[([\d, ]*)\]\)", reason)
    if not reason.startswith("Size mismatch") or len(sizes) != 2:
        return ""
    saved, here = ([int(size) for size in shape.split(",") if size] for shape in sizes)
    return words_for_other_rows(saved, here)


def saved_names(checkpoint: Path) -> set[str]:
    """The names of everything in a checkpoint, such as ``"optimizer.state.weight.sum"``."""
    return set(_Reader(checkpoint).read_metadata().state_dict_metadata)


def saved_shapes(checkpoint: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of all tensors in a checkpoint, by name."""
    found = _Reader(checkpoint).read_metadata().state_dict_metadata
    return {name: tuple(own.size) for name, own in found.items() if isinstance(own, metadata.TensorStorageMetadata)}


def needed_files(checkpoint: Path) -> dict[str, int]:
    """The files of a checkpoint besides its metadata, and the least number of bytes of each.

    Raises:
        UnsafeCheckpointError: if the metadata names something that is not metadata.
    """
    needed: dict[str, int] = {}
    for item in _Reader(checkpoint).read_metadata().storage_data.values():
        needed[item.relative_path] = max(needed.get(item.relative_path, 0), item.offset + item.length)
    for name in needed:
        if Path(name).name != name:
            raise UnsafeCheckpointError(
                f"{checkpoint / '.metadata'} was refused: it names {name}, which is not in its folder"
            )
    return needed


class _Reader(filesystem.FileSystemReader):
    def read_metadata(self, *_: Any, **__: Any) -> metadata.Metadata:
        path = Path(self.path) / ".metadata"
        with path.open("rb") as file:
            found = _Unpickler(file, path).load()
        if not isinstance(found, metadata.Metadata):
            raise UnsafeCheckpointError(f"{path} was refused: it holds no metadata")
        found.storage_meta = found.storage_meta or metadata.StorageMeta()
        found.storage_meta.load_id = self.load_id
        return found


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BufferedReader, path: Path) -> None:
        super().__init__(file)
        self._path = path
        made = {(cls.__module__, cls.__name__): _maker(cls) for cls in BUILT}
        self._known: dict[tuple[str, str], Any] = DTYPES | made | {key: _caller(call) for key, call in CALLED.items()}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._known:
            raise UnsafeCheckpointError(
                f"{self._path} was refused: it names {module}.{name}, which no metadata needs. Nothing in it was "
                "executed; if the checkpoint is not yours, do not load it by other means"
            )
        return self._known[module, name]


# A pickle may also set attributes of what it names, so it gets stand-ins instead of the classes and functions.


def _maker(cls: type) -> type:
    return type(cls.__name__, (), {"__new__": lambda _, *args: cls.__new__(cls, *args)})


def _caller(call: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: call(*args)


class _Planner(DefaultLoadPlanner):
    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        path = self.mappings[read_item.dest_index.fqn]
        set_element(self.original_state_dict, path, torch.load(value, weights_only=True))


def _reason(failure: Exception) -> str:
    """Torch's reason for refusing a file, without its advice to load it anyway."""
    named = re.search(r"GLOBAL (\S+)", str(failure))
    if named is None:
        return str(failure).partition("\n")[0]
    return (
        f"it names {named[1]}, which is not data. Nothing in it was executed; "
        "torch.serialization.add_safe_globals allows classes of your own"
    )
