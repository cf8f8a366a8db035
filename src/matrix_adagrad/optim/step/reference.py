"""The paper's algorithms, one tensor at a time, line for line. Every other way to run them is tested against this."""

from __future__ import annotations

import torch
from torch import Tensor

from matrix_adagrad.optim.step.rule import Batch, Rule, store, widen


def reference(batch: Batch, rule: Rule) -> None:
    """One step for every parameter."""
    view = rule.geometry.view
    for i, (param, grad) in enumerate(zip(batch.params, batch.grads, strict=True)):
        statistic, step = batch.statistics[i], batch.steps[i]
        step += 1
        x, g = _read(param, param), _read(grad, param)
        if rule.maximize:
            g = -g
        if rule.weight_decay != 0 and rule.decoupled_weight_decay:
            x = x * (1 - rule.lr * rule.weight_decay)
        elif rule.weight_decay != 0:  # L2: the penalty's gradient is part of G_t, and so of the statistic
            g = g + rule.weight_decay * x

        square = rule.geometry.statistic(g) / rule.members(param)  # ‖G_{t,i,:}‖² for each row i
        if rule.betas is None:
            statistic += square
            direction = g
        else:
            beta1, beta2 = rule.betas
            statistic.mul_(beta2).add_(square, alpha=1 - beta2)
            direction = _read(batch.averages[i].lerp_(g, 1 - beta1), param)

        correction1, correction2 = rule.corrections(step)
        s = root(statistic / correction2) + rule.eps  # s_{t,i} = √(Σ_k ‖G_{k,i,:}‖²) + δ
        scale = quotient(rule.lr / correction1, s)
        x = view(x) - scale * view(direction)  # argmin of η⟨G_t, X⟩ + B_{ψ_t}(X; X_t): see `confine`
        store(param, x.view(param.shape), stochastic_rounding=rule.stochastic_rounding)


def _read(x: Tensor, param: Tensor) -> Tensor:
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
