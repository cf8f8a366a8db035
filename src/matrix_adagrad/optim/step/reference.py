"""The paper's algorithms, one tensor at a time, line for line. Every other way to run them is tested against this."""

from __future__ import annotations

import torch
from torch import Tensor

from matrix_adagrad.geometry import sum_squares
from matrix_adagrad.optim.step.rule import Batch, Parts, Rule, count, shared_dims, store, widen


def _read(batch: Batch, rule: Rule) -> list[Tensor]:
    """‖G_{t,i,:}‖² for each row i; the gradients join their running averages."""
    squares = []
    for i, statistic in enumerate(batch.statistics):
        g = _gradient(i, batch, rule)
        squares.append(sum_squares(g, shared_dims(g, statistic)))
        if rule.betas is not None:
            batch.averages[i].lerp_(g, 1 - rule.betas[0])
    return squares


def _accumulate(batch: Batch, squares: list[Tensor], rule: Rule) -> None:
    """V_t = V_{t-1} + ‖G_t‖², or the running average; and one more step."""
    for statistic, square, members in zip(batch.statistics, squares, batch.members, strict=True):
        if rule.betas is None:
            statistic += square / members
        else:
            statistic.mul_(rule.betas[1]).add_(square / members, alpha=1 - rule.betas[1])
    count(batch.steps)


def _move(batch: Batch, rule: Rule) -> None:
    """X_{t+1} = X_t - η G_t / s_t."""
    for i, param in enumerate(batch.params):
        x = _as_read(param, param)
        direction = _gradient(i, batch, rule) if rule.betas is None else _as_read(batch.averages[i], param)
        if rule.weight_decay != 0 and rule.decoupled_weight_decay:
            x = x * (1 - rule.lr * rule.weight_decay)
        correction1, correction2 = rule.corrections(batch.steps[i])
        s = root(batch.statistics[i] / correction2) + rule.eps  # s_{t,i} = √(Σ_k ‖G_{k,i,:}‖²) + δ
        scale = quotient(rule.lr / correction1, s)
        x = x - scale * direction  # argmin of η⟨G_t, X⟩ + B_{ψ_t}(X; X_t): see `confine`
        store(param, x, rule, batch.numbers[i])


reference = Parts(_read, _accumulate, _move)


def _gradient(i: int, batch: Batch, rule: Rule) -> Tensor:
    g, x = _as_read(batch.grads[i], batch.params[i]), batch.params[i]
    if rule.maximize:
        g = -g
    if rule.weight_decay != 0 and not rule.decoupled_weight_decay:  # the penalty's gradient is part of G_t
        g = g + rule.weight_decay * _as_read(x, x)
    return g


def _as_read(x: Tensor, param: Tensor) -> Tensor:
    """``x`` widened; a copy while autograd records, for which ``x`` must not be overwritten under its hands."""
    return widen(x, param).clone() if torch.is_grad_enabled() else widen(x, param)


def root(v: Tensor) -> Tensor:
    """√v, with the derivative 0 at 0: a row that had no gradient does not move."""
    zero = v == 0
    return torch.where(zero, 0, torch.where(zero, 1, v).sqrt())


def quotient(lr: float | Tensor, s: Tensor) -> Tensor:
    """The scale lr / s in the dtype of s, and 0 for 0/0; never infinite, so that no gradient gives no step."""
    zero = s == 0
    scale = (lr / torch.where(zero, 1, s)).to(s.dtype)
    return torch.where(zero, 0, scale.clamp(max=torch.finfo(s.dtype).max))
