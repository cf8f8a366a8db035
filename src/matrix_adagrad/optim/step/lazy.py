r"""Rows that come back: what steps without gradient do to a row is done at once, before the row is read or moved.

In a dense step, a row with gradient 0 decays, and so do its running averages:

.. math:: X_i \leftarrow (1 - \eta_t \lambda)\, X_i, \qquad
    V_i \leftarrow \beta_2 V_i, \qquad D_i \leftarrow \beta_1 D_i

Products of such factors have a closed form, so two counters per row say all that a row has missed: the last step that
its averages have seen, and how much decay the row has seen, :math:`-\sum_t \log(1 - \eta_t \lambda)`. With the total
so far, that holds under any schedule. What has no closed form is not made up: the movement along an average of
gradients that is not 0 yet.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from matrix_adagrad.geometry import Geometry
from matrix_adagrad.optim.step import native_lazy
from matrix_adagrad.optim.step.config import Config
from matrix_adagrad.optim.step.update import mixed, rounded, store, widen

__all__ = ["DECAY", "LAST_DECAY", "LAST_STEP", "Lag", "decay_of"]

LAST_STEP = "last_step"  # of each row: the last step that its averages have seen
LAST_DECAY = "last_decay"  # of each row: the total decay when it was last brought up to date
DECAY = "decay"  # the total decay of all steps so far, −Σ log(1 − ηλ)

_MOST_DECAY = 4.0  # up to here, a float32 resolves the total decay to half a unit in the last place of a weight
_MOST_STEPS = (1 << 31) - 1
_PIECE_ENTRIES = 1 << 18
_STREAM = 0x5851F42D4C957F2D  # a catch-up and the step after it draw different numbers


@dataclass(eq=False)
class Lag:
    """A parameter with its state, and the counters that say how far each row is behind."""

    param: Tensor
    average: Tensor | None
    statistics: tuple[Tensor, ...]
    geometry: Geometry
    step: Tensor
    last_step: Tensor | None  # where there are averages
    last_decay: Tensor | None  # where there is decoupled weight decay
    decay: Tensor | None
    stream: int = 0  # of random numbers for stochastic rounding

    def catch_up(self, config: Config, rows: Tensor | None = None) -> None:
        """Bring some rows, or all, up to the last step. Those that are up to date are not touched."""
        with torch.no_grad():
            if rows is not None:
                rows = rows.reshape(-1).to(self.param.device, torch.int64)
            if native_lazy.covers(self, config):
                behind = native_lazy.catch_up(self, config, rows, self._stream(0))
                if rows is None and behind:
                    torch.autograd.graph.increment_version(self.param)
                return
            if rows is not None:
                self._catch_up(rows[self._are_behind(rows)].unique(), config)
                return
            rows = self._are_behind(slice(None)).nonzero().flatten()
            if rows.numel():
                # Whoever reads all rows has saved them, perhaps: autograd is to notice.
                torch.autograd.graph.increment_version(self.param)
            for piece in rows.split(max(1, _PIECE_ENTRIES * len(self.param) // max(1, self.param.numel()))):
                self._catch_up(piece, config)

    def _stream(self, number: int) -> int:
        """A stream of random numbers for these rows; 0 if nothing is rounded at random."""
        return self.stream and mixed(self.stream, _STREAM, number)

    def _are_behind(self, rows: Tensor | slice) -> Tensor:
        behind = None
        if self.last_step is not None:
            behind = self.last_step[rows] != int(self.step)
        if self.last_decay is not None and self.decay is not None:
            misses = self.last_decay[rows] != self.decay.to(self.last_decay)
            behind = misses if behind is None else behind | misses
        assert behind is not None
        return behind

    def _catch_up(self, rows: Tensor, config: Config) -> None:
        """The same for rows of which each is listed once."""
        if not rows.numel():
            return
        if self.last_step is not None:
            self._fade(rows, config)
            self.last_step[rows] = int(self.step)
        if self.last_decay is not None and self.decay is not None:
            total = self.decay.to(self.last_decay)
            factor = torch.exp(self.last_decay[rows] - total)
            x = self.param.data  # rows that a graph has read are up to date, and stay: their version may stay too
            store_rows(x, rows, _scaled(widen(x[rows], x), factor), config, self._stream(int(rows[0])))
            self.last_decay[rows] = total

    def _fade(self, rows: Tensor, config: Config) -> None:
        """What steps without gradient do to the averages. Those of blocks that contain all rows take every step."""
        assert self.last_step is not None
        assert config.betas is not None
        beta1, beta2 = config.betas
        now = int(self.step)
        for partition, statistic in zip(self.geometry.partitions, self.statistics, strict=False):
            shape = self.param.shape
            cut, dims = partition.cut(shape), partition.dims(shape)
            if 0 in dims:
                continue
            blocks, last = rows, self.last_step[rows]
            if cut[0] != shape[0]:  # several rows share a block, which has seen the steps of the latest
                rows_per_block = shape[0] // cut[0]
                blocks = (rows // rows_per_block).unique()
                last = self.last_step.view(-1, rows_per_block)[blocks].amax(1)
            statistic[blocks] = _scaled(statistic[blocks], _power(beta2, now - last, statistic))
        if self.average is not None:
            factor = _power(beta1, now - self.last_step[rows], widen(self.average[:0], self.param))
            faded = _scaled(widen(self.average[rows], self.param), factor)
            is_narrow = self.average.dtype != faded.dtype
            self.average[rows] = (
                rounded(faded, self._stream(-1 - int(rows[0])), torch.bfloat16).to(self.average.dtype)
                if is_narrow
                else faded
            )

    def finish_step(self, config: Config, rows: Tensor | None) -> None:
        """Note a step that these rows have taken, or all. Without rows, averages that all share have not seen it."""
        with torch.no_grad():
            if rows is not None and not rows.numel():
                self._fade_shared(config)
            if self.last_step is not None and int(self.step) > _MOST_STEPS:
                raise OverflowError(f"lazy='exact' counts up to {_MOST_STEPS} steps")
            if self.decay is not None:
                self.decay += decay_of(config)
            self._mark(rows, config)
            if self.last_decay is not None and self.decay is not None and float(self.decay) >= _MOST_DECAY:
                self.catch_up(config)  # and start over
                self.decay.zero_()
                self.last_decay.zero_()

    def _mark(self, rows: Tensor | None, config: Config) -> None:
        """Count rows, or all, as up to date."""
        if native_lazy.covers(self, config):
            native_lazy.mark(self, rows)
            return
        moved = _ALL if rows is None else rows
        if self.last_step is not None:
            self.last_step[moved] = int(self.step)
        if self.last_decay is not None and self.decay is not None:
            self.last_decay[moved] = self.decay.to(self.last_decay)

    def _fade_shared(self, config: Config) -> None:
        if config.betas is None:
            return
        for partition, statistic in zip(self.geometry.partitions, self.statistics, strict=False):
            if 0 in partition.dims(self.param.shape):
                statistic *= config.betas[1]


_ALL = slice(None)


def decay_of(config: Config) -> float:
    """−log(1 − ηλ), the decay of one step. Raise an error unless it is finite."""
    product = float(config.rate) * config.weight_decay
    if not product < 1:
        raise ValueError(
            f"lr * weight_decay must be less than 1 with lazy='exact', got {float(config.rate):g} * "
            f"{config.weight_decay:g}: a step would decay a row to 0 or beyond"
        )
    return -math.log1p(-product)


def store_rows(param: Tensor, rows: Tensor, x: Tensor, config: Config, stream: int) -> None:
    """Write rows, rounded once where the parameter is narrower."""
    if x.dtype != param.dtype:
        narrow = torch.empty_like(x, dtype=param.dtype)
        store(narrow, x, config, stream)
        x = narrow
    param.index_copy_(0, rows, x)


def _scaled(x: Tensor, factor: Tensor) -> Tensor:
    """Rows, each times its factor."""
    return x * factor.to(x.real.dtype).view(-1, *(1,) * (x.dim() - 1))


def _power(beta: float, gap: Tensor, like: Tensor) -> Tensor:
    return torch.pow(beta, gap.clamp(min=0).to(torch.float64)).to(like.real.dtype)
