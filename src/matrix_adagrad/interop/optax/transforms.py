"""The scalings for `optax.chain`: they divide gradients by their scales, or take the direction of steepest descent."""

from __future__ import annotations

from typing import Literal

import optax

from matrix_adagrad.geometry import Geometry, Partition
from matrix_adagrad.interop.optax.descent import make_rule, scaling
from matrix_adagrad.optim import MatrixAdaGrad, MatrixMomentum, SteepestDescent
from matrix_adagrad.optim.step.config import Reduction

__all__ = ["scale_by_matrix_adagrad", "scale_by_matrix_momentum", "scale_by_steepest_descent"]


def scale_by_matrix_adagrad(
    geometry: Geometry | str = "row",
    *,
    reduction: Reduction = "sum",
    eps: float = 1e-10,
    initial_accumulator_value: float = 0.0,
) -> optax.GradientTransformation:
    r"""Divide gradients by one scale per block of a geometry: the root of the sum of all squares so far.

    .. math::
        U_{t,b} = G_{t,b} / s_{t,b}, \qquad s_{t,b} = \sqrt{\textstyle\sum_{k \le t} \|G_{k,b}\|_2^2} + \epsilon

    and 0 where both the root and ε are 0.

    Args:
        geometry: which entries share one scale: ``"row"``, ``"column"``, ``"entry"``, ``"whole"``, or a `Geometry`.
        reduction: the ``"sum"`` of the squares over a block, or their ``"mean"``.
        eps: the stabilizer, added to the root.
        initial_accumulator_value: the initial value of ``state.sum``.

    Returns:
        A gradient transformation whose state is a `MatrixAdaGradState`.

    Example:
        >>> import jax.numpy as jnp
        >>> import optax
        >>> from matrix_adagrad.interop.optax import scale_by_matrix_adagrad
        >>> optimizer = optax.chain(
        ...     optax.clip_by_global_norm(5.0), scale_by_matrix_adagrad("column"), optax.scale_by_learning_rate(1.0)
        ... )
        >>> state = optimizer.init(jnp.zeros((4, 2)))
        >>> updates, state = optimizer.update(jnp.array([[2.0, 1.0], [2.0, 0.0], [2.0, 0.0], [2.0, 0.0]]), state)
        >>> print(updates.T)
        [[-0.5 -0.5 -0.5 -0.5]
         [-1.   0.   0.   0. ]]
    """
    rule = make_rule(
        MatrixAdaGrad, geometry, reduction=reduction, eps=eps, initial_accumulator_value=initial_accumulator_value
    )
    return scaling(rule)


def scale_by_matrix_momentum(
    geometry: Geometry | str = "row",
    *,
    reduction: Reduction = "sum",
    betas: tuple[float, float] = (0.9, 0.999),
    bias_correction: bool = True,
    nesterov: bool = False,
    eps: float = 1e-8,
) -> optax.GradientTransformation:
    r"""Divide the running average of gradients by one scale per block: the root of the running average of squares.

    .. math::
        D_t &= \beta_1 D_{t-1} + (1 - \beta_1)\, G_t, \qquad
        V_{t,b} = \beta_2 V_{t-1,b} + (1 - \beta_2)\, \|G_{t,b}\|_2^2 \\
        U_{t,b} &= \hat D_{t,b} / (\sqrt{\hat V_{t,b}} + \epsilon)

    with :math:`\hat D_t = D_t / (1 - \beta_1^t)` and :math:`\hat V_t = V_t / (1 - \beta_2^t)` if ``bias_correction``.
    In the entry geometry this is `optax.scale_by_adam`.

    Args:
        geometry: as in `scale_by_matrix_adagrad`.
        reduction: as in `scale_by_matrix_adagrad`.
        betas: the decay rates β₁ and β₂ of the running averages of the gradient and of its square.
        bias_correction: correct for the averages starting at zero.
        nesterov: take Nesterov's direction, as in `matrix_adagrad.MatrixMomentum`. By entry, this is optax's NAdam.
        eps: the stabilizer, added to the root.

    Returns:
        A gradient transformation whose state is a `MatrixMomentumState`.

    Example:
        >>> import jax.numpy as jnp
        >>> from matrix_adagrad.interop.optax import scale_by_matrix_momentum
        >>> scaling = scale_by_matrix_momentum("row")
        >>> state = scaling.init(jnp.zeros((4, 16)))
        >>> state.exp_avg.shape, state.exp_avg_sq.shape
        ((4, 16), (4, 1))
    """
    rule = make_rule(
        MatrixMomentum,
        geometry,
        reduction=reduction,
        betas=betas,
        bias_correction=bias_correction,
        nesterov=nesterov,
        eps=eps,
    )
    return scaling(rule)


def scale_by_steepest_descent(
    geometry: Geometry | str = "row",
    *,
    momentum: float = 0.9,
    nesterov: bool = False,
    scale: Literal["rms"] | None = "rms",
    floor: float = 0.0,
    rescale: Partition | None = None,
    rescale_beta: float = 0.95,
) -> optax.GradientTransformation:
    r"""Replace gradients by the direction of steepest descent of their running average, in a geometry's norm.

    .. math::
        M_t = \beta M_{t-1} + (1 - \beta)\, G_t, \qquad
        U_t = \kappa \operatorname*{argmax}_{\|D\| \le 1} \langle M_t, D \rangle

    Args:
        geometry: whose norm it is: ``"row"``, ``"column"``, ``"entry"``, ``"whole"``, a `Partition`, or `Spectral()`.
        momentum: the decay rate β. Without momentum, no average is kept.
        nesterov: take the direction of :math:`\beta M_t + (1 - \beta)\, G_t`.
        scale: ``"rms"`` makes updates the size of AdamW's in every geometry: a root mean square of 0.2. ``None``
            takes the direction as it is, κ = 1.
        floor: divide a block by no less than this many times the root mean square of all blocks' lengths.
        rescale: a partition. The direction is divided by the root of its running mean square over each block, and then
            rescaled to its original length.
        rescale_beta: the decay rate of those running averages.

    Returns:
        A gradient transformation whose state is a `SteepestDescentState`.

    Example:
        Muon, with gradients that are clipped first:

        >>> import jax.numpy as jnp
        >>> import optax
        >>> from matrix_adagrad import Spectral
        >>> from matrix_adagrad.interop.optax import scale_by_steepest_descent
        >>> optimizer = optax.chain(
        ...     optax.clip_by_global_norm(1.0),
        ...     scale_by_steepest_descent(Spectral(steps=None), scale=None),
        ...     optax.scale_by_learning_rate(1.0),
        ... )
        >>> state = optimizer.init(jnp.zeros((2, 2)))
        >>> updates, state = optimizer.update(jnp.array([[3.0, 0.0], [0.0, 4.0]]), state)
        >>> print(updates.round(5) + 0.0)
        [[-1.  0.]
         [ 0. -1.]]
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
    return scaling(rule)
