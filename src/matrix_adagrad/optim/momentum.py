"""MatrixMomentum, RowMomentum and ColumnMomentum: running averages replace AdaGrad's sums."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor
from torch.optim.optimizer import ParamsT

from matrix_adagrad.domains import Domain
from matrix_adagrad.geometry import Column, Geometry, Row
from matrix_adagrad.optim.base import MatrixOptimizer
from matrix_adagrad.optim.options import MomentumOptions, Reduction, refuse_unknown_keywords

__all__ = ["ColumnMomentum", "MatrixMomentum", "RowMomentum"]


class MatrixMomentum(MatrixOptimizer):
    r"""The paper's momentum variant: Adam with one scale for each block of a geometry.

    .. math::
        D_t &= \beta_1 D_{t-1} + (1 - \beta_1)\, G_t, \qquad
        V_{t,b} = \beta_2 V_{t-1,b} + (1 - \beta_2)\, \|G_{t,b}\|_2^2 \\
        X_{t+1,b} &= X_{t,b} - \eta\, \hat D_{t,b} / (\sqrt{\hat V_{t,b}} + \epsilon) \qquad \text{for each block } b

    with :math:`\hat D_t = D_t / (1 - \beta_1^t)` and :math:`\hat V_t = V_t / (1 - \beta_2^t)` if ``bias_correction``.
    In the entry geometry this is `torch.optim.Adam`, and with ``decoupled_weight_decay`` it is `torch.optim.AdamW`.

    The state of a parameter is ``state["exp_avg"]``, of the parameter's size, ``state["exp_avg_sq"]``, one number a
    scale, both in float32 or wider, and ``state["step"]``.

    Args:
        params: as in `MatrixAdaGrad`, and so are all arguments that are not listed here.
        lr: the step size η, a number or a tensor with one element.
        betas: the factors β₁ and β₂ of the running averages of the gradient and of its squares.
        bias_correction: undo the averages' start from zero.
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

    STATISTIC = "exp_avg_sq"
    AVERAGE = "exp_avg"

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-2,
        *,
        geometry: Geometry | str = "row",
        reduction: Reduction = "sum",
        betas: tuple[float, float] = (0.9, 0.999),
        bias_correction: bool = True,
        eps: float = 1e-8,
        weight_decay: float = 0,
        decoupled_weight_decay: bool = False,
        domain: Domain | None = None,
        project_start: bool = False,
        stochastic_rounding: bool = False,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "geometry": geometry,
            "reduction": reduction,
            "betas": betas,
            "bias_correction": bias_correction,
            "eps": eps,
            "weight_decay": weight_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
            "domain": domain,
            "project_start": project_start,
            "stochastic_rounding": stochastic_rounding,
            "maximize": maximize,
            "foreach": foreach,
            "fused": fused,
            "capturable": capturable,
            "differentiable": differentiable,
        }
        super().__init__(params, defaults)


class RowMomentum(MatrixMomentum):
    """`MatrixMomentum` with one scale a row, the paper's Row-wise Momentum. Its arguments, without ``geometry``.

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

    FIXED = Row()

    def __init__(self, params: ParamsT, lr: float | Tensor = 1e-2, **options: Unpack[MomentumOptions]) -> None:
        refuse_unknown_keywords(type(self).__name__, options, MomentumOptions.__annotations__)
        super().__init__(params, lr, geometry=self.FIXED, **options)


class ColumnMomentum(MatrixMomentum):
    """`MatrixMomentum` with one scale a column. Its arguments, without ``geometry``.

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

    FIXED = Column()

    def __init__(self, params: ParamsT, lr: float | Tensor = 1e-2, **options: Unpack[MomentumOptions]) -> None:
        refuse_unknown_keywords(type(self).__name__, options, MomentumOptions.__annotations__)
        super().__init__(params, lr, geometry=self.FIXED, **options)
