"""Large tensors in files of a few rows each, so that a checkpoint shares those that did not change with the one before.

A file is named after a digest of its rows. It is shared by a hard link, and only if its bytes are still those that were
written: the digest that the other checkpoint has of the file is checked first.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import hashlib
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from matrix_adagrad.checkpoints import digests
from matrix_adagrad.files import replacing
from matrix_adagrad.torch_private import storage_record

__all__ = ["PiecePlanner", "PieceWriter"]

PIECE_BYTES = 1 << 24


class PiecePlanner(DefaultSavePlanner):
    """Plans one item for every few rows of a large tensor on a CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: dict[MetadataIndex, Tensor] = {}

    def create_local_plan(self) -> SavePlan:
        plan = super().create_local_plan()
        items = [piece for item in plan.items for piece in self._split(item)]
        self.plan = dataclasses.replace(plan, items=items)
        return self.plan

    def _split(self, item: WriteItem) -> list[WriteItem]:
        data = item.tensor_data
        x = None if data is None else super().lookup_object(item.index)
        if data is None or not isinstance(x, Tensor) or not _is_large(x):
            return [item]
        rows = max(1, PIECE_BYTES * len(x) // x.nbytes)
        first, *others = data.chunk.offsets
        items = []
        for start in range(0, len(x), rows):
            piece = x.detach()[start : start + rows]
            offsets = torch.Size((first + start, *others))
            chunk = ChunkStorageMetadata(offsets=offsets, sizes=piece.shape)
            index = dataclasses.replace(item.index, offset=offsets)
            self.pieces[index] = piece
            own = dataclasses.replace(data, chunk=chunk)
            items.append(dataclasses.replace(item, index=index, type=WriteItemType.SHARD, tensor_data=own))
        return items

    def lookup_object(self, index: MetadataIndex) -> Any:
        piece = self.pieces.get(index)
        return super().lookup_object(index) if piece is None else piece


def _is_large(x: Tensor) -> bool:
    is_plain = x.is_cpu and x.layout is torch.strided and x.is_contiguous() and not (x.is_neg() or x.is_conj())
    return is_plain and x.dim() > 0 and x.nbytes > PIECE_BYTES


class PieceWriter(FileSystemWriter):
    """Writes pieces to files of their own, or links those that another checkpoint already has.

    Args:
        folder: the new checkpoint.
        other: a finished checkpoint on the same file system, if there is one.
        rank: this process.
    """

    def __init__(self, folder: Path, other: Path | None, rank: int) -> None:
        super().__init__(folder)
        self._folder, self._other, self._own_rank = folder, other, rank
        self._expected = {} if other is None else digests.recorded(other)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        assert isinstance(planner, PiecePlanner)
        others = [item for item in plan.items if item.index not in planner.pieces]
        results = super().write_data(dataclasses.replace(plan, items=others), planner).wait()
        pieces = [item.index for item in plan.items if item.index in planner.pieces]
        written: Future[list[WriteResult]] = Future()
        written.set_result([*results, *[self._write(index, planner.pieces[index]) for index in pieces]])
        return written

    def _write(self, index: MetadataIndex, piece: Tensor) -> WriteResult:
        name = f"__{self._own_rank}_{_digest(piece)}.distcp"
        file = self._folder / name
        if not (file.exists() or self._link(name)):  # pieces of the same contents share a file
            with replacing(file) as out:
                torch.save(piece.clone(), out)  # a view would be saved with all of its memory
        size = file.stat().st_size
        return WriteResult(index, size, storage_record()(name, 0, size))

    def _link(self, name: str) -> bool:
        """Share a file of the other checkpoint, if it is there and undamaged."""
        if self._other is None or name not in self._expected:
            return False
        with contextlib.suppress(OSError):  # file systems without links, or too many of them
            os.link(self._other / name, self._folder / name)
            if digests.digest_of(self._folder / name) == self._expected[name]:
                return True
        (self._folder / name).unlink(missing_ok=True)
        return False


def _digest(piece: Tensor) -> str:
    found = hashlib.sha256(f"{piece.dtype} {tuple(piece.shape)} ".encode())
    found.update((ctypes.c_char * piece.nbytes).from_address(piece.data_ptr()))
    return found.hexdigest()
