"""The update rule for one array: `matrix_adagrad.optim.step` itself, with torch's operators on JAX arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import torch
from torch import Tensor

from matrix_adagrad.geometry import Geometry, Partition
from matrix_adagrad.interop.optax.tensors import JaxTensor, twin
from matrix_adagrad.optim.base import MatrixOptimizer, divisors_of
from matrix_adagrad.optim.step.config import SteepestConfig
from matrix_adagrad.optim.step.project import as_metric
from matrix_adagrad.optim.step.reference import Reference
from matrix_adagrad.optim.step.reference_steepest import Steepest
from matrix_adagrad.optim.step.update import Update

__all__ = ["Kept", "UpdateRule", "widened"]


class Kept(NamedTuple):
    """The state of one array: the average of gradients, if there is one, and the statistics of its geometry."""

    average: jax.Array | None = None
    statistics: tuple[jax.Array, ...] = ()


def widened(x: Any, kept: Kept) -> jax.Array:
    """``x`` in its compute dtype: the precision of the state, or float32 or wider if there is none."""
    state = [v for v in (kept.average, *kept.statistics) if v is not None] or [x]
    real = jnp.finfo(jnp.promote_types(jnp.asarray(state[-1]).dtype, jnp.float32)).dtype
    return jnp.asarray(x, jnp.promote_types(real, jnp.complex64) if jnp.iscomplexobj(x) else real)


class _Traced(Reference):
    """The reference backend, where the number of steps is not known."""

    def derive(self, geometry: Geometry, statistics: list[Tensor], derived: tuple[Tensor, ...], step: Any) -> None:
        arrays = jax.lax.cond(
            (step.array - 1) % geometry.every == 0,
            lambda: _arrays(geometry.derive(*statistics)),
            lambda: _arrays(derived),
        )
        for kept, new in zip(derived, arrays, strict=True):
            kept.copy_(JaxTensor(new))


_REFERENCE, _STEEPEST = _Traced(), Steepest()


@dataclass(frozen=True)
class UpdateRule:
    """The steps of a torch optimizer's class with these options.

    Numbers may be arrays, including traced ones, as from `optax.inject_hyperparams`.
    """

    family: type[MatrixOptimizer]
    options: dict[str, Any]

    @property
    def known(self) -> dict[str, Any]:
        """All options, with defaults for arrays: their values may not be known."""
        given = {name: value for name, value in self.options.items() if not isinstance(value, jax.Array)}
        defaults = self.family.CONFIG()
        return {name: getattr(defaults, name) for name in defaults.OPTIONS} | given

    @property
    def keeps_average(self) -> bool:
        return bool(self.family._average_keys(self.known))

    def measured(self, shape: Sequence[int]) -> Geometry:
        """The geometry whose statistics are kept for an array of this shape."""
        return self.family._measured(self.known, torch.Size(shape))

    def init(self, path: Any, x: Any) -> Kept:
        """The state at the start of the parameter at this path in the tree."""
        x, name = jnp.asarray(x), f"parameter {jax.tree_util.keystr(path)}".strip()
        if not jnp.issubdtype(x.dtype, jnp.inexact):
            raise TypeError(f"{name} has dtype {x.dtype}; only floating-point and complex parameters can be trained")
        self.family._check_fits(name, twin(x), self.known)
        wide, measured = widened(x, Kept()), self.measured(x.shape)
        start = jnp.asarray(self.options.get("initial_accumulator_value", 0.0), jnp.finfo(wide.dtype).dtype)
        average = jnp.zeros_like(wide) if self.keeps_average else None
        partitions = measured.partitions
        shapes = (*measured.statistic_shapes(x.shape), *measured.derived_shapes(x.shape))
        if not partitions or x.size == 0:
            return Kept(average, tuple(jnp.full(shape, start) for shape in shapes))
        return Kept(average, tuple(_filled_like_blocks(x, partition, start) for partition in partitions))

    def step(self, g: jax.Array, kept: Kept, count: jax.Array, lr: Any) -> tuple[jax.Array, Kept, jax.Array | None]:
        """The update, the state afterwards, and the metric that a domain is projected in."""
        self._check_kept(g, kept)
        if g.size == 0:
            return g, kept, None
        dtype = jnp.finfo(g.dtype).dtype

        def number(value: Any) -> Any:
            return JaxTensor(jnp.asarray(value, dtype)) if isinstance(value, jax.Array) else value

        options = {name: number(value) for name, value in self.options.items()}
        options |= {"lr": number(jnp.asarray(lr)), "capturable": True}
        if isinstance(self.options.get("floor"), jax.Array) and not options["geometry"].on(g.shape).partitions:
            del options["floor"]  # injected, although there are no blocks to compare with each other
        config = self.family.CONFIG.of_group({**self.known, **options})
        geometry, is_steepest = options["geometry"].on(g.shape), isinstance(config, SteepestConfig)
        cut = g.shape if is_steepest else geometry.cut(g.shape)

        def tensor(x: jax.Array) -> JaxTensor:
            return JaxTensor(x.reshape(cut))

        update: Any = Update(
            param=tensor(jnp.zeros_like(g)),
            grad=tensor(g),
            average=None if kept.average is None else tensor(kept.average),
            statistics=tuple(map(JaxTensor, kept.statistics)),
            step=JaxTensor((count - 1).astype(dtype)),
            geometry=geometry,
            divisors=divisors_of(self.measured(g.shape), torch.Size(g.shape), config),
        )
        with torch.no_grad():
            (_STEEPEST if is_steepest else _REFERENCE).step([update], config)
            metric = None if update.scale is None else geometry.spread(as_metric(update.scale), g.shape)
        average = None if update.average is None else update.average.array.reshape(g.shape)
        after = Kept(average, _arrays(update.statistics))
        return update.param.array.reshape(g.shape), after, None if metric is None else metric.array

    def _check_kept(self, g: jax.Array, kept: Kept) -> None:
        measured = self.measured(g.shape)
        shapes = (*measured.statistic_shapes(g.shape), *measured.derived_shapes(g.shape))
        found = tuple(v.shape for v in kept.statistics)
        if found != shapes:
            needed, got = (of[0] if len(of) == 1 else of for of in (shapes, found))
            raise ValueError(
                f"a gradient of shape {g.shape} and geometry {measured} needs a state of shape {needed}, "
                f"but got one of shape {got}, made for another"
            )
        if (kept.average is not None) != self.keeps_average:
            has = ("no average", "an average")[self.keeps_average]
            raise ValueError(f"these options need {has} of gradients, and the state was made for others")


def _arrays(tensors: Sequence[Any]) -> tuple[jax.Array, ...]:
    return tuple(tensor.array for tensor in tensors)


def _filled_like_blocks(x: jax.Array, partition: Partition, value: jax.Array) -> jax.Array:
    """A statistic made from one entry of each block: it lives on the same devices as its block."""
    inside, cut = partition.dims(x.shape), partition.cut(x.shape)
    first = x.reshape(cut)[tuple(slice(1 if d in inside else None) for d in range(len(cut)))]
    return jnp.full_like(first, value, value.dtype)
