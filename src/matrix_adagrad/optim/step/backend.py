"""The backend interface: one way to compute a step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from matrix_adagrad.optim.step.config import Config
from matrix_adagrad.optim.step.update import Update

__all__ = ["Backend", "Measured", "PartedBackend", "RepeatedUpdates", "refusal"]

Measured = tuple[Tensor, ...]  # what a gradient adds to each statistic


class RepeatedUpdates(list[Update]):
    """Updates that take one step after another. All that changes between steps is where their gradients are."""

    @abstractmethod
    def renew(self, config: Config, grads: Sequence[Tensor]) -> bool:
        """Whether these gradients, of the same layout as before, lie where they may. If so, take them over."""

    def check(self) -> None:
        """Raise an error if a step would be refused, for when other updates move before these."""


class Backend(ABC):
    """Says which updates it supports, and steps them."""

    def runs_on(self, device: torch.device) -> bool:  # noqa: ARG002
        """Whether it is worth asking about tensors on this device."""
        return True

    def reason_against(self, update: Update, config: Config) -> str:  # noqa: ARG002
        """Why the backend does not support this update. Empty if it does."""
        return ""

    def repeated(self, updates: Sequence[Update]) -> RepeatedUpdates | None:  # noqa: ARG002
        """Updates that it has just prepared, for later steps too; None if it prepares them anew each time.

        Their gradients are all dense, or all of one batch of bags.
        """
        return None

    @abstractmethod
    def step(self, updates: Sequence[Update], config: Config) -> None:
        """Take one step for every update."""


class PartedBackend(Backend):
    """A step in three parts: read the gradients, add their measurements to the statistics, move the parameters.

    The parts can run separately. Measurements of a block that spans several ranks are all-reduced in between.
    """

    @abstractmethod
    def read(self, updates: Sequence[Update], config: Config) -> list[Measured]:
        """Measure each gradient, and update the running averages of the gradients."""

    @abstractmethod
    def accumulate(self, updates: Sequence[Update], measured: Sequence[Measured], config: Config) -> None:
        """Add the measurements to the statistics, and count one more step. The measurements may be overwritten."""

    @abstractmethod
    def move(self, updates: Sequence[Update], config: Config) -> None:
        """Move the parameters."""

    def step(self, updates: Sequence[Update], config: Config) -> None:
        self.accumulate(updates, self.read(updates, config), config)
        self.move(updates, config)


def refusal(option: str, reason: str) -> RuntimeError:
    """The error for a backend that was requested by an option and does not cover a tensor."""
    return RuntimeError(f"{option}=True is not possible here: {reason}; leave {option}=None")
