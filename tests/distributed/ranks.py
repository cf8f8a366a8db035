"""Ranks on this machine that run functions together, as often as they are asked to, and never hang.

The ranks meet through a file, and gloo picks its ports by itself: nothing is fixed that could collide.
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

_GRACE = 5.0  # seconds that ranks have to end or to say something, after another one failed
_PRELOADED = ["torch.distributed.fsdp", "torch.distributed.tensor.parallel", "matrix_adagrad"]


class RanksFailedError(AssertionError):
    """What the ranks said, and where they were."""


class Ranks:
    """Worlds of several sizes, each of which is started when it is needed first, and kept."""

    def __init__(self) -> None:
        self._worlds: dict[int, World] = {}

    def run(self, world: int, function: Callable[..., Any], *args: Any, timeout: float = 60) -> list[Any]:
        """``function(*args)`` on each rank of a world of this size; what they return."""
        if world not in self._worlds:
            self._worlds[world] = World(world)
        try:
            return self._worlds[world].run(function, *args, timeout=timeout)
        except RanksFailedError:
            del self._worlds[world]
            raise

    def close(self) -> list[int]:
        """Ask all ranks to end; their exit codes."""
        worlds, self._worlds = self._worlds, {}
        return [code for world in worlds.values() for code in world.close()]


class World:
    """Processes that are connected to each other."""

    def __init__(self, size: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="ranks-")
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOADED)  # imported once, by the server that ranks are forked from
        for rank in range(size):
            mine, theirs = context.Pipe()
            log, store = str(self._log(rank)), f"{self._folder.name}/store"
            process = context.Process(target=_serve, args=(rank, size, store, theirs, log), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(mine)

    def _log(self, rank: int) -> Path:
        return Path(self._folder.name) / f"rank{rank}.log"

    def run(self, function: Callable[..., Any], *args: Any, timeout: float) -> list[Any]:
        for pipe in self._pipes:
            pipe.send((function, args))
        answers: dict[int, Any] = {}
        failures: dict[int, str] = {}
        deadline = time.monotonic() + timeout
        while len(answers) + len(failures) < len(self._pipes):
            waiting = {pipe: i for i, pipe in enumerate(self._pipes) if i not in answers and i not in failures}
            ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
            if not ready:
                stacks = self._stacks(list(waiting.values()))
                self.kill()
                raise RanksFailedError("".join([*failures.values(), f"no answer in {timeout:g} s:\n", *stacks]))
            for pipe in ready:
                rank = waiting[pipe]
                try:
                    succeeded, value = pipe.recv()
                except EOFError:
                    succeeded, value = False, f"it died:\n{self._log(rank).read_text(encoding='utf-8')[-4000:]}"
                if succeeded:
                    answers[rank] = value
                else:
                    failures[rank] = f"rank {rank}: {value}\n"
                    deadline = min(deadline, time.monotonic() + _GRACE)  # the others may wait for it in vain
        if failures:
            self.kill()
            raise RanksFailedError("".join(failures.values()))
        return [answers[rank] for rank in range(len(self._pipes))]

    def _stacks(self, ranks: list[int]) -> list[str]:
        """Where each rank is at the moment."""
        before = {rank: self._log(rank).stat().st_size if self._log(rank).exists() else 0 for rank in ranks}
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._processes[rank].pid, signal.SIGUSR1)
        deadline = time.monotonic() + _GRACE
        while time.monotonic() < deadline and any(self._log(rank).stat().st_size == before[rank] for rank in ranks):
            time.sleep(0.1)
        time.sleep(0.5)  # the last of them may still be writing
        return [f"rank {rank}:\n{self._log(rank).read_text(encoding='utf-8')[before[rank] :]}" for rank in ranks]

    def kill(self) -> None:
        """No rank survives this."""
        for process, pipe in zip(self._processes, self._pipes, strict=True):
            process.kill()
            process.join()
            pipe.close()
        self._folder.cleanup()

    def close(self) -> list[int]:
        """Ask the ranks to end; their exit codes."""
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join(_GRACE)
        codes = [process.exitcode for process in self._processes]
        self.kill()
        return codes


def _serve(rank: int, size: int, store: str, pipe: Connection, log: str) -> None:
    """What a rank does all its life."""
    sys.stdout = sys.stderr = open(log, "a", encoding="utf-8", buffering=1)  # noqa: SIM115
    os.dup2(sys.stderr.fileno(), 1)
    os.dup2(sys.stderr.fileno(), 2)
    faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=size, store=dist.FileStore(store, size))
    while (task := pipe.recv()) is not None:
        function, args = task
        try:
            pipe.send((True, function(*args)))
        except Exception:
            pipe.send((False, traceback.format_exc()))
    dist.destroy_process_group()
