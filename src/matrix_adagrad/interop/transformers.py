"""A callback for the Trainer of Hugging Face's Transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matrix_adagrad.advisor import Probe, Report
from matrix_adagrad.interop.recorder import Recorder

try:
    from transformers import Trainer, TrainerCallback
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK
except ImportError as error:
    raise ImportError(
        "matrix_adagrad.interop.transformers needs Transformers with its Trainer: pip install transformers accelerate"
    ) from error

__all__ = ["ProbeCallback"]

_REPORTERS: Any = tuple(INTEGRATION_TO_CALLBACK.values())


class ProbeCallback(TrainerCallback):
    """A `Probe` for the length of a training, whose numbers go where the trainer reports to.

    It looks at gradients as they are stepped along: accumulated, unscaled and clipped. The numbers go to TensorBoard,
    W&B and the other integrations of ``report_to``; they are too many for the console and for the trainer's own
    history. A training that is resumed is seen from there on.

    Args:
        trainer: the trainer, which gets the callback with ``add_callback``.
        every: look at every so many steps; without it, as often as a thirtieth of the time allows.
        log_every: steps between numbers.
        path: a JSON file for the report at the end.

    Attributes:
        report: of the last training, once it has ended.

    Example:
        >>> import tempfile
        >>> from torch import nn
        >>> from transformers import Trainer, TrainingArguments
        >>> from matrix_adagrad.interop.transformers import ProbeCallback
        >>> args = TrainingArguments(tempfile.mkdtemp(), report_to=[])
        >>> trainer = Trainer(nn.Linear(3, 2), args)
        >>> callback = ProbeCallback(trainer, log_every=50, path="probe.json")
        >>> trainer.add_callback(callback)
        >>> # trainer.train(), and then
        >>> callback.report is None
        True
    """

    def __init__(
        self, trainer: Trainer, *, every: int | None = None, log_every: int = 100, path: str | Path | None = None
    ) -> None:
        super().__init__()
        if not isinstance(trainer, Trainer):
            raise TypeError(f"trainer must be a Trainer, got {type(trainer).__name__}: its loggers get the numbers")
        self._trainer = trainer
        self._recorder = Recorder(every=every, log_every=log_every, path=path)
        self.report: Report | None = None

    @property
    def probe(self) -> Probe | None:
        """The probe of the last training, also while it goes on, or if it failed."""
        return self._recorder.probe

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        self.report = None
        self._recorder.begin(self._trainer.model, self._trainer.optimizer, state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if scalars := self._recorder.scalars(state.global_step):
            for callback in self._trainer.callback_handler.callbacks:
                if isinstance(callback, _REPORTERS):
                    callback.on_log(args, state, control, **{**kwargs, "logs": dict(scalars)})

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        self.report = self._recorder.end(writes=state.is_world_process_zero)
