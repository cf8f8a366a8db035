"""The update rule's settings, and the arithmetic that every way of running it shares."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from matrix_adagrad.geometry import Geometry, wide_dtype


class Batch(NamedTuple):
    """Parameters that take a step together, their gradients and their state.

    Statistics broadcast against parameters: where one has size 1, entries share a scale. So a dense step need not know
    the geometry, nor whether a parameter is whole or a part of one.
    """

    params: list[Tensor]
    grads: list[Tensor]
    averages: list[Tensor]  # of gradients; none unless the rule has betas
    statistics: list[Tensor]
    steps: list[Tensor]
    members: list[int]  # what the sum of squares over a block is divided by
    lone: list[bool]  # whether this is all that lies here of a parameter with more blocks: its one row, or column
    numbers: list[int]  # of the parameters: where they are rounded at random, each draws numbers of its own

    @classmethod
    def empty(cls) -> Batch:
        """No parameters yet."""
        return cls([], [], [], [], [], [], [], [])

    def some(self, which: list[int]) -> Batch:
        """The parameters of these numbers alone."""
        return Batch(*[[values[i] for i in which] if values else [] for values in self])  # type: ignore[arg-type]


class Rule(NamedTuple):
    r"""One update, for all parameters of a group.

    .. math::
        V_t = V_{t-1} + S(G_t), \quad D_t = G_t
        \qquad\text{or, with betas,}\qquad
        V_t = \beta_2 V_{t-1} + (1-\beta_2)\, S(G_t), \quad D_t = \beta_1 D_{t-1} + (1-\beta_1)\, G_t

    .. math:: X_{t+1} = X_t - \eta\, D_t / (\sqrt{V_t} + \epsilon)

    where S is the geometry's statistic and V broadcasts over the entries that share a scale.
    """

    geometry: Geometry
    reduction: str
    lr: float | Tensor
    eps: float
    betas: tuple[float, float] | None  # None: sums, not running averages
    bias_correction: bool
    weight_decay: float
    decoupled_weight_decay: bool
    maximize: bool
    stochastic_rounding: bool
    capturable: bool
    seed: int | None = None  # of the stochastic rounding; None draws from torch's generator

    def members(self, params: list[Tensor]) -> list[int]:
        """What the sum over a block of each parameter is divided by."""
        if self.reduction == "sum":
            return [1] * len(params)
        # A block without entries has an empty sum, and its mean is 0 too.
        return [max(1, self.geometry.members(param.shape)) for param in params]

    def corrections(self, step: Tensor) -> tuple[float | Tensor, float | Tensor]:
        """1 - β₁ᵗ and 1 - β₂ᵗ, which undo the running averages' start from zero; 1 and 1 if nothing is to be undone."""
        if self.betas is None or not self.bias_correction:
            return 1.0, 1.0
        beta1, beta2 = self.betas
        # Reading the value back is cheap on a CPU, but a graph that is captured or compiled must not depend on it.
        t = step if self.capturable or torch.compiler.is_compiling() else step.item()
        return _one_minus_power(beta1, t), _one_minus_power(beta2, t)


def _one_minus_power(beta: float, t: float | Tensor) -> float | Tensor:
    # In float32 1 - 0.999 keeps four digits; expm1 keeps all.
    if beta == 0:
        return 1.0
    exponent = t * math.log(beta)
    return -torch.expm1(exponent) if isinstance(exponent, Tensor) else -math.expm1(exponent)


@dataclass(frozen=True)
class Parts:
    """A step: gradients are read, their squares join the statistics, parameters move.

    The parts can be run on their own: the squares of a block that lies on several machines are added up in between.
    """

    read: Callable[[Batch, Rule], list[Tensor]]
    accumulate: Callable[[Batch, list[Tensor], Rule], None]
    move: Callable[[Batch, Rule], None]

    def __call__(self, batch: Batch, rule: Rule) -> None:
        """One step for every parameter."""
        self.accumulate(batch, self.read(batch, rule), rule)
        self.move(batch, rule)


def are_plain(tensors: Iterable[Tensor]) -> bool:
    """Whether all tensors are what they look like: no shards, and no subclass that has a say in torch's functions."""
    types = {type(x) for x in tensors}
    return types <= PLAIN or all(map(_is_plain, types))


PLAIN = {Tensor, Parameter}


def _is_plain(cls: type) -> bool:
    if cls in PLAIN:
        return True
    others = cls.__mro__[: cls.__mro__.index(Parameter if issubclass(cls, Parameter) else Tensor)]
    return not any(hook in vars(other) for other in others for hook in ("__torch_function__", "__torch_dispatch__"))


def seen(batch: Batch, geometry: Geometry) -> Batch:
    """Whole parameters with dense gradients, in the shapes that their statistics broadcast against."""
    if type(geometry).cut is Geometry.cut:  # none is cut into blocks
        return batch
    params, grads, averages = ([geometry.view(x) for x in tensors] for tensors in batch[:3])
    return batch._replace(params=params, grads=grads, averages=averages)


def shared_dims(x: Tensor, statistic: Tensor) -> tuple[int, ...]:
    """The dimensions of ``x`` along which entries share a scale."""
    return tuple([d for d, size in enumerate(statistic.shape) if size != x.shape[d]])


def widen(x: Tensor, like: Tensor) -> Tensor:
    """``x`` in the dtype of the arithmetic for the parameter ``like``: itself if it has it already."""
    dtype = wide_dtype(like.dtype)
    return x if x.dtype == dtype else x.to(dtype)


def count(steps: list[Tensor]) -> None:
    """One step more; not by ``step += 1``, which torch 2.13 loses when it compiles a float64 scalar."""
    torch._foreach_add_(steps, 1)


def store(param: Tensor, x: Tensor, rule: Rule, number: int) -> None:
    """Write ``x`` into a parameter, which has this number.

    Where the parameter is narrower than the arithmetic, this is the only rounding.
    """
    if rule.stochastic_rounding and param.dtype is torch.bfloat16:
        seeded = None if rule.seed is None else torch.Generator(x.device).manual_seed(rule.seed + number)
        x = round_stochastically(x, seeded)
    param.copy_(x)


def round_stochastically(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """``x`` (float32) rounded to a number of bfloat16, up or down at random, so that the mean is ``x``.

    bfloat16 is the upper half of a float32. A uniform number below one unit of the upper half is added, and the lower
    half is cut off: the carry happens with exactly the probability that the lower half calls for.
    """
    finite = x.isfinite()  # on NaN the carry could run into the sign; on infinity there is nothing to round
    if generator is None:
        noise = torch.randint_like(x, 1 << 16, dtype=torch.int32)
    else:
        noise = torch.randint(1 << 16, x.shape, generator=generator, dtype=torch.int32, device=x.device)
    rounded = noise.add_(x.view(torch.int32)).bitwise_and_(-(1 << 16)).view(torch.float32)
    return torch.where(finite, rounded, x, out=rounded)
