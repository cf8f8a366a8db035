"""The torch.optim contract: parameter groups and the step. For the state, see state.py."""

from __future__ import annotations

import functools
import itertools
import logging
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, overload

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import ParamsT

from matrix_adagrad import native
from matrix_adagrad.domains import Domain
from matrix_adagrad.geometry import Geometry, as_geometry
from matrix_adagrad.optim.catch_up import LazyOptimizer
from matrix_adagrad.optim.counters import check_fits_exact
from matrix_adagrad.optim.keywords import refuse_unknown
from matrix_adagrad.optim.saved import STEP
from matrix_adagrad.optim.step.cache import UpdateCache
from matrix_adagrad.optim.step.config import Config, check_exact, check_options
from matrix_adagrad.optim.step.dispatch import GroupPlan, run
from matrix_adagrad.optim.step.update import Update, is_sharded
from matrix_adagrad.optim.streams import Streams
from matrix_adagrad.torch_private import sparse_indices, stored_entries

__all__ = ["MatrixOptimizer", "divisors_of"]


class MatrixOptimizer(LazyOptimizer):
    """The base of all optimizers in this package. A subclass defines its options and the state it keeps."""

    GEOMETRY: ClassVar[Geometry | None] = None  # if the class has only one

    def __init__(self, params: ParamsT, config: Config) -> None:
        if isinstance(params, Module):
            raise TypeError(
                f"params must be parameters, got the module {type(params).__name__}: give its .parameters()"
            )
        defaults = {name: getattr(config, name) for name in config.OPTIONS}
        defaults["geometry"] = self.GEOMETRY or as_geometry(defaults["geometry"])
        check_options(defaults)
        self._make_caches()
        super().__init__(params, defaults)
        is_random = any(self.CONFIG.of_group(group).is_random for group in self.param_groups)
        if is_random and self._streams.are_shared():
            self._streams.draw()

    def _make_caches(self) -> None:
        """Caches from the last step. They are never saved."""
        self._places = {}
        self.option_values = operator.itemgetter(*dict.fromkeys(["geometry", *self.CONFIG.OPTIONS]))
        self._streams = Streams(type(self).__name__)
        self._kept: list[UpdateCache] = []  # of each group

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_streams" not in vars(self):  # a copy is an independent optimizer
            self._make_caches()
        self._kept, self._places = [], {}
        self._streams.place(param for group in self.param_groups for param in group["params"])

    def forget_last_step(self) -> None:
        """Drop what is known of the tensors of the last step, and with it their memory if they have been replaced."""
        self._kept = []

    # ---------------------------------------------------------------------------------------------------------- groups

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group with its own options. A refused group leaves no trace."""
        if isinstance(param_group, dict):
            keys = [key for key in param_group if key not in ("params", "param_names")]
            refuse_unknown("a parameter group", keys, self.defaults, only_near_misses=True)
        super().add_param_group(param_group)
        try:
            self._check_group(self.param_groups[-1])
        except Exception:
            del self.param_groups[-1]
            raise
        self._streams.place(param for group in self.param_groups for param in group["params"])

    def _check_group(self, group: dict[str, Any]) -> None:
        check_options(group)
        self._check_geometry(group)
        if group["differentiable"] != self.defaults["differentiable"]:
            raise ValueError(
                "differentiable is an option of the whole optimizer: give it to the optimizer, not to a group"
            )
        known = [(name, param) for name, param in self._named(group) if not is_lazy(param)]
        for name, param in known:
            self._check_fits(name, param, group)
        for name, param in known:  # after all checks: a refused group leaves no trace
            self._check_start(name, param, group)

    def _check_geometry(self, group: dict[str, Any]) -> None:
        group["geometry"] = as_geometry(group["geometry"])
        if self.GEOMETRY not in (None, group["geometry"]):
            bases: Any = type(self).__mro__
            general = next(cls for cls in bases if cls.GEOMETRY is None)
            raise ValueError(
                f"{type(self).__name__} scales by {self.GEOMETRY}, and a group asks for {group['geometry']}: "
                f"use {general.__name__} for a geometry per group"
            )

    @classmethod
    def _check_fits(cls, name: str, param: Tensor, group: Mapping[str, Any]) -> None:
        geometry, domain = group["geometry"], group.get("domain")
        if not (param.is_floating_point() or param.is_complex()):
            raise TypeError(
                f"{name} has dtype {param.dtype}; only floating-point and complex parameters can be trained"
            )
        if is_sharded(param) and group["differentiable"]:
            raise ValueError(f"{name} is sharded, and its step cannot be recorded: leave differentiable=False")
        if group.get("momentum_dtype") is not None and param.is_complex():
            raise ValueError(
                f"{name} has dtype {param.dtype}, and its average cannot be real: leave momentum_dtype=None"
            )
        cls._check_geometry_fits(name, param, group)
        needs_scales = {
            "initial_accumulator_value=0": group.get("initial_accumulator_value"),
            "domain=None": domain is not None and domain.depends_on_metric,
        }
        if group.get("lazy") == "exact":
            check_fits_exact(name, param, group)
        for remedy, is_needed in needs_scales.items():
            if is_needed and not geometry.on(param.shape).is_diagonal:
                raise ValueError(f"{name} has the geometry {geometry!r}, whose metric is not diagonal: leave {remedy}")
        if domain is not None:
            domain.check_fits(name, torch.empty(param.shape, dtype=param.dtype, device="meta"))

    @classmethod
    def _check_geometry_fits(cls, name: str, param: Tensor, group: Mapping[str, Any]) -> None:
        group["geometry"].check_fits(name, param.shape, param.dtype)

    def _check_new(self, name: str, param: Tensor, group: dict[str, Any]) -> None:
        self.check_start(name, param, group)  # a lazy parameter had no shape before

    def check_start(self, name: str, param: Tensor, group: dict[str, Any]) -> None:
        """Check other values for a parameter as those that it started with, also in the shape that they have."""
        self._check_fits(name, param, group)
        self._check_start(name, param, group)

    @staticmethod
    def _check_start(name: str, param: Any, group: dict[str, Any]) -> None:
        """Project a parameter that starts outside its domain if the user asked for that. Otherwise raise an error."""
        domain = group.get("domain")
        if domain is None or param.is_meta:
            return
        x, own_domain, is_shard = param.detach(), domain, False  # of the shard, if it has its own
        if is_sharded(param):
            from matrix_adagrad.optim import sharding

            x, own_domain, is_shard = sharding.domain_of_shard(x, domain)

        def total(number: float) -> float:
            return sharding.sum_over_shards(number, param) if is_shard else number

        if not total(float(not own_domain.contains(x))):
            return
        if not group["project_start"]:
            distance = math.sqrt(total(own_domain.distance(x) ** 2))
            raise ValueError(
                f"{name} starts outside {domain!r}, at a distance of {distance:.4g}: "
                "start it inside, or pass project_start=True"
            )
        with torch.no_grad():
            x.copy_(own_domain.project(x))
            if is_sharded(param) and not is_shard:
                param.to_local().copy_(sharding.shards_of(x, param))

    # ------------------------------------------------------------------------------------------------------------ step

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step.

        Args:
            closure: recomputes the loss and its gradients, and returns the loss.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            if torch.compiler.is_compiling():
                configs = [self.CONFIG.of_group(group) for group in self.param_groups]
                groups = zip(self.param_groups, configs, strict=True)
                run([GroupPlan(self.updates_of(group, config), config) for group, config in groups])
                return loss
            # Taken out while the step runs: another thread makes updates of its own, and a failed step leaves none.
            kept, self._kept = self._kept[: len(self.param_groups)], []
            caches = [self._collect(*pair) for pair in itertools.zip_longest(self.param_groups, kept)]
            run([cache.plan() for cache in caches])
            self._kept = [cache.released() for cache in caches]
        return loss

    def _collect(self, group: dict[str, Any], known: UpdateCache | None) -> UpdateCache:
        """The updates of all parameters with a gradient. Those of the last step are reused if they are still valid."""
        values, params = self.option_values(group), group["params"]
        if known is not None and known.has_config_of(values):
            config = known.config
        else:
            config = self.config_of(group)
            values = self.option_values(group)
        grads = [grad for param in params if (grad := param.grad) is not None]
        if len(grads) < len(params):
            params = [param for param in params if param.grad is not None]
        states = [*map(self.state.get, params)]
        if known is None or not known.renew(params, grads, states, config, values):
            updates = self.updates_of(group, config)
            known = UpdateCache(updates, [self.state[param] for param in params], config, values)
        if config.is_random:
            self.assign_streams(known.updates, config)
        return known

    def assign_streams(self, updates: list[Update], config: Config) -> None:
        """Give each update its own random numbers for this step."""
        self._streams.assign(updates, config)

    def config_of(self, group: dict[str, Any]) -> Config:
        """The configuration of a group, which users may edit."""
        self._check_geometry(group)
        if group.get("reduction", "sum") not in ("sum", "mean"):
            check_options(group)
        if group.get("lazy") == "exact":
            check_exact(group)
        return self.CONFIG.of_group(group)

    def updates_of(self, group: dict[str, Any], config: Config) -> list[Update]:
        """The updates of a group's parameters with a gradient, all checked."""
        params: list[Tensor] = []
        grads: list[Tensor] = []
        averages: list[Tensor] = []
        statistics: list[Tensor] = []
        steps: list[Tensor] = []
        self._init_group(group, params, grads, averages, statistics, steps)
        updates, remaining = [], iter(statistics)
        for i, param in enumerate(params):
            geometry, measured = as_geometry(group["geometry"]).on(param.shape), self._measured(group, param.shape)
            average = averages[i] if averages else None
            statistic = tuple([next(remaining) for _ in (*measured.statistics, *measured.derived)])
            divisors = divisors_of(measured, param.shape, config)
            update = Update(param, grads[i], average, statistic, steps[i], geometry, divisors)
            if config.lazy == "exact":
                update.lag = self._lag(param, group, self.state[param])
            updates.append(update)
        return updates

    # torch.compile knows this method by name: it runs it eagerly, and traces what follows.
    def _init_group(
        self,
        group: dict[str, Any],
        params: list[Tensor],
        grads: list[Tensor],
        averages: list[Tensor],
        statistics: list[Tensor],
        steps: list[Tensor],
    ) -> None:
        """Put the parameters that have a gradient into the lists, with their gradients and state, all checked."""
        self._check_geometry(group)
        for i, param in enumerate(group["params"]):
            grad: Any = param.grad
            if grad is None:
                continue
            if type(grad) is not Tensor and is_sharded(grad) and not is_sharded(param):
                raise RuntimeError(
                    f"{self._name(group, i)} is a plain tensor, and its gradient is a DTensor over {grad.placements}: "
                    "pass the full tensor, grad.full_tensor()"
                )
            if grad.is_sparse:
                self._check_sparse(self._name(group, i), param, grad, group.get("domain"))
            state = self._state_of(group, i)
            params.append(param)
            grads.append(grad)
            averages.extend([state[key] for key in self._average_keys(group)])
            statistics.extend([state[key] for key in self._statistic_keys(self._measured(group, param.shape))])
            steps.append(state[STEP])

    def _check_sparse(self, name: str, param: Tensor, grad: Tensor, domain: Domain | None) -> None:
        if self.defaults["differentiable"]:
            raise RuntimeError(
                f"{name} has a sparse gradient, and autograd cannot record its step: leave differentiable=False, or "
                "make the layer with sparse=False"
            )
        if grad.sparse_dim() != 1:
            raise RuntimeError(
                f"{name} has a gradient with {grad.sparse_dim()} sparse dimensions, and only the first one, the rows, "
                "may be sparse: give grad.to_dense(), or one like that of nn.Embedding(sparse=True)"
            )
        if grad.is_cpu and stored_entries(grad):
            # Torch scans this few on one thread. In a forked process, the other threads do not exist.
            parts = sparse_indices(grad)[0].split(1 << 15 if native.threads() == 1 else stored_entries(grad))
            low, high = min(int(part.amin()) for part in parts), max(int(part.amax()) for part in parts)
            if low < 0 or high >= len(param):
                raise IndexError(f"{name} has {len(param)} rows, and its sparse gradient has rows {low} to {high}")
        if domain is not None and not domain.is_separable_by_rows(param.shape):
            _say_that_all_rows_are_projected(name, domain)


@functools.cache
def _say_that_all_rows_are_projected(name: str, domain: Domain) -> None:
    logging.getLogger("matrix_adagrad").warning(
        "%s has sparse gradients, and %r ties its rows together: every step projects all of them", name, domain
    )


def divisors_of(geometry: Geometry, shape: torch.Size, config: Config) -> tuple[int, ...]:
    """What to divide the sums over blocks by. An empty block has an empty sum, and its mean is 0 too."""
    if config.reduction == "sum":
        return (1,) * len(geometry.statistics)
    entries = geometry.entries(shape)
    if min(entries, default=1) < 1 and 0 not in shape:
        raise ValueError(
            f"{geometry!r}.entries({tuple(shape)}) is {entries}: it must say what a statistic is a sum over"
        )
    return tuple([max(1, number) for number in entries])
