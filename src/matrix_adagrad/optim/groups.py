"""Parameter groups, with a geometry for each kind of layer."""

from __future__ import annotations

from typing import Any

from torch import nn

from matrix_adagrad.optim.choices import Rules, choose, grouped
from matrix_adagrad.optim.explain import explained_groups
from matrix_adagrad.optim.step.config import check_values
from matrix_adagrad.text import show

__all__ = ["geometry_groups"]


def geometry_groups(
    model: nn.Module, rules: Rules = "balanced", *, weight_decay: float | None = None, explain: bool = False
) -> list[dict[str, Any]]:
    """Split a model into named parameter groups, each with the geometry that suits its kind of layer.

    Args:
        model: the model. It may be compiled or inside a data-parallel wrapper. A parameter held in several places (tied
            weights) is listed once.
        rules: the name of a rule set, one geometry for all parameters, or your own rules.

            - ``"balanced"``: tables (`nn.Embedding`, `nn.EmbeddingBag`) and output heads by row, since their rows are
              tokens, items or classes. Hidden matrices and vectors by entry.
            - ``"lean"``: every matrix by row, for the least state. Vectors by entry.
            - A geometry, such as ``Row()``, or its name: use it for all parameters.
            - A mapping. Each key is a pattern for parameter names (``"*.qkv.weight"``) or a module type
              (``nn.Conv2d``, including everything inside it). Each value is a geometry, or the name of a rule set that
              decides instead. The first match wins. ``"balanced"`` handles whatever no key matches. A rule that matches
              nothing is an error.

            In both rule sets, a tensor with three or more dimensions is a batch of matrices, such as experts. There,
            "by row" means `Batched`: one scale per row of each matrix. A convolution has one row per channel. Single
            rows and columns count as vectors. So do stacked biases, ``(experts, h)`` next to ``(experts, h, d)``.
        weight_decay: weight decay for everything except vectors, which get 0. By default the groups set none, and the
            optimizer's value applies to all.
        explain: print a table of every parameter with its shape, geometry, number of scales, and the reason. Layers
            that differ only in their number share a line. Also print the state that optimizers would keep.

    Returns:
        Groups to pass to an optimizer, each ``{"name": kind, "geometry": ..., "params": [(name, parameter), ...]}``.
        The kind is ``"table"``, ``"head"``, ``"matrix"`` or ``"vector"``. Groups have ``"weight_decay"`` if you set it.

    Example:
        >>> from torch import nn
        >>> from matrix_adagrad import MatrixAdaGrad, geometry_groups
        >>> model = nn.Sequential(nn.Embedding(1000, 16), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 10))
        >>> optimizer = MatrixAdaGrad(geometry_groups(model, explain=True))
        parameter  shape      geometry  scales  reason
        0.weight   1000 × 16  row        1,000  a table: each row is an item
        1.weight   16 × 16    entry        256  a hidden matrix
        1.bias     16         entry         16  a vector: it has no rows
        3.weight   10 × 16    row           10  the last linear layer, taken for the output head
        3.bias     10         entry         10  a vector: it has no rows
        total      16,442                1,292
        state: MatrixAdaGrad 5.19 kB or MatrixMomentum 71 kB; AdamW 132 kB
    """
    if weight_decay is not None:
        check_values({"weight_decay": weight_decay})
    choices, idle = choose(model, rules)
    if explain:
        show(explained_groups(choices, idle))
    return grouped(choices, weight_decay)
