"""MatrixAdaGrad, RowAdaGrad and ColumnAdaGrad: the paper's Algorithms 1 and 2, in any geometry."""

from __future__ import annotations

from typing import Any, Unpack

from torch import Tensor
from torch.optim.optimizer import ParamsT

from matrix_adagrad.domains import Domain
from matrix_adagrad.geometry import Column, Geometry, Row
from matrix_adagrad.optim.base import MatrixOptimizer
from matrix_adagrad.optim.options import AdaGradOptions, Reduction, refuse_unknown_keywords

__all__ = ["ColumnAdaGrad", "MatrixAdaGrad", "RowAdaGrad"]


class MatrixAdaGrad(MatrixOptimizer):
    r"""AdaGrad with one scale for each block of a geometry: a row, a column, an entry, the whole.

    .. math::
        s_{t,b} = \sqrt{\textstyle\sum_{k \le t} \|G_{k,b}\|_2^2} + \epsilon, \qquad
        X_{t+1,b} = X_{t,b} - \eta\, G_{t,b} / s_{t,b} \qquad \text{for each block } b

    where both the root and ε are 0, the step is 0.

    The state of a parameter is ``state["sum"]``, one number a scale, in float32 or wider, and ``state["step"]``.

    Args:
        params: parameters, named parameters, or groups of either with options of their own.
        lr: the step size η, a number or a tensor with one element.
        geometry: which entries share one scale: ``"row"``, ``"column"``, ``"entry"``, ``"whole"``, or a `Geometry`.
            Vectors and scalars are scaled entry by entry unless it is ``"whole"``.
        reduction: ``"sum"`` of the squares over a block, as in the paper, or their ``"mean"``, with which the step has
            AdaGrad's size and AdaGrad's learning rate carries over. For blocks of n entries, ``"mean"`` with ``lr`` and
            ``eps`` is ``"sum"`` with ``lr * √n`` and ``eps * √n``.
        eps: the stabilizer (δ in the paper), added to the root.
        weight_decay: the factor of an L2 penalty, whose gradient is part of the gradient and so of the statistic; or,
            with ``decoupled_weight_decay``, of a decay ``x ← (1 - lr * weight_decay) x`` that the statistic never sees.
        decoupled_weight_decay: see ``weight_decay``.
        initial_accumulator_value: where ``state["sum"]`` starts.
        domain: a set that the parameters stay in (`matrix_adagrad.domains`): each step ends with the projection in the
            metric of that step. With sparse gradients only the touched rows are projected, if the set is separable by
            rows; else all of them.
        project_start: project parameters that start outside of their domain, instead of raising an error.
        stochastic_rounding: round bfloat16 parameters up or down at random, without bias, so that steps below half a
            unit in the last place are not lost. Wider parameters are not affected.
        maximize: climb instead of descending.
        foreach: run the step over lists of tensors; ``None`` does so where it can. The step has the same cost in full
            passes over memory, and fewer small operations.
        fused: run the step in native kernels, one call for all tensors of a group; ``None`` does so where they cover
            them: on a CPU, outside of ``torch.compile``.
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

    STATISTIC = "sum"

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-2,
        *,
        geometry: Geometry | str = "row",
        reduction: Reduction = "sum",
        eps: float = 1e-10,
        weight_decay: float = 0,
        decoupled_weight_decay: bool = False,
        initial_accumulator_value: float = 0,
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
            "eps": eps,
            "weight_decay": weight_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
            "initial_accumulator_value": initial_accumulator_value,
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

    def _start(self, group: dict[str, Any]) -> float:
        return float(group["initial_accumulator_value"])


class RowAdaGrad(MatrixAdaGrad):
    r"""Row-wise Matrix AdaGrad (Algorithm 1): one scale a row, O(m) state for an m×n matrix.

    .. math::
        s_{t,i} = \sqrt{\textstyle\sum_{k \le t} \|G_{k,i,:}\|_2^2} + \epsilon, \qquad
        X_{t+1,i,:} = X_{t,i,:} - \eta\, G_{t,i,:} / s_{t,i}

    The arguments are those of `MatrixAdaGrad`, without ``geometry``.

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

    FIXED = Row()

    def __init__(self, params: ParamsT, lr: float | Tensor = 1e-2, **options: Unpack[AdaGradOptions]) -> None:
        refuse_unknown_keywords(type(self).__name__, options, AdaGradOptions.__annotations__)
        super().__init__(params, lr, geometry=self.FIXED, **options)


class ColumnAdaGrad(MatrixAdaGrad):
    r"""Column-wise Matrix AdaGrad (Algorithm 2): one scale a column, O(n) state for an m×n matrix.

    .. math::
        s_{t,j} = \sqrt{\textstyle\sum_{k \le t} \|G_{k,:,j}\|_2^2} + \epsilon, \qquad
        X_{t+1,:,j} = X_{t,:,j} - \eta\, G_{t,:,j} / s_{t,j}

    The arguments are those of `MatrixAdaGrad`, without ``geometry``.

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

    FIXED = Column()

    def __init__(self, params: ParamsT, lr: float | Tensor = 1e-2, **options: Unpack[AdaGradOptions]) -> None:
        refuse_unknown_keywords(type(self).__name__, options, AdaGradOptions.__annotations__)
        super().__init__(params, lr, geometry=self.FIXED, **options)
