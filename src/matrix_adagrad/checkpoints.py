"""Checkpoints of a run on any number of ranks: written by `torch.distributed.checkpoint`, and never half.

A checkpoint gets its name when all of it is on the disk; one that was cut off, or that has lost bytes since, is not
used: the one before is. It can be loaded on another number of ranks, and in another layout, than it was saved on.
"""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch.distributed as dist
from torch.nn import Module
from torch.optim import Optimizer

if TYPE_CHECKING:
    from torch.distributed.checkpoint.stateful import Stateful

__all__ = ["Checkpoints", "missing_from"]

T = TypeVar("T")
_logger = logging.getLogger("matrix_adagrad")
_PREFIX, _UNFINISHED, _OLD = "step-", ".unfinished", ".old"
_NAME = re.compile(rf"{_PREFIX}(\d+)({re.escape(_OLD)})?")


class Checkpoints:
    """The checkpoints of a run, in a folder that all ranks see.

    Args:
        folder: where they are, one folder each; it is made if it is not there.
        model: the model, whole or sharded.
        optimizer: its optimizer.
        keep: how many are kept; older ones are removed after a newer one is complete.
        others: what else has a state, by name. It is saved by rank 0, and the same on all ranks.

    Example:
        >>> import tempfile, torch
        >>> from matrix_adagrad import RowAdaGrad
        >>> from matrix_adagrad.checkpoints import Checkpoints
        >>> def run(folder, steps):
        ...     torch.manual_seed(0)
        ...     model = torch.nn.Linear(4, 2)
        ...     optimizer = RowAdaGrad(model.parameters(), lr=0.1)
        ...     checkpoints = Checkpoints(folder, model, optimizer)
        ...     for step in range(checkpoints.resume(), steps):
        ...         optimizer.zero_grad()
        ...         model(torch.full((1, 4), float(step))).sum().backward()
        ...         optimizer.step()
        ...         checkpoints.save(step + 1)
        ...     return model.weight.detach()
        >>> with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
        ...     broken_off = run(folder, 3)
        ...     torch.equal(run(folder, 5), run(other, 5))
        True
    """

    def __init__(
        self, folder: str | Path, model: Module, optimizer: Optimizer, *, keep: int = 2, **others: Stateful
    ) -> None:
        if keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep}")
        self.folder, self.model, self.optimizer, self.keep, self.others = Path(folder), model, optimizer, keep, others

    def save(self, step: int) -> Path:
        """Save the state after so many steps. All ranks call this; it returns when all is on the disk."""
        from torch.distributed.checkpoint.state_dict_saver import save

        path = self.folder / f"{_PREFIX}{step:09}"
        unfinished, old = (path.with_name(path.name + suffix) for suffix in (_UNFINISHED, _OLD))

        def prepare() -> None:
            self.folder.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(unfinished, ignore_errors=True)

        def name() -> None:
            shutil.rmtree(old, ignore_errors=True)
            if path.exists():  # the same step again: until the new one has its name, the old one can be found
                path.rename(old)
            unfinished.rename(path)
            self._remove_old(path)

        _by_the_first(prepare)
        with _alone():
            save(self._state(step), checkpoint_id=unfinished)
        _by_the_first(name)
        return path

    def resume(self) -> int:
        """Load the newest checkpoint that is complete; how many steps it was saved after, 0 if there is none.

        If the optimizer refuses its state, because it is of another geometry or domain, the model is left as it was.
        """
        from torch.distributed.checkpoint.state_dict import set_model_state_dict, set_optimizer_state_dict
        from torch.distributed.checkpoint.state_dict_loader import load

        newest = _by_the_first(self.newest)
        if newest is None:
            return 0
        state = self._state(0)
        weights = {"model": state.pop("model")}
        with _alone():
            load(state, checkpoint_id=newest)
            set_optimizer_state_dict(self.model, self.optimizer, state["optimizer"])
            load(weights, checkpoint_id=newest)
        set_model_state_dict(self.model, weights["model"])
        for name, other in self.others.items():
            other.load_state_dict(state["others"][name])
        return int(state["step"])

    def newest(self) -> Path | None:
        """The newest checkpoint that is complete; those that are not are named in a warning."""
        for path in self._all():
            missing = missing_from(path)
            if not missing:
                return path
            _logger.warning("the checkpoint %s is not complete (%s): the one before is used", path, missing)
        return None

    def _all(self) -> list[Path]:
        """All that have a name, the newest first."""
        named = [(_NAME.fullmatch(path.name), path) for path in self.folder.glob(f"{_PREFIX}*") if path.is_dir()]
        found = [(int(match[1]), not match[2], path) for match, path in named if match]
        return [path for _, _, path in sorted(found, reverse=True)]

    def _remove_old(self, newest: Path) -> None:
        """All but the newest ones; those of later steps are another run's, and stay."""
        paths = self._all()
        before = [path for path in paths[paths.index(newest) + 1 :] if not missing_from(path)]
        if newest != paths[0]:
            _logger.warning("%s has later checkpoints, such as %s: they are left alone", self.folder, paths[0].name)
        for path in before:
            if path.name.endswith(_OLD) or path in before[self.keep - 1 :]:
                shutil.rmtree(path, ignore_errors=True)

    def _state(self, step: int) -> dict[str, Any]:
        from torch.distributed.checkpoint.state_dict import get_state_dict

        if hasattr(self.optimizer, "init_state"):
            self.optimizer.init_state()  # else torch makes the state by a step, or not at all if there are gradients
        model, optimizer = get_state_dict(self.model, self.optimizer)
        others = {name: other.state_dict() for name, other in self.others.items()}
        return {"model": model, "optimizer": optimizer, "step": step, "others": others}


def missing_from(checkpoint: str | Path) -> str:
    """What a checkpoint of `torch.distributed.checkpoint` lacks, in words; empty if it is complete."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    checkpoint = Path(checkpoint)
    needed: dict[str, int] = {}
    try:
        for item in FileSystemReader(checkpoint).read_metadata().storage_data.values():
            needed[item.relative_path] = max(needed.get(item.relative_path, 0), item.offset + item.length)
        for name, size in sorted(needed.items()):
            if not (checkpoint / name).exists():
                return f"{name} is missing"
            if (checkpoint / name).stat().st_size < size:
                return f"{name} has {(checkpoint / name).stat().st_size} bytes of {size}"
    except FileNotFoundError:
        return "its .metadata is missing"
    except Exception as error:  # of a file with wrong bytes, it may be any
        return f"its .metadata cannot be read: {error}"
    return ""


def _are_many() -> bool:
    return dist.is_available() and dist.is_initialized()


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Torch warns that a process is alone; here that is as good as any other number."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*assuming the intent is to (save|load) in a single process")
        yield


def _by_the_first(work: Callable[[], T]) -> T:
    """Work that rank 0 does for all: they wait for it, and have its result, or its error."""
    if not _are_many():
        return work()
    outcome: list[Any] = [None, None]
    if dist.get_rank() == 0:
        try:
            outcome[0] = work()
        except Exception as error:
            outcome[1] = error
    dist.broadcast_object_list(outcome)
    if outcome[1] is not None:
        raise outcome[1]
    result: T = outcome[0]
    return result
