"""One tensor that takes a step, and the arithmetic shared by the backends in torch's operators."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from matrix_adagrad.geometry import Geometry, wide_dtype
from matrix_adagrad.optim.step.config import Config
from matrix_adagrad.torch_private import foreach_add_

__all__ = [
    "NARROW",
    "PLAIN",
    "Update",
    "are_plain",
    "count",
    "direction_of",
    "empty_like",
    "is_sharded",
    "join_average",
    "local",
    "mixed",
    "rounded",
    "rounds_at_random",
    "signed",
    "store",
    "widen",
]

PLAIN = {Tensor, Parameter}
NARROW = (torch.bfloat16, torch.float16)  # what can be rounded at random


@dataclass(eq=False)
class Update:
    """A parameter, its gradient and its state, for one step.

    An optimizer keeps the updates of its last step (see `UpdateCache`), including what a backend prepared for them.
    """

    param: Tensor
    grad: Tensor
    average: Tensor | None  # of gradients; None without betas
    statistics: tuple[Tensor, ...]
    step: Tensor
    geometry: Geometry  # of the tensors as they are here: a partition's statistic broadcasts against them
    divisors: tuple[int, ...] = (1,)  # of the sums that join the statistics
    stream: int = 0  # of random numbers for stochastic rounding: each tensor has its own
    # The only block on this rank of a parameter that has more: it is summed in the order that it has among others.
    is_single_block: bool = False
    sums: tuple[Tensor, ...] = ()  # laid out as the statistics: what is measured here of blocks on several ranks
    rows: Tensor | None = None  # that a sparse gradient touches, sorted: for projections, after the step
    scale: Tensor | None = None  # that the step divided by, of these rows or of all: for projections, where it is known
    lag: Any = None  # with lazy="exact": the `Lag` of its rows
    prepared: Any = None  # by a backend, for as long as the layout stays

    def written(self) -> list[Tensor]:
        """The tensors that a step writes to."""
        averages = [] if self.average is None else [self.average]
        return [self.param, *averages, *self.statistics, self.step]

    def measure(self, g: Tensor) -> tuple[Tensor, ...]:
        """What a gradient adds to each statistic."""
        return self.geometry.measure_part(g, *self.statistics)

    def viewed(self) -> Update:
        """A full parameter with a dense gradient, in the shape that its statistics broadcast against."""
        cut = self.geometry.cut(self.param.shape)
        return self if len(cut) == self.param.dim() else self.mapped(lambda x: x.view(cut))

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Update:
        """The update with another form of its full-size tensors."""
        average = None if self.average is None else change(self.average)
        return replace(self, param=change(self.param), grad=change(self.grad), average=average)


def is_sharded(x: Any) -> bool:
    """Whether a tensor is a DTensor, without importing DTensor, which takes a second."""
    return type(x) not in PLAIN and hasattr(x, "device_mesh")


def local(x: Tensor) -> Tensor:
    """The local shard of a DTensor, or the tensor itself if it is not a DTensor."""
    if not is_sharded(x):
        return x
    shard: Any = x.to_local()  # type: ignore[attr-defined]
    return shard.wait() if hasattr(shard, "wait") else shard  # type: ignore[no-any-return]  # it may be on its way


def empty_like(param: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """An empty tensor with the parameter's dimension order in memory, so that both are traversed together."""
    if len(shape) != param.dim():
        return torch.empty(shape, dtype=dtype, device=param.device)
    order = sorted(range(len(shape)), key=lambda d: param.stride(d), reverse=True)
    return torch.empty_permuted(shape, order, dtype=dtype, device=param.device)


def are_plain(tensors: Iterable[Tensor]) -> bool:
    """Whether all tensors are plain: no DTensors, and no subclass that overrides torch's functions."""
    types = {type(x) for x in tensors}
    return types <= PLAIN or all(map(_is_plain, types))


def _is_plain(cls: type) -> bool:
    if cls in PLAIN:
        return True
    others = cls.__mro__[: cls.__mro__.index(Parameter if issubclass(cls, Parameter) else Tensor)]
    return not any(hook in vars(other) for other in others for hook in ("__torch_function__", "__torch_dispatch__"))


def widen(x: Tensor, like: Tensor) -> Tensor:
    """``x`` in the compute dtype of the parameter ``like``, or ``x`` itself if it already has that dtype."""
    dtype = wide_dtype(like.dtype)
    return x if x.dtype == dtype else x.to(dtype)


def count(steps: list[Tensor]) -> None:
    """Count one more step. Not with ``step += 1``, which torch 2.13 loses when it compiles a float64 scalar."""
    foreach_add_(steps, 1)


def signed(g: Tensor, config: Config) -> Tensor:
    """The gradient of what is minimized."""
    return -g if config.maximize else g


def direction_of(average: Tensor | None, gradient: Callable[[], Tensor], step: Tensor, config: Config) -> Tensor:
    """D_t, the direction of the step: G_t, its running average including G_t, or Nesterov's sum of both."""
    if average is None:
        return gradient()
    if config.nesterov:
        of_average, of_gradient = config.nesterov_weights(step)
        return of_average * average + of_gradient * gradient()
    return average


def join_average(average: Tensor, g: Tensor, config: Config, stream: int) -> Tensor:
    """D_t = β₁ D_{t-1} + (1 - β₁) G_t, in place; returned as it is kept, in the dtype of G_t.

    A narrow average is rounded up or down at random. With round-to-nearest it would stall: a tenth of a unit in the
    last place is never enough to move it.
    """
    assert config.betas is not None
    if average.dtype == g.dtype:
        return average.lerp_(g, 1 - config.betas[0])
    joined = average.to(g.dtype).lerp_(g, 1 - config.betas[0])
    average.copy_(rounded(joined, stream and stream ^ _STREAM_OF_AVERAGE, torch.bfloat16))
    return average.to(g.dtype)


def store(param: Tensor, x: Tensor, config: Config, stream: int) -> None:
    """Write ``x`` into a parameter. Where the parameter is narrower than the arithmetic, this is the only rounding."""
    if rounds_at_random(param, config):
        x = rounded(x, stream, param.dtype)
    param.copy_(x)


def rounds_at_random(param: Tensor, config: Config) -> bool:
    """Whether a step rounds this parameter up or down at random."""
    return config.stochastic_rounding and param.dtype in NARROW


_BITS = (1 << 64) - 1


def mixed(*numbers: int) -> int:
    """Hash several numbers to one nonzero 62-bit number that changes if any of them does (SplitMix64)."""
    z = 0
    for number in numbers:
        z = (z + number + 0x9E3779B97F4A7C15) & _BITS
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _BITS
        z = (z ^ z >> 27) * 0x94D049BB133111EB & _BITS
        z ^= z >> 31
    return z >> 2 or 1


_STREAM_OF_AVERAGE = 0x2545F4914F6CDD1D  # a parameter and its average draw different numbers


def rounded(x: Tensor, stream: int, dtype: torch.dtype) -> Tensor:
    """Round ``x`` stochastically to a narrow dtype, by a stream of its own if there is one."""
    seeded = torch.Generator(x.device).manual_seed(stream) if stream else None
    return round_stochastically(x.float(), seeded, dtype)


def round_stochastically(
    x: Tensor, generator: torch.Generator | None = None, dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    """Round ``x`` (float32) to bfloat16 or float16, up or down at random, so that the mean is ``x``.

    bfloat16 is the upper half of a float32. Add a uniform number below one unit of the upper half, then cut off the
    lower half: the carry happens with exactly the probability that the lower half calls for. A normal float16 drops 13
    bits in the same way. Below 2⁻¹⁴ its unit is 2⁻²⁴: there, ``x`` is counted in units of 2⁻⁴⁴ first, cut off. Between
    65504, the largest float16, and 2¹⁶ there is nothing to round up to: it stays 65504.
    """
    if dtype is torch.float16:
        return _half(x, generator)
    finite = x.isfinite()  # on NaN the carry could run into the sign; on infinity there is nothing to round
    rounded = _carried(x, _noise(x, 16, generator), 16)
    return torch.where(finite, rounded, x, out=rounded)


def _noise(x: Tensor, bits: int, generator: torch.Generator | None) -> Tensor:
    if generator is None:
        return torch.randint_like(x, 1 << bits, dtype=torch.int32)
    return torch.randint(1 << bits, x.shape, generator=generator, dtype=torch.int32, device=x.device)


def _carried(x: Tensor, noise: Tensor, bits: int) -> Tensor:
    """``x`` without its lowest bits, after their carry."""
    return noise.add_(x.view(torch.int32)).bitwise_and_(-(1 << bits)).view(torch.float32)


_MOST_HALF, _LEAST_NORMAL_HALF = 65504.0, 2.0**-14
_PIECE_ENTRIES = 1 << 17


def _half(x: Tensor, generator: torch.Generator | None) -> Tensor:
    """The same for float16, in small pieces: its subnormal numbers need temporaries."""
    if torch.compiler.is_compiling() or x.numel() <= _PIECE_ENTRIES:
        return _half_piece(x, generator)
    rounded = torch.empty_like(x)
    pair = [own.view(-1) if x.is_contiguous() else own for own in (rounded, x)]
    together = max(1, _PIECE_ENTRIES * len(pair[0]) // x.numel())
    for out, piece in zip(*[own.split(together) for own in pair], strict=True):
        out.copy_(_half_piece(piece, generator))
    return rounded


def _half_piece(x: Tensor, generator: torch.Generator | None) -> Tensor:
    noise, magnitude = _noise(x, 20, generator), x.abs()
    units = x.clamp(-_LEAST_NORMAL_HALF, _LEAST_NORMAL_HALF).mul_(2.0**44).to(torch.int32)
    small = (units + noise).bitwise_right_shift_(20) * 2.0**-24  # the shift is towards -∞, also below 0
    normal = _carried(x, noise.bitwise_right_shift_(7), 13).clamp_(-_MOST_HALF, _MOST_HALF)
    rounded = torch.where(magnitude < _LEAST_NORMAL_HALF, small, normal)
    return torch.where(magnitude < 2.0**16, rounded, x)  # neither infinity nor NaN
