"""MatrixAdaGrad, RowAdaGrad and ColumnAdaGrad: the paper's Algorithms 1 and 2, in any geometry."""

from __future__ import annotations

from typing import ClassVar

from torch.optim.optimizer import ParamsT

from matrix_adagrad.geometry import Column, Row
from matrix_adagrad.optim.base import MatrixOptimizer
from matrix_adagrad.optim.step.config import AdaGradConfig, Config, MatrixAdaGradConfig, takes

__all__ = ["ColumnAdaGrad", "MatrixAdaGrad", "RowAdaGrad"]


class MatrixAdaGrad(MatrixOptimizer):
    r"""AdaGrad with one scale per block of a geometry: per row, per column, per entry, or for the whole tensor.

    .. math::
        s_{t,b} = \sqrt{\textstyle\sum_{k \le t} \|G_{k,b}\|_2^2} + \epsilon, \qquad
        X_{t+1,b} = X_{t,b} - \eta\, G_{t,b} / s_{t,b} \qquad \text{for each block } b

    Where both the root and ε are 0, the step is 0.

    Each parameter's state is ``state["sum"]``, one number per scale in float32 or wider, and ``state["step"]``.

    Args:
        params: parameters, named parameters, or groups of either with per-group options.
        lr: the step size η, a number or a tensor with one element.
        geometry: which entries share one scale: ``"row"``, ``"column"``, ``"entry"``, ``"whole"``, or a `Geometry`.
            Vectors and scalars are scaled entry by entry unless it is ``"whole"``.
        reduction: ``"sum"`` adds up the squares over a block, as in the paper. ``"mean"`` averages them: steps are then
            the size of AdaGrad's, and AdaGrad's learning rate carries over. For blocks of n entries, ``"mean"`` with
            ``lr`` and ``eps`` equals ``"sum"`` with ``lr * √n`` and ``eps * √n``.
        eps: the stabilizer (δ in the paper), added to the root.
        weight_decay: the factor of an L2 penalty. Its gradient is added to the gradient, and so enters the statistic.
            With ``decoupled_weight_decay``, the factor of a decay ``x ← (1 - lr * weight_decay) x`` that the statistic
            never sees.
        decoupled_weight_decay: see ``weight_decay``.
        lazy: what becomes of rows that a sparse gradient does not touch. With ``"touched"``, weight decay and running
            averages act only on the rows in the batch. With ``"exact"``, counters of 4 bytes per row let the others
            catch up before they are used, as in dense training (`keep_rows_current`,
            `MatrixAdaGrad.catch_up`).
        initial_accumulator_value: the initial value of ``state["sum"]``.
        domain: a set that the parameters stay in (`matrix_adagrad.domains`). Each step ends with a projection in the
            metric of that step. With sparse gradients, only the touched rows are projected if the set is separable by
            rows; otherwise all rows are.
        project_start: project parameters that start outside their domain instead of raising an error.
        stochastic_rounding: round bfloat16 and float16 parameters up or down at random, without bias, so that steps
            below half a unit in the last place are not lost. Wider dtypes are unaffected.
        maximize: maximize the objective instead of minimizing it.
        foreach: run the step over lists of tensors, which takes fewer small operations but as many passes over memory.
            ``None`` does so where possible.
        fused: run the step in native kernels, one call for all tensors of a group. ``None`` does so where the kernels
            apply: on a CPU, outside ``torch.compile``.
        capturable: keep ``state["step"]`` on the parameter's device and never read a value back from it.
        differentiable: let autograd record the step.

    Example:
        >>> import torch
        >>> from matrix_adagrad import MatrixAdaGrad
        >>> table = torch.nn.Embedding(1000, 16)
        >>> optimizer = MatrixAdaGrad(table.parameters(), lr=0.1, geometry="row")
        >>> table(torch.tensor([3, 5])).square().sum().backward()
        >>> optimizer.step()
        >>> optimizer.state[table.weight]["sum"].shape
        torch.Size([1000, 1])
    """

    CONFIG: ClassVar[type[Config]] = MatrixAdaGradConfig
    STATISTIC = "sum"

    @takes(MatrixAdaGradConfig)
    def __init__(self, params: ParamsT, config: MatrixAdaGradConfig) -> None:
        MatrixOptimizer.__init__(self, params, config)


class RowAdaGrad(MatrixAdaGrad):
    r"""Row-wise Matrix AdaGrad (Algorithm 1): one scale per row, O(m) state for an m×n matrix.

    .. math::
        s_{t,i} = \sqrt{\textstyle\sum_{k \le t} \|G_{k,i,:}\|_2^2} + \epsilon, \qquad
        X_{t+1,i,:} = X_{t,i,:} - \eta\, G_{t,i,:} / s_{t,i}

    Takes the same arguments as `MatrixAdaGrad`, except ``geometry``.

    Example:
        >>> import torch
        >>> from matrix_adagrad import RowAdaGrad
        >>> weight = torch.nn.Parameter(torch.zeros(2, 2))
        >>> weight.grad = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
        >>> RowAdaGrad([weight], lr=1.0).step()
        >>> weight.data
        tensor([[-0.6000, -0.8000],
                [ 0.0000,  0.0000]])
    """

    CONFIG, GEOMETRY = AdaGradConfig, Row()

    @takes(AdaGradConfig)
    def __init__(self, params: ParamsT, config: AdaGradConfig) -> None:
        MatrixOptimizer.__init__(self, params, config)


class ColumnAdaGrad(MatrixAdaGrad):
    r"""Column-wise Matrix AdaGrad (Algorithm 2): one scale per column, O(n) state for an m×n matrix.

    .. math::
        s_{t,j} = \sqrt{\textstyle\sum_{k \le t} \|G_{k,:,j}\|_2^2} + \epsilon, \qquad
        X_{t+1,:,j} = X_{t,:,j} - \eta\, G_{t,:,j} / s_{t,j}

    Takes the same arguments as `MatrixAdaGrad`, except ``geometry``.

    Example:
        >>> import torch
        >>> from matrix_adagrad import ColumnAdaGrad
        >>> weight = torch.nn.Parameter(torch.zeros(2, 2))
        >>> weight.grad = torch.tensor([[3.0, 0.0], [4.0, 0.0]])
        >>> ColumnAdaGrad([weight], lr=1.0).step()
        >>> weight.data
        tensor([[-0.6000,  0.0000],
                [-0.8000,  0.0000]])
    """

    CONFIG, GEOMETRY = AdaGradConfig, Column()

    @takes(AdaGradConfig)
    def __init__(self, params: ParamsT, config: AdaGradConfig) -> None:
        MatrixOptimizer.__init__(self, params, config)
