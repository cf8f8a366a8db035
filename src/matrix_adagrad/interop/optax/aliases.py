"""The optimizers: scalings with a learning rate, weight decay and a domain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import jax
import optax

from matrix_adagrad.domains import Domain
from matrix_adagrad.geometry import Geometry, Partition
from matrix_adagrad.interop.optax.descent import check, descent, make_rule
from matrix_adagrad.interop.optax.update_rule import UpdateRule
from matrix_adagrad.optim import MatrixAdaGrad, MatrixMomentum, SteepestDescent
from matrix_adagrad.optim.step.config import Reduction

__all__ = ["LearningRate", "matrix_adagrad", "matrix_momentum", "steepest_descent"]

LearningRate: TypeAlias = "float | jax.Array | Callable[[jax.Array], Any]"


def matrix_adagrad(
    learning_rate: LearningRate,
    geometry: Geometry | str = "row",
    *,
    reduction: Reduction = "sum",
    eps: float = 1e-10,
    weight_decay: float = 0.0,
    decoupled_weight_decay: bool = False,
    initial_accumulator_value: float = 0.0,
    domain: Domain | None = None,
) -> optax.GradientTransformation:
    r"""AdaGrad with one scale per block of a geometry: `matrix_adagrad.MatrixAdaGrad` for JAX.

    .. math::
        s_{t,b} = \sqrt{\textstyle\sum_{k \le t} \|G_{k,b}\|_2^2} + \epsilon, \qquad
        X_{t+1,b} = X_{t,b} - \eta\, G_{t,b} / s_{t,b} \qquad \text{for each block } b

    Where both the root and ε are 0, the step is 0.

    Args:
        learning_rate: the step size η: a number, or a schedule, which is called with the number of steps so far.
        geometry: which entries share one scale: ``"row"``, ``"column"``, ``"entry"``, ``"whole"``, or a `Geometry`.
            Vectors and scalars are scaled entry by entry unless it is ``"whole"``.
        reduction: ``"sum"`` adds up the squares over a block, as in the paper. ``"mean"`` averages them: steps are then
            the size of AdaGrad's, and AdaGrad's learning rate carries over.
        eps: the stabilizer, added to the root.
        weight_decay: the factor of an L2 penalty. Its gradient is added to the gradient, and so enters the statistic.
            With ``decoupled_weight_decay``, the factor of a decay ``x ← (1 - lr * weight_decay) x`` that the statistic
            never sees.
        decoupled_weight_decay: see ``weight_decay``.
        initial_accumulator_value: the initial value of ``state.sum``.
        domain: a set that the parameters stay in (`matrix_adagrad.domains`). Each step ends with a projection in the
            metric of that step. Parameters that start outside are not detected: the first step brings them inside, or
            you can with `project`.

    Returns:
        A gradient transformation whose state is a `MatrixAdaGradState`. With ``weight_decay`` or ``domain``, its
        ``update`` needs the parameters.

    Example:
        Rows of bounded length; the step asks for one of length 3:

        >>> import jax.numpy as jnp
        >>> import optax
        >>> from matrix_adagrad.domains import RowBalls
        >>> from matrix_adagrad.interop.optax import matrix_adagrad
        >>> table = jnp.array([[0.5, 0.5, 0.5, 0.5], [0.0, 0.0, 0.0, 0.0]])
        >>> optimizer = matrix_adagrad(2.0, domain=RowBalls(1.0))
        >>> state = optimizer.init(table)
        >>> updates, state = optimizer.update(jnp.array([[-2.0, -2.0, -2.0, -2.0], [0.0, 0.0, 0.0, 0.0]]), state, table)
        >>> print(optax.apply_updates(table, updates))
        [[0.5 0.5 0.5 0.5]
         [0.  0.  0.  0. ]]
    """
    rule = make_rule(
        MatrixAdaGrad,
        geometry,
        reduction=reduction,
        eps=eps,
        initial_accumulator_value=initial_accumulator_value,
        domain=domain,
    )
    return _optimizer(rule, learning_rate, weight_decay, decoupled_weight_decay)


def matrix_momentum(
    learning_rate: LearningRate,
    geometry: Geometry | str = "row",
    *,
    reduction: Reduction = "sum",
    betas: tuple[float, float] = (0.9, 0.999),
    bias_correction: bool = True,
    nesterov: bool = False,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    decoupled_weight_decay: bool = False,
    domain: Domain | None = None,
) -> optax.GradientTransformation:
    r"""Adam with one scale per block of a geometry: `matrix_adagrad.MatrixMomentum` for JAX.

    .. math::
        D_t &= \beta_1 D_{t-1} + (1 - \beta_1)\, G_t, \qquad
        V_{t,b} = \beta_2 V_{t-1,b} + (1 - \beta_2)\, \|G_{t,b}\|_2^2 \\
        X_{t+1,b} &= X_{t,b} - \eta\, \hat D_{t,b} / (\sqrt{\hat V_{t,b}} + \epsilon) \qquad \text{for each block } b

    with :math:`\hat D_t = D_t / (1 - \beta_1^t)` and :math:`\hat V_t = V_t / (1 - \beta_2^t)` if ``bias_correction``.
    In the entry geometry this is `optax.adam`, and with ``decoupled_weight_decay`` it is `optax.adamw`.

    Args:
        learning_rate: the step size η: a number, or a schedule, which is called with the number of steps so far.
        geometry: which entries share one scale, as in `matrix_adagrad`.
        reduction: ``"sum"`` adds up the squares over a block. ``"mean"`` averages them: steps are the size of Adam's.
        betas: the decay rates β₁ and β₂ of the running averages of the gradient and of its square.
        bias_correction: correct for the averages starting at zero.
        nesterov: move along Nesterov's direction, as `matrix_adagrad.MatrixMomentum` does. By entry: `optax.nadam`.
        eps: the stabilizer, added to the root.
        weight_decay: the factor of an L2 penalty, or of a decoupled decay, as in `matrix_adagrad`.
        decoupled_weight_decay: see ``weight_decay``.
        domain: a set that the parameters stay in, as in `matrix_adagrad`.

    Returns:
        A gradient transformation whose state is a `MatrixMomentumState`.

    Example:
        >>> import jax.numpy as jnp
        >>> import optax
        >>> from matrix_adagrad.interop.optax import matrix_momentum
        >>> schedule = optax.cosine_decay_schedule(0.1, decay_steps=100)
        >>> optimizer = matrix_momentum(schedule, "column", reduction="mean")
        >>> state = optimizer.init({"kernel": jnp.zeros((16, 4))})
        >>> state.exp_avg["kernel"].shape, state.exp_avg_sq["kernel"].shape
        ((16, 4), (1, 4))
    """
    rule = make_rule(
        MatrixMomentum,
        geometry,
        reduction=reduction,
        betas=betas,
        bias_correction=bias_correction,
        nesterov=nesterov,
        eps=eps,
        domain=domain,
    )
    return _optimizer(rule, learning_rate, weight_decay, decoupled_weight_decay)


def steepest_descent(
    learning_rate: LearningRate,
    geometry: Geometry | str = "row",
    *,
    momentum: float = 0.9,
    nesterov: bool = False,
    scale: Literal["rms"] | None = "rms",
    floor: float = 0.0,
    rescale: Partition | None = None,
    rescale_beta: float = 0.95,
    weight_decay: float = 0.0,
    decoupled_weight_decay: bool = False,
) -> optax.GradientTransformation:
    r"""Momentum, along the direction of steepest descent in a norm: `matrix_adagrad.SteepestDescent` for JAX.

    .. math::
        M_t = \beta M_{t-1} + (1 - \beta)\, G_t, \qquad
        X_{t+1} = X_t - \eta\, \kappa \operatorname*{argmax}_{\|D\| \le 1} \langle M_t, D \rangle

    By row, each row of the momentum is normalized. By entry, this is Signum. In the spectral norm, it is Muon.

    Args:
        learning_rate: the step size η: a number, or a schedule, which is called with the number of steps so far.
        geometry: whose norm it is: ``"row"``, ``"column"``, ``"entry"``, ``"whole"``, a `Partition`, or `Spectral()`.
            Vectors and scalars move by entry unless it is ``"whole"``. `Spectral` iterates in float32, unless its
            ``dtype`` says otherwise.
        momentum: the decay rate β of the average of gradients. Without momentum, no average is kept.
        nesterov: take the direction of :math:`\beta M_t + (1 - \beta)\, G_t`.
        scale: ``"rms"`` makes steps the size of AdamW's in every geometry: a root mean square of 0.2 η. ``None``
            takes the direction as it is, κ = 1.
        floor: divide a block by no less than this many times the root mean square of all blocks' lengths, so that a
            block whose gradient has vanished stops moving at full size.
        rescale: a partition. The direction is divided by the root of its running mean square over each block, and then
            rescaled to its original length. In the spectral norm with `Row()`, this is NorMuon.
        rescale_beta: the decay rate of those running averages.
        weight_decay: the factor of an L2 penalty, or of a decoupled decay, as in `matrix_adagrad`.
        decoupled_weight_decay: see ``weight_decay``.

    Returns:
        A gradient transformation whose state is a `SteepestDescentState`.

    Example:
        >>> import jax.numpy as jnp
        >>> from matrix_adagrad import Row, Spectral
        >>> from matrix_adagrad.interop.optax import steepest_descent
        >>> normuon = steepest_descent(0.02, Spectral(), nesterov=True, rescale=Row())
        >>> state = normuon.init(jnp.zeros((4, 16)))
        >>> state.momentum_buffer.shape, state.exp_avg_sq.shape
        ((4, 16), (4, 1))
    """
    rule = make_rule(
        SteepestDescent,
        geometry,
        momentum=momentum,
        nesterov=nesterov,
        scale=scale,
        floor=floor,
        rescale=rescale,
        rescale_beta=rescale_beta,
    )
    return _optimizer(rule, learning_rate, weight_decay, decoupled_weight_decay)


def _optimizer(
    rule: UpdateRule, learning_rate: LearningRate, weight_decay: float, decoupled_weight_decay: bool
) -> optax.GradientTransformation:
    check({"weight_decay": weight_decay, "decoupled_weight_decay": decoupled_weight_decay})
    if not callable(learning_rate):
        check({"learning_rate": learning_rate})
    return descent(rule, learning_rate, weight_decay, decoupled_weight_decay)
