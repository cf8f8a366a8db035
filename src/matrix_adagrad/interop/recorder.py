"""A probe attached for a trainer's run: what the trainer callbacks share."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from torch import nn
from torch.optim import Optimizer

from matrix_adagrad.advisor import Probe, ProbeReport
from matrix_adagrad.files import write

__all__ = ["Recorder"]


class Recorder:
    """Attaches a probe when a run begins, returns its numbers every ``log_every`` steps, and its report at the end.

    Args:
        every: observe one step in ``every``. By default, as many steps as fit in a thirtieth of the training time.
        log_every: steps between logged numbers.
        path: a JSON file for the report.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from matrix_adagrad.interop.recorder import Recorder
        >>> model = nn.Linear(3, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> recorder = Recorder(every=1, log_every=2)
        >>> recorder.begin(model, optimizer)
        >>> for step in range(1, 4):
        ...     model(torch.ones(1, 3)).sum().backward()
        ...     optimizer.step()
        ...     print(step, recorder.scalars(step).get("dead/weight"))
        1 None
        2 0.0
        3 None
        >>> recorder.end()["weight"].observed
        3
    """

    def __init__(self, *, every: int | None = None, log_every: int = 100, path: str | Path | None = None) -> None:
        if not isinstance(log_every, int) or log_every < 1:
            raise ValueError(f"log_every must be a whole number of steps and at least 1, got {log_every!r}")
        self.every, self.log_every, self.path = every, log_every, None if path is None else Path(path)
        self.probe: Probe | None = None
        self._logged = 0

    def begin(self, model: nn.Module, optimizer: Optimizer | Iterable[Optimizer], step: int = 0) -> None:
        """Start a new probe, after ``step`` steps of training."""
        self.stop()
        self.probe = Probe(model, optimizer, every=self.every)
        self.probe.attach()
        self._logged = step

    def scalars(self, step: int) -> dict[str, float]:
        """The numbers to log after this step, by name; empty at most steps. All ranks must call this together."""
        # Several optimizers may take several steps between two calls.
        if self.probe is None or step // self.log_every == self._logged // self.log_every:
            return {}
        self._logged = step
        return self.probe.report().scalars()

    def stop(self) -> None:
        """Detach the probe, which keeps its measurements."""
        if self.probe is not None:
            self.probe.detach()

    def end(self, *, writes: bool = True) -> ProbeReport | None:
        """The report. The rank that ``writes`` saves it. All ranks must call this together."""
        if self.probe is None:
            return None
        self.stop()
        report = self.probe.report()
        if self.path is not None and writes:
            write(self.path, report.to_json())
        return report
