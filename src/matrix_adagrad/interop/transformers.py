"""A callback for the Trainer in Hugging Face Transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matrix_adagrad.advisor import Probe, ProbeReport
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
    """Attaches a `Probe` for the duration of a training run, and sends its numbers to wherever the trainer logs.

    It observes gradients as the optimizer sees them: accumulated, unscaled and clipped. The numbers go to TensorBoard,
    W&B and the other integrations in ``report_to``. There are too many for the console and the trainer's own history. A
    resumed run is observed from where it resumes.

    Args:
        trainer: the trainer that the callback is added to.
        every: observe one step in ``every``. By default, as many steps as fit in a thirtieth of the training time.
        log_every: steps between logged numbers.
        path: a JSON file for the final report.

    Attributes:
        report: the report of the last training run, once it has ended.

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
        self.report: ProbeReport | None = None

    @property
    def probe(self) -> Probe | None:
        """The probe of the last training run, even while it is running or if it failed."""
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
