"""What is to be trained: a model, its loss, and batches."""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from matrix_adagrad.advisor.candidates import Candidate
from matrix_adagrad.advisor.errors import RefusedTypeError, RefusedValueError

__all__ = ["Task", "as_task", "generators_restored"]

Batches = Iterable[Any] | Callable[[int], Iterable[Any]]


@dataclass(frozen=True)
class Task:
    """A model, its loss, and batches: all that the advisor needs to know.

    Args:
        make_model: makes the model as it starts; it is called right after torch, numpy and `random` were seeded.
        loss: takes the model and a batch and returns the loss, a scalar with a graph.
        batches: an iterable of batches (a list, a `DataLoader`), taken again from its beginning when it ends; or a
            function from the seed to such an iterable, which gives every seed an order, or data, of its own. A list has
            the same order for all seeds, and the intervals then know of the starts alone.
        held_out: batches that are not trained on. Runs are judged by the mean loss over them after the last step, with
            the model in ``eval()``; without them by the mean loss of the last quarter of the steps, each on its batch
            before the step.
        name: what the reports call it.
        present: the optimizer that you train it with now, to take part in the race.

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
    present: Candidate | None = None

    def __post_init__(self) -> None:
        if isinstance(self.make_model, nn.Module):
            raise RefusedTypeError(
                "make_model must be a function that makes the model, got a model: write lambda: Model(…)"
            )
        if isinstance(self.batches, Iterator):
            raise RefusedTypeError(
                f"batches is a {type(self.batches).__name__}, which can be read only once, and every run needs the "
                "same batches: give a list, a DataLoader, or a function from the seed to an iterable"
            )
        if not isinstance(self.name, str):
            raise RefusedTypeError(f"name must be a string, got {self.name!r}")
        if not (self.held_out is None or isinstance(self.held_out, Iterable)):
            raise RefusedTypeError(f"held_out must be batches that are not trained on, or None, got {self.held_out!r}")
        if isinstance(self.held_out, Iterator):
            object.__setattr__(self, "held_out", list(self.held_out))

    def start(self, seed: int) -> nn.Module:
        """The model that this seed starts from, in training mode."""
        _seed(seed)
        model = self.make_model()
        if not isinstance(model, nn.Module):
            raise RefusedTypeError(f"make_model must return a module, got {type(model).__name__}")
        if not any(param.requires_grad for param in model.parameters()):
            raise RefusedValueError("make_model must return a module with parameters to train, got one without any")
        return model.train()

    def measure(self, model: nn.Module, batch: Any) -> Tensor:
        """The loss, if it is a number."""
        loss = self.loss(model, batch)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            got = f"one of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
            raise RefusedTypeError(f"loss must return a tensor with one number, got {got}")
        if loss.is_complex():
            raise RefusedTypeError(f"loss must return a real number, got {loss.dtype}")
        return loss

    def evaluate(self, model: nn.Module, batch: Any) -> Tensor:
        """The loss, if it is a number that can be trained on."""
        loss = self.measure(model, batch)
        if not loss.requires_grad:
            raise RefusedTypeError("loss must return a tensor that backward() works on, got one without a graph")
        return loss

    def stream(self, seed: int, steps: int) -> Iterator[Any]:
        """The batches of this seed, from the beginning again whenever they end."""
        _seed(seed + 1_000_003)  # what shuffles by itself shuffles alike in every run of a seed
        source = self.batches(seed) if callable(self.batches) else self.batches
        if not hasattr(source, "__iter__") and not hasattr(source, "__getitem__"):
            got = type(source).__name__
            raise RefusedTypeError(
                f"batches must be an iterable of batches, or a function from a seed to one, got {got}"
            )
        own = getattr(source, "generator", None)
        if isinstance(own, torch.Generator):  # a DataLoader's
            own.manual_seed(seed)
        return itertools.islice(_again_and_again(source), steps)


@contextmanager
def generators_restored() -> Iterator[None]:
    """Leave the random numbers of torch, numpy and `random` as they were."""
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
    """Seed whatever the user's code may draw from."""
    torch.manual_seed(seed)
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed % (1 << 32))


def _again_and_again(source: Iterable[Any]) -> Iterator[Any]:
    if isinstance(source, Iterator):  # it can be read once only, and has to last
        yield from source
        raise RefusedValueError(
            "batches ended before the last step: let the function return a list, or an endless iterator"
        )
    while True:
        empty = True
        for batch in source:
            empty = False
            yield batch
        if empty:
            raise RefusedValueError("batches is empty: give at least one batch")


def as_task(made: object, what: str, name: str = "model") -> Task:
    """A `Task`, or the tuple ``(make_model, loss, batches)``, as one; ``what`` begins the sentence if it is neither."""
    if isinstance(made, Task):
        return made
    if isinstance(made, tuple) and len(made) in (3, 4) and callable(made[0]) and callable(made[1]):
        return replace(Task(*made), name=name)
    got = type(made).__name__
    if isinstance(made, tuple):
        got = f"the tuple ({', '.join(type(one).__name__ for one in made)})"
    raise RefusedTypeError(
        f"{what} a Task or the tuple (make_model, loss, batches), got {got}: see matrix_adagrad.advisor.Task"
    )
