"""The paper's algorithms, one tensor at a time, line for line. Every other way to run them is tested against this."""

from __future__ import annotations

import torch
from torch import Tensor

from matrix_adagrad.optim.step.rule import Rule, read, store


def reference(
    params: list[Tensor],
    grads: list[Tensor],
    averages: list[Tensor],
    statistics: list[Tensor],
    steps: list[Tensor],
    rule: Rule,
) -> None:
    """One step for every parameter. ``averages`` (of gradients) is empty unless the rule has betas."""
    for i, (param, grad, statistic, step) in enumerate(zip(params, grads, statistics, steps, strict=True)):
        step += 1
        x, g = read(param), read(grad)
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
            statistic.lerp_(square, 1 - beta2)
            direction = read(averages[i].lerp_(g, 1 - beta1))

        correction1, correction2 = rule.corrections(step)
        s = (statistic / correction2).sqrt() + rule.eps  # s_{t,i} = √(Σ_k ‖G_{k,i,:}‖²) + δ
        scale = torch.where(s == 0, 0, rule.lr / correction1 / s)  # 0/0: a row that had no gradient stays where it is
        view = rule.geometry.view
        x = view(x) - scale * view(direction)  # argmin of η⟨G_t, X⟩ + B_{ψ_t}(X; X_t) over the whole space
        store(param, x.view(param.shape), stochastic_rounding=rule.stochastic_rounding)
