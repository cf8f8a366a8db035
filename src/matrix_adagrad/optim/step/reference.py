"""The paper's algorithms, one tensor at a time, line for line. Every other backend is tested against this one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from matrix_adagrad.geometry import Diagonal, Geometry
from matrix_adagrad.geometry.base import quotient
from matrix_adagrad.optim.step.backend import Measured, PartedBackend
from matrix_adagrad.optim.step.config import Config
from matrix_adagrad.optim.step.update import Update, count, direction_of, join_average, signed, store, widen

__all__ = ["Reference", "as_read", "gradient"]


class Reference(PartedBackend):
    """Supports any tensor and any geometry. Autograd may record it."""

    def read(self, updates: Sequence[Update], config: Config) -> list[Measured]:
        measured = []
        for update in updates:
            g = gradient(update, config)
            measured.append(update.measure(g))  # ‖G_{t,i,:}‖² for each row i
            if update.average is not None:
                join_average(update.average, g, config, update.stream)
        return measured

    def accumulate(self, updates: Sequence[Update], measured: Sequence[Measured], config: Config) -> None:
        for update, own in zip(updates, measured, strict=True):
            for v, square, divisor in zip(update.statistics, own, update.divisors, strict=False):  # derived ones follow
                if config.betas is None:
                    v += square / divisor  # V_t = V_{t-1} + ‖G_t‖²
                else:
                    v.mul_(config.betas[1]).add_(square / divisor, alpha=1 - config.betas[1])
        count([update.step for update in updates])

    def move(self, updates: Sequence[Update], config: Config) -> None:
        for update in updates:
            x = as_read(update.param, update.param)
            average = None if update.average is None else as_read(update.average, update.param)
            direction = direction_of(average, lambda: gradient(update, config), update.step, config)  # noqa: B023
            if config.decay is not None:
                x = x * config.decay
            correction1, correction2 = config.corrections(update.step)
            geometry = update.geometry
            lr, v = config.rate / correction1, self._corrected(update, geometry, correction2)
            if isinstance(geometry, Diagonal):  # s_{t,i} = √(Σ_k ‖G_{k,i,:}‖²) + δ
                s = geometry.scale(*v) + config.eps
                x = x - quotient(lr, s) * direction
                update.scale = None if config.domain is None else s  # for the projection
            else:  # argmin of η⟨G_t, X⟩ + B_{ψ_t}(X; X_t): over a domain, see `project`
                x = x - geometry.precondition(direction, lr, config.eps, *v)
            store(update.param, x, config, update.stream)

    def _corrected(self, update: Update, geometry: Geometry, correction: float | Tensor) -> list[Tensor]:
        """The statistics, corrected for bias, and what is derived from them every few steps."""
        measured = len(geometry.statistics)
        statistics, derived = [v / correction for v in update.statistics[:measured]], update.statistics[measured:]
        if derived:
            self.derive(geometry, statistics, derived, update.step)
        return [*statistics, *[as_read(kept, update.param) for kept in derived]]

    def derive(self, geometry: Geometry, statistics: list[Tensor], derived: tuple[Tensor, ...], step: Tensor) -> None:
        """Derive anew what is kept, if it is time."""
        is_due = (step - 1) % geometry.every == 0
        if torch.compiler.is_compiling():  # both branches go into the graph, which cannot read the count
            both = (lambda s, _: _fresh(geometry.derive(*s)), lambda _, kept: _fresh(kept))
            new = torch.cond(is_due, *both, (statistics, derived))
        else:
            new = geometry.derive(*statistics) if is_due else ()
        for kept, value in zip(derived, new, strict=False):
            kept.copy_(value)


def _fresh(tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Copies in the usual layout: the branches of `torch.cond` return tensors of their own, laid out alike."""
    return tuple([x.clone(memory_format=torch.contiguous_format) for x in tensors])


def gradient(update: Update, config: Config) -> Tensor:
    """G_t, with its sign and penalty."""
    g, x = signed(as_read(update.grad, update.param), config), update.param
    if config.l2 != 0:  # the penalty's gradient is part of G_t
        g = g + config.l2 * as_read(x, x)
    return g


def as_read(x: Tensor, param: Tensor) -> Tensor:
    """``x`` widened. While autograd records, this is a copy, because ``x`` must not be overwritten in place."""
    return widen(x, param).clone() if torch.is_grad_enabled() else widen(x, param)
