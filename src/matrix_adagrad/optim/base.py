"""The torch.optim contract: parameter groups, and the step; for the state see state.py."""

from __future__ import annotations

import functools
import inspect
import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, overload

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import ParamsT

from matrix_adagrad import native
from matrix_adagrad.domains import Domain
from matrix_adagrad.geometry import Geometry, as_geometry
from matrix_adagrad.optim.options import check_options, refuse_unknown
from matrix_adagrad.optim.state import STEP, StatefulOptimizer, is_sharded, shards
from matrix_adagrad.optim.step import Batch, Rule, are_plain, confine, seen, ways_to_run
from matrix_adagrad.optim.streams import Streams, mixed

if TYPE_CHECKING:
    from matrix_adagrad.optim.shards import Divided

__all__ = ["MatrixOptimizer"]


class MatrixOptimizer(StatefulOptimizer):
    """What all optimizers of this package share; a subclass says which state the update rule keeps."""

    FIXED: ClassVar[Geometry | None] = None  # the geometry, in a class that has only one

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "FIXED" in vars(cls):  # show the options of the general class, which are passed on to it
            signature = inspect.signature(cls.__mro__[1])
            shown = [parameter for name, parameter in signature.parameters.items() if name != "geometry"]
            cls.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        if isinstance(params, Module):
            raise TypeError(
                f"params must be parameters, got the module {type(params).__name__}: give its .parameters()"
            )
        defaults["geometry"] = as_geometry(defaults["geometry"])
        check_options(defaults)
        self._streams = Streams(type(self).__name__)
        super().__init__(params, defaults)
        if any(group["stochastic_rounding"] for group in self.param_groups) and self._streams.is_needed():
            self._streams.draw()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_streams" not in vars(self):  # a copy, which is an optimizer of its own
            self._streams = Streams(type(self).__name__)
        self._streams.place(param for group in self.param_groups for param in group["params"])

    # ---------------------------------------------------------------------------------------------------------- groups

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, with options of its own; a group that is refused leaves no trace."""
        if isinstance(param_group, dict):
            refuse_unknown(param_group, self.defaults)
        super().add_param_group(param_group)
        try:
            self._check_group(self.param_groups[-1])
        except Exception:
            del self.param_groups[-1]
            raise
        self._streams.place(param for group in self.param_groups for param in group["params"])

    def _check_group(self, group: dict[str, Any]) -> None:
        check_options(group)
        group["geometry"] = as_geometry(group["geometry"])
        if self.FIXED not in (None, group["geometry"]):
            general = next(cls for cls in type(self).__mro__ if cls.FIXED is None)  # type: ignore[attr-defined]
            raise ValueError(
                f"{type(self).__name__} scales by {self.FIXED}, and a group asks for {group['geometry']}: "
                f"use {general.__name__} for a geometry per group"
            )
        if group["differentiable"] != self.defaults["differentiable"]:
            raise ValueError(
                "differentiable is an option of the whole optimizer: give it to the optimizer, not to a group"
            )
        known = [(name, param) for name, param in self._named(group) if not is_lazy(param)]
        for name, param in known:
            self._check_fits(name, param, group)
        for name, param in known:  # after all checks: a group that is refused leaves no trace
            self._check_start(name, param, group)

    def _check_fits(self, name: str, param: Tensor, group: dict[str, Any]) -> None:
        if not (param.is_floating_point() or param.is_complex()):
            raise TypeError(
                f"{name} has dtype {param.dtype}; only floating-point and complex parameters can be trained"
            )
        if is_sharded(param) and group["differentiable"]:
            raise ValueError(f"{name} is sharded, and its step cannot be recorded: leave differentiable=False")
        if group["stochastic_rounding"] and param.dtype is torch.float16:
            raise ValueError(f"stochastic_rounding=True is for bfloat16 parameters, and {name} is float16")
        group["geometry"].check_fits(name, param.shape)
        if group["domain"] is not None:
            whole = torch.empty(param.shape, dtype=param.dtype, device="meta") if is_sharded(param) else param
            group["domain"].check_fits(name, whole)

    def _check_new(self, name: str, param: Tensor, group: dict[str, Any]) -> None:
        self._check_fits(name, param, group)  # a lazy parameter had no shape before
        self._check_start(name, param, group)

    @staticmethod
    def _check_start(name: str, param: Tensor, group: dict[str, Any]) -> None:
        """A start outside of the domain is projected if the user asks for it, else it is an error."""
        domain = group["domain"]
        if domain is None or param.is_meta:
            return
        x, own, sharded, is_part = param.detach(), domain, is_sharded(param), False
        if sharded:
            x, own, is_part = shards().part_of_domain(x, domain)
        outside = float(not own.contains(x))
        if not (shards().total(outside, param) if sharded else outside):
            return
        if not group["project_start"]:
            distance = own.distance(x)
            if is_part:
                distance = math.sqrt(shards().total(distance**2, param))
            raise ValueError(
                f"{name} starts outside of {domain!r}, at a distance of {distance:.4g}: "
                "start it inside, or give project_start=True"
            )
        with torch.no_grad():
            x.copy_(own.project(x))
            if sharded and not is_part:
                shards().put(param, x)

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
            work: list[Callable[[], None]] = []
            divided: list[Divided] = []  # over machines
            after: list[Callable[[], None]] = []
            # All of them first: what cannot be stepped is refused before any moves.
            for group in self.param_groups:
                for is_sparse in (False, True):
                    batch = Batch.empty()
                    others = self._init_group(group, is_sparse, *batch[:5])
                    if batch.params:
                        self._prepare(batch, is_sparse, group, work, divided, after)
                    if not others:
                        break
            if divided:
                work = [functools.partial(shards().step_together, divided, work)]
            for run in (*work, *after):
                run()
        return loss

    def _prepare(
        self,
        batch: Batch,
        is_sparse: bool,
        group: dict[str, Any],
        work: list[Callable[[], None]],
        divided: list[Divided],
        after: list[Callable[[], None]],
    ) -> None:
        """Put what is to be done for some parameters of a group on the lists."""
        rule = self._rule(group)
        batch.members.extend(rule.members(batch.params))
        batch.lone.extend([False] * len(batch.params))
        batch.numbers.extend(range(len(batch.params)))
        if rule.stochastic_rounding and not torch.compiler.is_compiling():
            rule = rule._replace(seed=self._streams.seed())
            if rule.seed is not None:
                batch.numbers[:] = map(self._number, batch.params, batch.steps)
        project, then = confine, work
        if is_sparse or are_plain(batch.params) or not any(map(is_sharded, batch.params)):
            work.extend(ways_to_run(batch if is_sparse else seen(batch, rule.geometry), rule, group))
        else:
            whole, parted = shards().localize(batch, rule.geometry)
            work.extend(ways_to_run(whole, rule, group) if whole.params else [])
            divided.extend([shards().Divided(parted, rule, group)] if parted.params else [])
            project, then = shards().confine_shards, after
        if group["domain"] is not None:
            then.append(functools.partial(project, batch, rule, group["domain"]))

    # torch.compile knows this method by name: it runs it as it is and traces what follows.
    def _init_group(
        self,
        group: dict[str, Any],
        is_sparse: bool,
        params: list[Tensor],
        grads: list[Tensor],
        averages: list[Tensor],
        statistics: list[Tensor],
        steps: list[Tensor],
    ) -> bool:
        """Fill the lists with the parameters whose gradients are sparse, or dense; whether there are others too."""
        others = False
        group["geometry"] = as_geometry(group["geometry"])  # users may edit a group
        if group["reduction"] not in ("sum", "mean"):
            check_options(group)
        for i, param in enumerate(group["params"]):
            grad = param.grad
            if grad is None:
                continue
            if grad.is_sparse != is_sparse:
                others = True
                continue
            if type(grad) is not Tensor and is_sharded(grad) and not is_sharded(param):
                raise RuntimeError(
                    f"{self._name(group, i)} is a plain tensor, and its gradient is a DTensor over {grad.placements}: "
                    "give the whole one, grad.full_tensor()"
                )
            if param not in self.state:
                self._check_new(self._name(group, i), param, group)
            if is_sparse:
                self._check_sparse(i, param, group)
            state = self._state_of(param, group)
            if state[self.STATISTIC].shape != _statistic_shape(group["geometry"], param.shape):
                shape, geometry = tuple(state[self.STATISTIC].shape), group["geometry"]
                raise RuntimeError(
                    f"{self._name(group, i)} has shape {tuple(param.shape)} and geometry {geometry}, "
                    f"and a state of shape {shape}, made for others: make a new optimizer"
                )
            params.append(param)
            grads.append(grad)
            steps.append(state[STEP])
            statistics.append(state[self.STATISTIC])
            if self.AVERAGE is not None:
                averages.append(state[self.AVERAGE])
        return others

    def _check_sparse(self, i: int, param: Tensor, group: dict[str, Any]) -> None:
        grad, domain, differentiable = param.grad, group["domain"], self.defaults["differentiable"]
        assert grad is not None
        if differentiable:
            raise RuntimeError(
                f"{self._name(group, i)} has a sparse gradient, and autograd cannot record its step: "
                "leave differentiable=False, or make the layer with sparse=False"
            )
        if grad.sparse_dim() != 1:
            raise RuntimeError(
                f"{self._name(group, i)} has a gradient with {grad.sparse_dim()} sparse dimensions, and only the first "
                "one, the rows, may be sparse: give grad.to_dense(), or one like that of nn.Embedding(sparse=True)"
            )
        if grad.is_cpu and grad._nnz():
            # Torch looks through so few on one thread; in a fork the others are not there.
            parts = grad._indices()[0].split(1 << 15 if native.threads() == 1 else grad._nnz())
            low, high = min(int(part.amin()) for part in parts), max(int(part.amax()) for part in parts)
            if low < 0 or high >= param.shape[0]:
                name, rows = self._name(group, i), param.shape[0]
                raise IndexError(f"{name} has {rows} rows, and its sparse gradient has rows {low} to {high}")
        if domain is not None and not domain.is_separable_by_rows(param.shape):
            _say_that_all_rows_are_projected(self._name(group, i), domain)

    def _number(self, param: Tensor, step: Tensor) -> int:
        """Of a parameter, or of the shard of it that lies here, at one step: it decides on the noise it is given."""
        shard = shards().shard_number(param) if is_sharded(param) else 0
        return mixed(self._streams.position(param), int(step.item()), shard)

    def _rule(self, group: dict[str, Any]) -> Rule:
        lr = group["lr"]
        return Rule(
            geometry=group["geometry"],
            reduction=group["reduction"],
            lr=lr.reshape(()) if isinstance(lr, Tensor) else lr,
            eps=group["eps"],
            betas=None if self.AVERAGE is None else group["betas"],
            bias_correction=self.AVERAGE is not None and group["bias_correction"],
            weight_decay=group["weight_decay"],
            decoupled_weight_decay=group["decoupled_weight_decay"],
            maximize=group["maximize"],
            stochastic_rounding=group["stochastic_rounding"],
            capturable=group["capturable"],
        )


@functools.cache
def _say_that_all_rows_are_projected(name: str, domain: Domain) -> None:
    logging.getLogger("matrix_adagrad").warning(
        "%s has sparse gradients, and %r ties its rows together: every step projects all of them", name, domain
    )


@functools.lru_cache(maxsize=1 << 14)
def _statistic_shape(geometry: Geometry, shape: torch.Size) -> tuple[int, ...]:
    return geometry.statistic_shape(shape)
