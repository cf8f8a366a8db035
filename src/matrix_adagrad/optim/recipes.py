"""One optimizer for a whole model, with hardly any state for tables and heads."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from matrix_adagrad.geometry import Batched, Factored, Spectral, Unscaled
from matrix_adagrad.optim.combined import CombinedOptimizer
from matrix_adagrad.optim.groups import WITHOUT_AVERAGE, Choice, Rules, choose, explained, grouped
from matrix_adagrad.optim.keywords import refuse_unknown
from matrix_adagrad.optim.kinds import HEAD, MATRIX, TABLE
from matrix_adagrad.optim.momentum import MatrixMomentum
from matrix_adagrad.optim.steepest import SteepestDescent
from matrix_adagrad.optim.step.config import RATE, check_values
from matrix_adagrad.optim.step.update import local
from matrix_adagrad.text import show
from matrix_adagrad.torch_private import tree_leaves

__all__ = ["matrix_optimizer", "state_bytes"]

_REST = 5.0  # the rate of everything but hidden matrices, as a multiple of lr: it did well in benchmarks/muon.py
_OWN_OPTIONS = ("lr", "tables_lr", "vectors_lr", "momentum", "betas", "weight_decay", "rules", "explain")
_SHARED_OPTIONS = ("capturable", "differentiable", "maximize", "stochastic_rounding")


def matrix_optimizer(
    model: nn.Module,
    *,
    lr: float | Tensor = 0.006,
    tables_lr: float | Tensor | None = None,
    vectors_lr: float | Tensor | None = None,
    momentum: float = 0.95,
    betas: tuple[float, float] = (0.9, 0.999),
    weight_decay: float = 0.0,
    rules: Rules = "balanced",
    explain: bool = False,
    **options: Any,
) -> CombinedOptimizer:
    r"""One optimizer for a whole model: each parameter moves in the geometry that suits its kind of layer.

    With momentum :math:`M_t`, running averages of squares :math:`r_i` of row i, :math:`c_j` of column j and w of the
    whole matrix, and Adam's averages :math:`D_t` and :math:`V_t`, all corrected for their start at zero:

    .. math::
        \text{hidden matrices:} &\quad X_{t+1} = X_t - 0.2\, \eta \sqrt{\max(m, n)}\; U V^\top
            \quad\text{for } \beta M_t + (1 - \beta)\, G_t = U \Sigma V^\top \\
        \text{tables and heads:} &\quad X_{t+1,ij} = X_{t,ij} - \eta'\, G_{t,ij} / (\sqrt{r_i c_j / w} + \epsilon) \\
        \text{vectors:} &\quad x_{t+1} = x_t - \eta''\, D_t / (\sqrt{V_t} + \epsilon)

    - Hidden matrices, and each matrix of a batch such as experts (E, m, n), use `SteepestDescent` in the `Spectral`
      geometry with Nesterov momentum, which is Muon: m·n numbers for an m×n matrix.
    - Tables and heads use `MatrixMomentum` in the `Factored` geometry and keep no average of gradients: m + n + 1
      numbers. Momentum would keep moving rows that get no gradient.
    - Vectors use `MatrixMomentum` by entry, which is Adam: two numbers per entry. So do convolutions, by channel with
      ``rules="lean"``.

    `geometry_groups` decides which parameter is which.

    Args:
        model: the model. It may be compiled or inside a data-parallel wrapper.
        lr: the learning rate η of hidden matrices. Their steps have a root mean square of 0.2 η, like AdamW's.
        tables_lr: the learning rate η' of tables and heads. Defaults to 5 times ``lr``.
        vectors_lr: the learning rate η'' of vectors, convolutions and everything else that moves as in Adam. Defaults
            to 5 times ``lr``. The factor and ``lr`` come from one small model (docs/muon.md): tune them.
        momentum: the decay rate β of the hidden matrices' momentum.
        betas: the decay rates of the running averages of gradients and of squares, as in Adam. The first is not for
            tables and heads.
        weight_decay: decoupled weight decay, ``x ← (1 - lr * weight_decay) x``, with the learning rate of x. Vectors
            (biases, norm gains, single rows and columns) are not decayed.
        rules: as in `geometry_groups`. A geometry of your own choice replaces the one above: `Spectral()` means
            `SteepestDescent`, and all others `MatrixMomentum`, for tables and heads without an average.
        explain: print a table of every parameter with its optimizer, geometry, number of scales, and the reason. Also
            print the size of the state for all trained parameters, next to AdamW's.
        options: further options of both optimizers: ``capturable``, ``differentiable``, ``maximize`` or
            ``stochastic_rounding``.

    Example:
        >>> from torch import nn
        >>> from matrix_adagrad import matrix_optimizer
        >>> model = nn.Sequential(nn.Embedding(1000, 16), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1000))
        >>> optimizer = matrix_optimizer(model, lr=0.01)
        >>> [(group["name"], round(group["lr"], 3)) for group in optimizer.param_groups]
        [('matrix', 0.01), ('table', 0.05), ('head', 0.05), ('vector', 0.05)]
        >>> optimizer.init_state()
        >>> sum(value.numel() for value in optimizer.state[model[0].weight].values())  # rows, columns, whole, and step
        1018
    """
    refuse_unknown("matrix_optimizer", options, [*_OWN_OPTIONS, *_SHARED_OPTIONS])
    check_values({"lr": lr, "momentum": momentum, "betas": betas, "weight_decay": weight_decay})
    rates = {
        "tables_lr": _REST * lr if tables_lr is None else tables_lr,
        "vectors_lr": _REST * lr if vectors_lr is None else vectors_lr,
    }
    check_values(rates, dict.fromkeys(rates, RATE))
    choices, idle = choose(model, rules)
    if not choices:
        raise ValueError("model has no parameters")
    choices = [_with_its_geometry(choice) for choice in choices]
    if explain:
        show(explained(choices, idle, {choice.name: _optimizer_of(choice) for choice in choices}))
    hidden, tables, vectors = (
        grouped([choice for choice in choices if _optimizer_of(choice) == name], weight_decay)
        for name in (SteepestDescent.__name__, WITHOUT_AVERAGE, MatrixMomentum.__name__)
    )
    common: dict[str, Any] = {"decoupled_weight_decay": True, **options}
    adam = {"reduction": "mean", **common}
    parts: list[Optimizer] = []
    if hidden:
        parts.append(SteepestDescent(hidden, lr=lr, momentum=momentum, nesterov=True, scale="rms", **common))
    if tables:
        parts.append(MatrixMomentum(tables, lr=rates["tables_lr"], betas=(0.0, betas[1]), **adam))
    if vectors:
        parts.append(MatrixMomentum(vectors, lr=rates["vectors_lr"], betas=betas, **adam))
    return CombinedOptimizer(parts)


def _with_its_geometry(choice: Choice) -> Choice:
    """The recipe's geometry for tables, heads and hidden matrices, unless a rule of the user's has chosen another."""
    if choice.ruled:
        return choice
    if choice.kind in (TABLE, HEAD):
        return choice._replace(geometry=Factored())
    is_matrix = choice.param.dim() == 2 or isinstance(choice.by_row, Batched)  # and not a convolution
    return choice._replace(geometry=Spectral()) if choice.kind == MATRIX and is_matrix else choice


def _optimizer_of(choice: Choice) -> str:
    if isinstance(choice.geometry.on(choice.param.shape), Unscaled):
        return SteepestDescent.__name__
    return WITHOUT_AVERAGE if choice.kind in (TABLE, HEAD) else MatrixMomentum.__name__


def state_bytes(optimizer: Optimizer) -> int:
    """The bytes of all tensors in an optimizer's state, also in nested lists and dicts.

    Step counters count too, 4 bytes per parameter. Of a sharded tensor, the shard of this process counts.

    Example:
        >>> import torch
        >>> from matrix_adagrad import RowAdaGrad, state_bytes
        >>> table = torch.nn.Embedding(1000, 16)
        >>> for cls in (torch.optim.AdamW, RowAdaGrad):
        ...     optimizer = cls(table.parameters())
        ...     table(torch.tensor([3])).sum().backward()
        ...     optimizer.step()
        ...     print(state_bytes(optimizer))
        128004
        4004
    """
    leaves = tree_leaves([optimizer.state[param] for param in optimizer.state])
    return sum(local(value).nbytes for value in leaves if isinstance(value, Tensor))
