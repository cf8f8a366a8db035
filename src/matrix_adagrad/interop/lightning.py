"""A callback for Lightning's Trainer, of the package ``lightning`` or ``pytorch_lightning``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matrix_adagrad.advisor import Probe, Report
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
    """A `Probe` for the length of a fit, whose numbers go to the trainer's loggers.

    It looks at gradients as they are stepped along: accumulated, unscaled and clipped. A fit that is resumed is seen
    from there on. When a fit fails, the probe is detached, and `probe` has what it saw.

    Args:
        every: look at every so many steps; without it, as often as a thirtieth of the time allows.
        log_every: steps between numbers in the loggers.
        path: a JSON file for the report at the end.

    Attributes:
        report: of the last fit, once it has ended.

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
        self.report: Report | None = None

    @property
    def probe(self) -> Probe | None:
        """The probe of the last fit, also while it goes on."""
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
        self._recorder.stop()  # no report: other machines may never come to add theirs
