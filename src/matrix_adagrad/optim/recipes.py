"""One optimizer for a whole model, with hardly any state for tables and heads."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from matrix_adagrad.geometry import Batched, Factored, Spectral
from matrix_adagrad.optim.choices import Choice, Rules, choose, grouped
from matrix_adagrad.optim.combined import CombinedOptimizer
from matrix_adagrad.optim.explain import explained_optimizer
from matrix_adagrad.optim.keywords import refuse_unknown
from matrix_adagrad.optim.kinds import HEAD, MATRIX, TABLE
from matrix_adagrad.optim.momentum import MatrixMomentum
from matrix_adagrad.optim.steepest import SteepestDescent
from matrix_adagrad.optim.step.config import RATE, check_values
from matrix_adagrad.text import show

__all__ = ["matrix_optimizer"]

_REST = 3.0  # the rate of everything but hidden matrices, as a multiple of lr: see docs/whole-model.md
_OWN_OPTIONS = ("lr", "tables_lr", "heads_lr", "vectors_lr", "momentum", "betas", "weight_decay", "rules", "explain")
_SHARED_OPTIONS = ("capturable", "differentiable", "maximize", "momentum_dtype", "stochastic_rounding")


def matrix_optimizer(
    model: nn.Module,
    *,
    lr: float | Tensor = 0.004,
    tables_lr: float | Tensor | None = None,
    heads_lr: float | Tensor | None = None,
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
        model: the model. It may be compiled or inside a data-parallel wrapper. Shard it before you make the optimizer.
        lr: the learning rate η of hidden matrices. Their steps have a root mean square of 0.2 η, like AdamW's.
        tables_lr: the learning rate η' of tables. Defaults to 3 times ``lr``.
        heads_lr: the learning rate η' of output heads. Defaults to ``tables_lr``, which a head tied to a table has.
        vectors_lr: the learning rate η'' of vectors, convolutions and everything else that moves as in Adam. Defaults
            to 3 times ``lr``. The factor and ``lr`` come from small models (docs/whole-model.md): tune them.
        momentum: the decay rate β of the hidden matrices' momentum.
        betas: the decay rates of the running averages of gradients and of squares, as in Adam. The first is not for
            tables and heads.
        weight_decay: decoupled weight decay, ``x ← (1 - lr * weight_decay) x``, with the learning rate of x. Vectors
            (biases, norm gains, single rows and columns) are not decayed.
        rules: as in `geometry_groups`. A geometry of your own choice replaces the one above: `Spectral()` means
            `SteepestDescent` with ``lr``, and all others `MatrixMomentum`, for tables and heads without an average.
        explain: print a table of every parameter with its optimizer, geometry, bytes of state, AdamW's bytes, and the
            reason. Layers that differ only in their number share a line. The state of a sharded model is that of all
            shards together.
        options: further options of both optimizers: ``capturable``, ``differentiable``, ``maximize``,
            ``momentum_dtype`` or ``stochastic_rounding``.

    Example:
        >>> from torch import nn
        >>> from matrix_adagrad import matrix_optimizer, state_bytes
        >>> model = nn.ModuleDict({"tokens": nn.Embedding(800, 16), "head": nn.Linear(16, 800, bias=False)})
        >>> model["mlp"] = nn.ModuleList([nn.Linear(16, 16) for _ in range(4)])
        >>> optimizer = matrix_optimizer(model, lr=0.01, explain=True)
        parameter             shape     optimizer             geometry      state    AdamW  reason
        tokens.weight         800 × 16  MatrixMomentum, β₁=0  Factored()  3.27 kB   102 kB  a table: each row is an item
        head.weight           800 × 16  MatrixMomentum, β₁=0  Factored()  3.27 kB   102 kB  an output head, by its name
        mlp.{0…3}.weight × 4  16 × 16   SteepestDescent       Spectral()  4.11 kB  8.21 kB  a hidden matrix
        mlp.{0…3}.bias × 4    16        MatrixMomentum        entry         528 B    528 B  a vector: it has no rows
        total                 26,688                                      11.2 kB   214 kB  5% of AdamW's state
        >>> [(group["name"], group["lr"]) for group in optimizer.param_groups]
        [('matrix', 0.01), ('table', 0.03), ('head', 0.03), ('vector', 0.03)]
        >>> optimizer.init_state()  # otherwise the first step makes it
        >>> state_bytes(optimizer)
        11184
    """
    refuse_unknown("matrix_optimizer", options, [*_OWN_OPTIONS, *_SHARED_OPTIONS])
    check_values({"lr": lr, "momentum": momentum, "betas": betas, "weight_decay": weight_decay})
    tables_lr = _REST * lr if tables_lr is None else tables_lr
    heads_lr = tables_lr if heads_lr is None else heads_lr
    vectors_lr = _REST * lr if vectors_lr is None else vectors_lr
    rates = {"tables_lr": tables_lr, "heads_lr": heads_lr, "vectors_lr": vectors_lr}
    check_values(rates, dict.fromkeys(rates, RATE))
    choices, idle = choose(model, rules)
    if not choices:
        raise ValueError("model has no parameters")
    without_average = {"betas": (0.0, betas[1])}
    own = {TABLE: {"lr": tables_lr, **without_average}, HEAD: {"lr": heads_lr, **without_average}}

    def combined(choices: Sequence[Choice]) -> CombinedOptimizer:
        hidden = grouped(filter(_is_spectral, choices), weight_decay)
        rest = grouped(itertools.filterfalse(_is_spectral, choices), weight_decay)
        rest = [{**group, **own.get(group["name"], {})} for group in rest]
        common: dict[str, Any] = {"decoupled_weight_decay": True, **options}
        parts: list[Optimizer] = []
        if hidden:
            parts.append(SteepestDescent(hidden, lr=lr, momentum=momentum, nesterov=True, scale="rms", **common))
        if rest:
            parts.append(MatrixMomentum(rest, lr=vectors_lr, betas=betas, reduction="mean", **common))
        return CombinedOptimizer(parts)

    choices = [_with_its_geometry(choice) for choice in choices]
    if explain:
        show(explained_optimizer(choices, idle, combined))
    return combined(choices)


def _with_its_geometry(choice: Choice) -> Choice:
    """The recipe's geometry for tables, heads and hidden matrices, unless a rule of the user's has chosen another."""
    if choice.ruled:
        return choice
    if choice.kind in (TABLE, HEAD):
        return choice._replace(geometry=Factored())
    is_matrix = choice.param.dim() == 2 or isinstance(choice.by_row, Batched)  # and not a convolution
    return choice._replace(geometry=Spectral()) if choice.kind == MATRIX and is_matrix else choice


def _is_spectral(choice: Choice) -> bool:
    return not choice.geometry.on(choice.param.shape).statistics
