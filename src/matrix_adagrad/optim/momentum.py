"""MatrixMomentum, RowMomentum and ColumnMomentum: running averages replace AdaGrad's sums."""

from __future__ import annotations

from typing import ClassVar

from torch.optim.optimizer import ParamsT

from matrix_adagrad.geometry import Column, Row
from matrix_adagrad.optim.base import MatrixOptimizer
from matrix_adagrad.optim.step.config import Config, MatrixMomentumConfig, MomentumConfig, takes

__all__ = ["ColumnMomentum", "MatrixMomentum", "RowMomentum"]


class MatrixMomentum(MatrixOptimizer):
    r"""The paper's momentum variant: Adam with one scale per block of a geometry.

    .. math::
        D_t &= \beta_1 D_{t-1} + (1 - \beta_1)\, G_t, \qquad
        V_{t,b} = \beta_2 V_{t-1,b} + (1 - \beta_2)\, \|G_{t,b}\|_2^2 \\
        X_{t+1,b} &= X_{t,b} - \eta\, \hat D_{t,b} / (\sqrt{\hat V_{t,b}} + \epsilon) \qquad \text{for each block } b

    with :math:`\hat D_t = D_t / (1 - \beta_1^t)` and :math:`\hat V_t = V_t / (1 - \beta_2^t)` if ``bias_correction``.
    In the entry geometry this is `torch.optim.Adam`, and with ``decoupled_weight_decay`` it is `torch.optim.AdamW`.

    Each parameter's state is ``state["exp_avg"]``, of the parameter's shape, ``state["exp_avg_sq"]``, one number per
    scale, and ``state["step"]``. Both averages are in float32 or wider, unless ``momentum_dtype`` is narrower.

    Args:
        params: as in `MatrixAdaGrad`. So are all arguments not listed here.
        lr: the step size η, a number or a tensor with one element.
        betas: the decay rates β₁ and β₂ of the running averages of the gradient and of its square.
        bias_correction: correct for the averages starting at zero.
        nesterov: move along :math:`\beta_1 \hat D_{t+1} + (1 - \beta_1)\, \hat G_t` instead of :math:`\hat D_t`, where
            :math:`\hat D_{t+1} = D_t / (1 - \beta_1^{t+1})` and :math:`\hat G_t = G_t / (1 - \beta_1^t)`. In the entry
            geometry this is Dozat's NAdam as implemented in optax (torch's varies :math:`\beta_1` from step to step).
        momentum_dtype: ``torch.bfloat16`` keeps the average of gradients in half the memory, rounded up or down at
            random, without bias.
        eps: the stabilizer, added to the root.

    Example:
        >>> import torch
        >>> from matrix_adagrad import MatrixMomentum
        >>> layer = torch.nn.Linear(16, 4)
        >>> optimizer = MatrixMomentum(layer.parameters(), lr=1e-3, geometry="row")
        >>> layer(torch.ones(1, 16)).sum().backward()
        >>> optimizer.step()
        >>> {name: tuple(value.shape) for name, value in optimizer.state[layer.weight].items()}
        {'step': (), 'exp_avg': (4, 16), 'exp_avg_sq': (4, 1)}
    """

    CONFIG: ClassVar[type[Config]] = MatrixMomentumConfig
    STATISTIC = "exp_avg_sq"
    AVERAGE = "exp_avg"

    @takes(MatrixMomentumConfig)
    def __init__(self, params: ParamsT, config: MatrixMomentumConfig) -> None:
        MatrixOptimizer.__init__(self, params, config)


class RowMomentum(MatrixMomentum):
    """`MatrixMomentum` with one scale per row: the paper's Row-wise Momentum.

    Takes the same arguments as `MatrixMomentum`, except ``geometry``.

    Example:
        >>> import torch
        >>> from matrix_adagrad import RowMomentum
        >>> weight = torch.nn.Parameter(torch.zeros(2, 2))
        >>> weight.grad = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
        >>> RowMomentum([weight], lr=1.0).step()
        >>> weight.data
        tensor([[-0.6000, -0.8000],
                [ 0.0000,  0.0000]])
    """

    CONFIG, GEOMETRY = MomentumConfig, Row()

    @takes(MomentumConfig)
    def __init__(self, params: ParamsT, config: MomentumConfig) -> None:
        MatrixOptimizer.__init__(self, params, config)


class ColumnMomentum(MatrixMomentum):
    """`MatrixMomentum` with one scale per column.

    Takes the same arguments as `MatrixMomentum`, except ``geometry``.

    Example:
        >>> import torch
        >>> from matrix_adagrad import ColumnMomentum
        >>> weight = torch.nn.Parameter(torch.zeros(2, 2))
        >>> weight.grad = torch.tensor([[3.0, 0.0], [4.0, 0.0]])
        >>> ColumnMomentum([weight], lr=1.0).step()
        >>> weight.data
        tensor([[-0.6000,  0.0000],
                [-0.8000,  0.0000]])
    """

    CONFIG, GEOMETRY = MomentumConfig, Column()

    @takes(MomentumConfig)
    def __init__(self, params: ParamsT, config: MomentumConfig) -> None:
        MatrixOptimizer.__init__(self, params, config)
