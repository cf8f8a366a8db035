"""The checkpoints of a run: saved, resumed from, and removed when they are old."""

from __future__ import annotations

import contextlib
import functools
import logging
import operator
import pickle
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.nn import Module
from torch.optim import Optimizer

from matrix_adagrad.checkpoints import drafts, sums
from matrix_adagrad.checkpoints.drafts import Draft
from matrix_adagrad.checkpoints.ranks import by_the_first, rank_and_world
from matrix_adagrad.optim.saved import SHAPE, plain

if TYPE_CHECKING:
    from torch.distributed.checkpoint.stateful import Stateful

__all__ = ["Checkpoints", "missing_from"]

_logger = logging.getLogger("matrix_adagrad")
_PREFIX, _OLD = "step-", ".old"
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
        if not isinstance(model, Module) or not isinstance(optimizer, Optimizer):
            kinds = f"a {type(model).__name__} and a {type(optimizer).__name__}"
            raise TypeError(f"model and optimizer must be a module and an optimizer, got {kinds}")
        if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep!r}")
        for name, other in others.items():
            if not (hasattr(other, "state_dict") and hasattr(other, "load_state_dict")):
                raise TypeError(f"{name} must have a state_dict and a load_state_dict, got {other!r}")
        if Path(folder).exists() and not Path(folder).is_dir():
            raise NotADirectoryError(f"folder must be a folder, and {folder} is a file")
        self.folder, self.model, self.optimizer, self.keep, self.others = Path(folder), model, optimizer, keep, others
        self._named: set[Path] = set()  # drafts that a warning was given for

    def save(self, step: int) -> Path:
        """Save the state after so many steps. All ranks call this; it returns when all is on the disk.

        If it fails, what was written is removed, and so is, by the next save, what a process that died has left. What
        another process may be writing is left alone.
        """
        from torch.distributed.checkpoint.state_dict_saver import save

        step = _count(step)
        path = self.folder / f"{_PREFIX}{step:09}"
        draft: Draft | None = None  # rank 0 has it for all

        def begin() -> Path:
            nonlocal draft
            self._sweep()
            draft = Draft(path)
            return draft.folder

        def finish() -> None:
            assert draft is not None
            old = path.with_name(path.name + _OLD)
            if path.exists():  # the same step again: until the new one has its name, the old one can be found
                if old.exists():
                    drafts.remove(old)
                path.rename(old)
            draft.finish(path)
            self._remove_old(path)

        try:
            folder = by_the_first(begin)
            with _alone():
                save(self._state(step), checkpoint_id=folder)
            sums.write_sums(folder)
            by_the_first(finish)
        except BaseException:
            if draft is not None:
                draft.discard()
            raise
        return path

    def resume(self) -> int:
        """Load the newest checkpoint that is whole; how many steps it was saved after, 0 if there is none.

        All ranks call this. Files are compared with the digests that were saved with them. If the optimizer refuses
        its state, because it is of another geometry or domain, the model is left as it was.

        Raises:
            pickle.UnpicklingError: if the checkpoint names something that is not data. Nothing of it was run. Allow
                classes of your own, in ``others``, by `torch.serialization.add_safe_globals`.
        """
        from torch.distributed.checkpoint.state_dict import set_model_state_dict, set_optimizer_state_dict

        from matrix_adagrad.checkpoints.reader import load, saved_names

        newest = self._newest_whole()
        if newest is None:
            return 0
        state, saved = self._state(0), saved_names(newest)
        for name, own in state["optimizer"]["state"].items():
            if f"optimizer.state.{name}.{SHAPE}" not in saved:  # as in older ones: the optimizer says so
                own.pop(SHAPE, None)
        weights = {"model": state.pop("model")}
        with _alone():
            load(state, newest)
            set_optimizer_state_dict(self.model, self.optimizer, state["optimizer"])
            load(weights, newest)
        set_model_state_dict(self.model, weights["model"])
        for name, other in self.others.items():
            other.load_state_dict(state["others"][name])
        return int(state["step"])

    def newest(self) -> Path | None:
        """The newest checkpoint that is complete; those that are not are named in a warning.

        Whether its files have the bytes that were saved, `resume` finds out.
        """
        return next((path for path in self._all() if _can_be_used(path, _missing(path))), None)

    def _newest_whole(self) -> Path | None:
        """The newest one that is complete and unchanged: its metadata are read if no bit of them has changed."""
        paths = by_the_first(self._all)
        for path in paths:
            changed = sums.changed_in(path)
            if _can_be_used(path, changed or by_the_first(functools.partial(_missing, path))):
                if changed is None:
                    _warn(f"the checkpoint {path} has no {sums.NAME}: its bytes cannot be compared with what was saved")
                return path
        if paths:
            _warn(f"no checkpoint in {self.folder} can be used: the run starts from the beginning")
        return None

    def _all(self) -> list[Path]:
        """All that have a name, the newest first."""
        named = [(_NAME.fullmatch(path.name), path) for path in self.folder.glob(f"{_PREFIX}*") if path.is_dir()]
        found = [(int(match[1]), not match[2], path) for match, path in named if match]
        return [path for _, _, path in sorted(found, reverse=True)]

    def _sweep(self) -> None:
        """Remove what is dead, so that there is space, and name what may be."""
        for draft in drafts.sweep(self.folder, _PREFIX):
            if draft not in self._named:
                self._named.add(draft)
                _warn(
                    f"{draft}, of {drafts.size(draft):,} bytes, was not finished, and may be another process's that "
                    "still writes it, so it is left alone: delete it if there is none"
                )

    def _remove_old(self, newest: Path) -> None:
        """All that come after as many complete ones as are kept; those of later steps are another run's, and stay."""
        paths = self._all()
        if newest != paths[0]:
            _warn(f"{self.folder} has later checkpoints, such as {paths[0].name}: they are left alone")
        kept = 1
        for path in paths[paths.index(newest) + 1 :]:
            if kept >= self.keep or path.name.endswith(_OLD):
                drafts.remove(path)
            elif not missing_from(path):
                kept += 1

    def _state(self, step: int) -> dict[str, Any]:
        from torch.distributed.checkpoint.state_dict import get_state_dict

        if hasattr(self.optimizer, "init_state"):
            self.optimizer.init_state()  # else torch makes the state by a step, or not at all if there are gradients
        model, optimizer = get_state_dict(self.model, self.optimizer)
        others = {name: plain(other.state_dict()) for name, other in self.others.items()}
        return {"model": model, "optimizer": optimizer, "step": step, "others": others}


def _count(step: Any) -> int:
    if isinstance(step, bool) or not hasattr(step, "__index__") or operator.index(step) < 0:
        raise ValueError(f"step must be a whole number, at least 0, got {step!r}")
    return operator.index(step)


def missing_from(checkpoint: str | Path) -> str:
    """What a checkpoint of `torch.distributed.checkpoint` lacks, in words; empty if it is complete.

    Sizes are compared, not contents. Metadata are read without running anything that they name.
    """
    try:
        return _missing(Path(checkpoint))
    except pickle.UnpicklingError as error:
        return str(error)


def _missing(checkpoint: Path) -> str:
    """The same, but metadata that name what they must not are an error: that is no accident."""
    from matrix_adagrad.checkpoints.reader import RefusedError, needed_files

    try:
        for name, size in sorted(needed_files(checkpoint).items()):
            if not (checkpoint / name).exists():
                return f"{name} is missing"
            if (checkpoint / name).stat().st_size < size:
                return f"{name} has {(checkpoint / name).stat().st_size} bytes of {size}"
    except RefusedError:
        raise
    except FileNotFoundError:
        return "its .metadata is missing"
    except Exception as error:  # of a file with wrong bytes, it may be any
        return f"its .metadata cannot be read: {error}"
    return ""


def _can_be_used(path: Path, fault: str) -> bool:
    if fault:
        _warn(f"the checkpoint {path} cannot be used ({fault}): the one before is")
    return not fault


def _warn(text: str) -> None:
    """Once, not on every rank."""
    if rank_and_world()[0] == 0:
        _logger.warning(text)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Torch warns that a process is alone; here that is as good as any other number."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*assuming the intent is to (save|load) in a single process")
        yield
