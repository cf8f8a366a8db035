"""A training task: a model, its loss and its batches."""

from __future__ import annotations

import inspect
import itertools
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from matrix_adagrad.advisor.candidates import Candidate
from matrix_adagrad.advisor.errors import AdvisorTypeError, AdvisorValueError

__all__ = ["Schedule", "Task", "as_task", "check_call", "generators_restored"]

Batches = Iterable[Any] | Callable[[int], Iterable[Any]]
Schedule = Callable[[Optimizer, int], LRScheduler]


@dataclass(frozen=True)
class Task:
    """A model, its loss and its batches: all that the advisor needs to know.

    Args:
        make_model: takes no argument and returns the untrained model, the same one whenever torch, numpy and `random`
            have the same seed.
        loss: takes the model and a batch, and returns the loss: a tensor with one number, to call ``backward()`` on.
        batches: an iterable of batches (a list, a `DataLoader`), restarted when it ends; or a function that takes the
            seed and returns such an iterable, so that every seed has its own order or its own data. With a list all
            seeds have the same order, and intervals reflect the initialization alone.
        held_out: batches to score runs on: their mean loss after the last step, with the model in ``eval()``. Without
            them the score is the mean training loss over the last quarter of the steps.
        name: the task's name on the page.
        baseline: the optimizer that you use now, as one more candidate.
        schedule: the schedule that you will train with: it takes the optimizer and the number of steps, and returns a
            scheduler, whose ``step()`` is called after each step. Short runs then have all of it, as the long one will.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from matrix_adagrad.advisor import Task
        >>> task = Task(
        ...     lambda: nn.Linear(4, 2),
        ...     lambda model, batch: nn.functional.mse_loss(model(batch[0]), batch[1]),
        ...     lambda seed: [(torch.randn(8, 4), torch.randn(8, 2)) for _ in range(10)],
        ... )
        >>> len(list(task.stream(seed=0, steps=25)))
        25
    """

    make_model: Callable[[], nn.Module]
    loss: Callable[[nn.Module, Any], Tensor]
    batches: Batches
    held_out: Iterable[Any] | None = None
    name: str = "model"
    baseline: Candidate | None = None
    schedule: Schedule | None = None

    def __post_init__(self) -> None:
        if isinstance(self.make_model, nn.Module):
            raise AdvisorTypeError(
                "make_model must be a function that returns the model, got a model: write lambda: Model(…)"
            )
        if isinstance(self.batches, Iterator):
            raise AdvisorTypeError(
                f"batches must be iterable more than once, since every run needs the same batches, got "
                f"{type(self.batches).__name__}: give a list, a DataLoader, or a function of the seed"
            )
        if not isinstance(self.name, str):
            raise AdvisorTypeError(f"name must be a string, got {self.name!r}")
        if not (self.held_out is None or isinstance(self.held_out, Iterable)):
            raise AdvisorTypeError(f"held_out must be an iterable of batches, or None, got {self.held_out!r}")
        if isinstance(self.held_out, Iterator):
            object.__setattr__(self, "held_out", list(self.held_out))
        check_call("make_model", self.make_model)
        check_call("loss", self.loss, "the model", "a batch")
        if callable(self.batches):
            check_call("batches", self.batches, "the seed")
        if self.schedule is not None:
            if not callable(self.schedule):
                raise AdvisorTypeError(
                    "schedule must be a function of the optimizer and the number of steps, got "
                    f"{type(self.schedule).__name__}"
                )
            check_call("schedule", self.schedule, "the optimizer", "the number of steps")

    def start(self, seed: int) -> nn.Module:
        """The untrained model of a seed, in training mode."""
        _seed(seed)
        model = self.make_model()
        if not isinstance(model, nn.Module):
            raise AdvisorTypeError(f"make_model must return an nn.Module, got {type(model).__name__}")
        if not any(param.requires_grad for param in model.parameters()):
            raise AdvisorValueError("make_model must return a module with parameters to train, got one with none")
        return model.train()

    def measure(self, model: nn.Module, batch: Any) -> Tensor:
        """The loss on a batch, after checking that it is one real number."""
        loss = self.loss(model, batch)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            got = f"one of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
            raise AdvisorTypeError(f"loss must return a tensor with one number, got {got}")
        if loss.is_complex():
            raise AdvisorTypeError(f"loss must return a real number, got {loss.dtype}")
        return loss

    def evaluate(self, model: nn.Module, batch: Any) -> Tensor:
        """The loss on a batch, after checking that it can be trained on."""
        loss = self.measure(model, batch)
        if not loss.requires_grad:
            raise AdvisorTypeError("loss must return a tensor to call backward() on, got one without a graph")
        return loss

    def stream(self, seed: int, steps: int) -> Iterator[Any]:
        """The first ``steps`` batches of a seed, restarting whenever they end."""
        _seed(seed + 1_000_003)  # a loader that shuffles does so alike in every run of a seed
        source = self.batches(seed) if callable(self.batches) else self.batches
        if not hasattr(source, "__iter__") and not hasattr(source, "__getitem__"):
            got = type(source).__name__
            raise AdvisorTypeError(
                f"batches must be an iterable of batches, or a function of the seed that returns one, got {got}"
            )
        own = getattr(source, "generator", None)
        if isinstance(own, torch.Generator):  # a DataLoader's
            own.manual_seed(seed)
        return itertools.islice(_repeated(source), steps)


@contextmanager
def generators_restored() -> Iterator[None]:
    """Restore the random state of torch, numpy and `random` afterwards."""
    numpy = sys.modules.get("numpy")
    of_python, of_numpy = random.getstate(), numpy.random.get_state() if numpy else None
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(of_python)
            if numpy:
                numpy.random.set_state(of_numpy)


def _seed(seed: int) -> None:
    """Seed all generators that the user's code may draw from."""
    torch.manual_seed(seed)
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed % (1 << 32))


def _repeated(source: Iterable[Any]) -> Iterator[Any]:
    if isinstance(source, Iterator):  # it cannot be restarted
        yield from source
        raise AdvisorValueError("batches ended before the last step: return a list, or an endless iterator")
    while True:
        empty = True
        for batch in source:
            empty = False
            yield batch
        if empty:
            raise AdvisorValueError("batches is empty: give at least one batch")


def check_call(name: str, function: Callable[..., Any], *arguments: str) -> None:
    """Raise an error unless the function can be called with these arguments, which are given as descriptions."""
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        wanted = " and ".join(arguments) or "no argument"
        raise AdvisorTypeError(f"{name} must take {wanted}, but calling it this way fails: {error}") from None
    except ValueError:  # no signature, as of some builtins
        return


def as_task(made: object, what: str, name: str = "model") -> Task:
    """A `Task`, made from the tuple ``(make_model, loss, batches)`` if need be. ``what`` begins the error message."""
    if isinstance(made, Task):
        return made
    if isinstance(made, tuple) and len(made) in (3, 4) and callable(made[0]) and callable(made[1]):
        return replace(Task(*made), name=name)
    got = type(made).__name__
    if isinstance(made, tuple):
        got = f"the tuple ({', '.join(type(part).__name__ for part in made)})"
    raise AdvisorTypeError(
        f"{what} a Task or the tuple (make_model, loss, batches), got {got}: see matrix_adagrad.advisor.Task"
    )
