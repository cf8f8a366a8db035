"""A callback for Lightning's Trainer, from the package ``lightning`` or ``pytorch_lightning``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matrix_adagrad.advisor import Probe, ProbeReport
from matrix_adagrad.interop.recorder import Recorder

try:
    from lightning.pytorch import Callback
except ImportError:
    try:
        from pytorch_lightning import Callback
    except ImportError as error:
        raise ImportError("matrix_adagrad.interop.lightning needs Lightning: pip install lightning") from error

__all__ = ["ProbeCallback"]


class ProbeCallback(Callback):
    """Attaches a `Probe` for the duration of a fit, and sends its numbers to the trainer's loggers.

    It observes gradients as the optimizer sees them: accumulated, unscaled and clipped. A resumed fit is observed from
    where it resumes. If a fit fails, the probe is detached, and `probe` keeps its measurements.

    Args:
        every: observe one step in ``every``. By default, as many steps as fit in a thirtieth of the training time.
        log_every: steps between logged numbers.
        path: a JSON file for the final report.

    Attributes:
        report: the report of the last fit, once it has ended.

    Example:
        >>> from matrix_adagrad.interop.lightning import ProbeCallback
        >>> callback = ProbeCallback(log_every=50, path="probe.json")
        >>> # Trainer(callbacks=[callback]).fit(model), and then
        >>> callback.report is None
        True
    """

    def __init__(self, *, every: int | None = None, log_every: int = 100, path: str | Path | None = None) -> None:
        super().__init__()
        self._recorder = Recorder(every=every, log_every=log_every, path=path)
        self.report: ProbeReport | None = None

    @property
    def probe(self) -> Probe | None:
        """The probe of the current or the last fit."""
        return self._recorder.probe

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.report = None
        self._recorder.begin(pl_module, trainer.optimizers, trainer.global_step)

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if scalars := self._recorder.scalars(trainer.global_step):
            for logger in trainer.loggers:
                logger.log_metrics(scalars, step=trainer.global_step)

    def on_train_end(self, trainer: Any, *_: Any) -> None:
        self.report = self._recorder.end(writes=trainer.is_global_zero)

    def on_exception(self, *_: Any) -> None:
        self._recorder.stop()  # no report: other ranks may never arrive with theirs
