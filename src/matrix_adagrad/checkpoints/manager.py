"""Saves and resumes runs, and removes old checkpoints."""

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

import torch
from torch.nn import Module
from torch.optim import Optimizer

from matrix_adagrad.checkpoints import digests, drafts
from matrix_adagrad.checkpoints.collective import on_first_rank, rank_and_world
from matrix_adagrad.checkpoints.drafts import Draft
from matrix_adagrad.geometry import wide_dtype
from matrix_adagrad.optim.counters import COUNTERS, new_counter
from matrix_adagrad.optim.saved import FORMAT_KEY, SHAPE, check_format, plain
from matrix_adagrad.optim.state import StatefulOptimizer

if TYPE_CHECKING:
    from torch.distributed.checkpoint.stateful import Stateful

__all__ = ["Checkpoints", "missing_from", "saved_shapes"]

_logger = logging.getLogger("matrix_adagrad")
_PREFIX, _OLD = "step-", ".old"
_NAME = re.compile(rf"{_PREFIX}(\d+)({re.escape(_OLD)})?")


class Checkpoints:
    """The checkpoints of a run, in a folder that all ranks see.

    Args:
        folder: holds one folder per checkpoint. It is created if needed.
        model: the model, sharded or not.
        optimizer: its optimizer.
        keep: how many checkpoints to keep. Older ones are removed once a newer one is complete.
        share_unchanged: write large tensors in pieces of 16 MB, and only those that have changed since the newest
            checkpoint; the others are hard links to its files. It saves disk space and writing, and a checkpoint is
            loaded piece by piece. Damage to a file that two checkpoints share is detected, but it damages both.
        others: other stateful objects, by name (a scheduler, a sampler). Their state must be the same on all ranks:
            rank 0 saves it.

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
        ...     interrupted = run(folder, 3)
        ...     torch.equal(run(folder, 5), run(other, 5))
        True
    """

    def __init__(
        self,
        folder: str | Path,
        model: Module,
        optimizer: Optimizer,
        *,
        keep: int = 2,
        share_unchanged: bool = False,
        **others: Stateful,
    ) -> None:
        if not isinstance(model, Module) or not isinstance(optimizer, Optimizer):
            kinds = f"a {type(model).__name__} and a {type(optimizer).__name__}"
            raise TypeError(f"model and optimizer must be an nn.Module and an Optimizer, got {kinds}")
        if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep!r}")
        if not isinstance(share_unchanged, bool):
            raise TypeError(f"share_unchanged must be True or False, got {share_unchanged!r}")
        for name, other in others.items():
            if not (hasattr(other, "state_dict") and hasattr(other, "load_state_dict")):
                raise TypeError(f"{name} must have a state_dict and a load_state_dict, got {other!r}")
        if Path(folder).exists() and not Path(folder).is_dir():
            raise NotADirectoryError(f"folder must be a folder, got the file {folder}")
        self.folder, self.model, self.optimizer, self.keep, self.others = Path(folder), model, optimizer, keep, others
        self.share_unchanged = share_unchanged
        self._reported: set[Path] = set()  # drafts already warned about

    def save(self, step: int) -> Path:
        """Save the state after ``step`` steps, and return when it is on disk. All ranks must call this.

        A save that fails removes what it wrote. If a save is killed, the next save removes what it left behind.
        Anything that another process may still be writing is left alone.
        """
        from torch.distributed.checkpoint.state_dict_saver import save

        step = _count(step)
        path = self.folder / f"{_PREFIX}{step:09}"
        draft: Draft | None = None  # on rank 0 alone

        def begin() -> Path:
            nonlocal draft
            self._remove_dead()
            draft = Draft(path)
            return draft.folder

        def finish() -> None:
            assert draft is not None
            old = path.with_name(path.name + _OLD)
            if path.exists():  # the same step again: keep the old one until the new one is in place
                if old.exists():
                    drafts.remove(old)
                path.rename(old)
            draft.finish(path)
            self._remove_old(path)

        try:
            folder = on_first_rank(begin)
            with _without_single_process_warning():
                save(self._state(step), checkpoint_id=folder, **self._in_pieces(folder))
            digests.write_digests(folder)
            on_first_rank(finish)
        except BaseException:
            if draft is not None:
                draft.discard()
            raise
        return path

    def _in_pieces(self, folder: Path) -> dict[str, Any]:
        """How `save` writes, if checkpoints share what has not changed."""
        if not self.share_unchanged:
            return {}
        from matrix_adagrad.checkpoints.pieces import PiecePlanner, PieceWriter

        other = on_first_rank(lambda: next(iter(self._all()), None))
        return {"planner": PiecePlanner(), "storage_writer": PieceWriter(folder, other, rank_and_world()[0])}

    def resume(self) -> int:
        """Load the newest intact checkpoint, and return the number of steps it was saved after, or 0 if there is none.

        All ranks must call this. Files are checked against their digests. If the optimizer refuses its state, because
        the geometry or domain differs, the model is left as it was.

        Raises:
            pickle.UnpicklingError: if the checkpoint names something that is not data. Nothing in it was executed.
                Allow your own classes, in ``others``, with `torch.serialization.add_safe_globals`.
        """
        from torch.distributed.checkpoint.state_dict import set_model_state_dict, set_optimizer_state_dict

        from matrix_adagrad.checkpoints.reader import load, saved_names

        newest = self._newest_intact()
        if newest is None:
            return 0
        state, saved = self._state(0), saved_names(newest)
        self._fit(state, saved)
        weights = {"model": state.pop("model")}
        with _without_single_process_warning():
            if formats := {name: 1 for name in saved if name.endswith(f".{FORMAT_KEY}")}:
                load(formats, newest)  # first: a newer format may lack what is expected of this one
                for number in formats.values():
                    check_format({FORMAT_KEY: number})
            load(state, newest)
            set_optimizer_state_dict(self.model, self.optimizer, state["optimizer"])
            load(weights, newest)
        set_model_state_dict(self.model, weights["model"])
        for name, other in self.others.items():
            other.load_state_dict(state["others"][name])
        return int(state["step"])

    def newest(self) -> Path | None:
        """The newest complete checkpoint. A warning names incomplete ones. `resume` also checks the digests."""
        return next((path for path in self._all() if _can_be_used(path, _missing(path))), None)

    def _newest_intact(self) -> Path | None:
        """The newest complete and unchanged checkpoint. Metadata are read only after their digest is checked."""
        paths = on_first_rank(self._all)
        for path in paths:
            changed = digests.changed_in(path)
            if _can_be_used(path, changed or on_first_rank(functools.partial(_missing, path))):
                if changed is None:
                    _warn(f"the checkpoint {path} has no {digests.NAME}: changed bytes cannot be detected")
                return path
        if paths:
            _warn(f"no checkpoint in {self.folder} can be used: the run starts from the beginning")
        return None

    def _all(self) -> list[Path]:
        """All finished checkpoints, the newest first."""
        named = [(_NAME.fullmatch(path.name), path) for path in self.folder.glob(f"{_PREFIX}*") if path.is_dir()]
        found = [(int(match[1]), not match[2], path) for match, path in named if match]
        return [path for _, _, path in sorted(found, reverse=True)]

    def _remove_dead(self) -> None:
        """Remove dead drafts to free their space, and warn about drafts that may be dead."""
        for draft in drafts.remove_dead(self.folder, _PREFIX):
            if draft not in self._reported:
                self._reported.add(draft)
                _warn(
                    f"{draft} ({drafts.folder_size(draft):,} bytes) is unfinished and is left alone, since another "
                    "process may still be writing it: delete it if none is"
                )

    def _remove_old(self, newest: Path) -> None:
        """Remove all but the ``keep`` newest complete checkpoints. Later steps belong to another run, and stay."""
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
            self.optimizer.init_state()  # otherwise torch creates it by a step, or not at all if there are gradients
        model, optimizer = get_state_dict(self.model, self.optimizer)
        others = {name: plain(other.state_dict()) for name, other in self.others.items()}
        return {"model": model, "optimizer": optimizer, "step": step, "others": others}

    def _fit(self, state: dict[str, Any], saved: set[str]) -> None:
        """Make room for the options, averages, shapes and counters that the checkpoint has, and for no others.

        A checkpoint restores betas and momentum, and with them whether there is an average of gradients. Older versions
        saved no shapes: the optimizer warns. Options that are newer than the checkpoint stay as they are.
        """
        kept = state["optimizer"]["state"]
        for number, group in enumerate(state["optimizer"]["param_groups"]):
            for key in [key for key in group if f"optimizer.param_groups.{number}.{key}" not in saved]:
                del group[key]
        groups = iter(state["optimizer"]["param_groups"])
        for part in getattr(self.optimizer, "optimizers", [self.optimizer]):
            names = [name for _, group in zip(part.param_groups, groups, strict=False) for name in group["params"]]
            for name in names if isinstance(part, StatefulOptimizer) else []:
                own, param = kept.get(name, {}), state["model"][name]
                for key in filter(None, (SHAPE, part.AVERAGE, *COUNTERS)):
                    if f"optimizer.state.{name}.{key}" not in saved:
                        own.pop(key, None)
                    elif key not in own and key == SHAPE:
                        own[key] = torch.zeros(param.dim(), dtype=torch.int64)
                    elif key not in own and key in COUNTERS:
                        own[key] = new_counter(key, param, 0)
                    elif key not in own:
                        own[key] = torch.zeros_like(param, dtype=wide_dtype(param.dtype), requires_grad=False)


def _count(step: Any) -> int:
    if isinstance(step, bool) or not hasattr(step, "__index__") or operator.index(step) < 0:
        raise ValueError(f"step must be a whole number, at least 0, got {step!r}")
    return operator.index(step)


def saved_shapes(checkpoint: str | Path) -> dict[str, tuple[int, ...]]:
    """The shapes of all tensors in a checkpoint, such as ``{"model.weight": (1000, 16)}``, without reading them.

    They tell how many rows a table must have to load it.
    """
    from matrix_adagrad.checkpoints.reader import saved_shapes

    return saved_shapes(Path(checkpoint))


def missing_from(checkpoint: str | Path) -> str:
    """A message that says what a `torch.distributed.checkpoint` checkpoint lacks; empty if it is complete.

    Sizes are checked, not contents. Reading the metadata executes nothing in them.
    """
    try:
        return _missing(Path(checkpoint))
    except pickle.UnpicklingError as error:
        return str(error)


def _missing(checkpoint: Path) -> str:
    """The same, but raise an error for unsafe metadata."""
    from matrix_adagrad.checkpoints.reader import UnsafeCheckpointError, needed_files

    try:
        for name, size in sorted(needed_files(checkpoint).items()):
            if not (checkpoint / name).exists():
                return f"{name} is missing"
            if (checkpoint / name).stat().st_size < size:
                return f"{name} has {(checkpoint / name).stat().st_size} bytes of {size}"
    except UnsafeCheckpointError:
        raise
    except FileNotFoundError:
        return "its .metadata is missing"
    except Exception as error:  # corrupt bytes may raise anything
        return f"its .metadata cannot be read: {error}"
    return ""


def _can_be_used(path: Path, fault: str) -> bool:
    if fault:
        _warn(f"the checkpoint {path} cannot be used ({fault}); trying the one before")
    return not fault


def _warn(text: str) -> None:
    """Log a warning, on rank 0 only."""
    if rank_and_world()[0] == 0:
        _logger.warning(text)


@contextlib.contextmanager
def _without_single_process_warning() -> Iterator[None]:
    """Silence torch's warning that there is no process group."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*assuming the intent is to (save|load) in a single process")
        yield
