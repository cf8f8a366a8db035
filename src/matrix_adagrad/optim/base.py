"""The torch.optim contract: parameter groups, lazy state, checkpoints, and the choice of how to run a step."""

from __future__ import annotations

import functools
import inspect
import itertools
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, overload

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import Optimizer, ParamsT, StateDict

from matrix_adagrad.domains import Domain
from matrix_adagrad.geometry import Geometry, as_geometry, wide_dtype
from matrix_adagrad.optim.options import check_options, refuse_foreign, refuse_unknown
from matrix_adagrad.optim.step import Batch, Rule, confine, ways_to_run

__all__ = ["MatrixOptimizer"]

STEP = "step"
# How a step is run is this optimizer's own affair; the rest of a group comes back with a checkpoint.
_WAYS = ("foreach", "fused", "capturable", "differentiable")


class MatrixOptimizer(Optimizer):
    """What all optimizers of this package share; a subclass says which state the update rule keeps."""

    STATISTIC: ClassVar[str]  # the state key of V_t, one number a scale
    AVERAGE: ClassVar[str | None] = None  # the state key of the running average of gradients, if there is one
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
        super().__init__(params, defaults)

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
        if hasattr(param, "device_mesh"):
            raise TypeError(f"{name} is sharded (a DTensor), and this version takes whole parameters only")
        if group["stochastic_rounding"] and param.dtype is torch.float16:
            raise ValueError(f"stochastic_rounding=True is for bfloat16 parameters, and {name} is float16")
        group["geometry"].check_fits(name, param.shape)
        if group["domain"] is not None:
            group["domain"].check_fits(name, param)

    @staticmethod
    def _check_start(name: str, param: Tensor, group: dict[str, Any]) -> None:
        """A start outside of the domain is projected if the user asks for it, else it is an error."""
        domain = group["domain"]
        if domain is None or param.is_meta or domain.contains(param.detach()):
            return
        if not group["project_start"]:
            raise ValueError(
                f"{name} starts outside of {domain!r}, at a distance of {domain.distance(param.detach()):.4g}: "
                "start it inside, or give project_start=True"
            )
        with torch.no_grad():
            param.copy_(domain.project(param))

    def _name(self, group: dict[str, Any], i: int) -> str:
        """The words that an error message uses for a parameter."""
        if group.get("param_names"):
            return f"parameter {group['param_names'][i]!r}"
        before = itertools.takewhile(lambda other: other is not group, self.param_groups)
        return f"parameter {sum(len(other['params']) for other in before) + i}"

    def _named(self, group: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
        return ((self._name(group, i), param) for i, param in enumerate(group["params"]))

    # ----------------------------------------------------------------------------------------------------------- state

    def init_state(self) -> None:
        """Make the state of every trainable parameter now, instead of at its first gradient.

        A checkpoint of an optimizer that has not stepped, or of a model with unused parameters, is then complete.
        """
        for group in self.param_groups:
            for param in group["params"]:
                if param.requires_grad:
                    self._state_of(param, group)

    def _state_of(self, param: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[param]
        if not state:
            dtype = wide_dtype(param.dtype)
            state[STEP] = self._count(0, param, group)
            if self.AVERAGE is not None:
                state[self.AVERAGE] = torch.zeros_like(param, dtype=dtype, memory_format=torch.preserve_format)
            state[self.STATISTIC] = _empty_like(
                param, group["geometry"].statistic_shape(param.shape), dtype.to_real()
            ).fill_(self._start(group))
        return state

    def _start(self, group: dict[str, Any]) -> float:  # noqa: ARG002
        """Where the statistic starts."""
        return 0.0

    @staticmethod
    def _count(steps: Any, param: Tensor, group: dict[str, Any]) -> Tensor:
        """The number of steps, where and as torch keeps it."""
        dtype = torch.float64 if torch.get_default_dtype() is torch.float64 else torch.float32
        return torch.as_tensor(steps, dtype=dtype, device=param.device if group["capturable"] else "cpu")

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
            for group in self.param_groups:  # all of them first: what cannot be stepped is refused before any moves
                for is_sparse in (False, True):
                    batch = Batch([], [], [], [], [])
                    self._init_group(group, is_sparse, *batch)
                    if batch.params:
                        rule = self._rule(group)
                        work.extend(ways_to_run(batch, rule, group))
                        if group["domain"] is not None:
                            work.append(functools.partial(confine, batch, rule, group["domain"]))
            for run in work:
                run()
        return loss

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
    ) -> None:
        group["geometry"] = as_geometry(group["geometry"])  # users may edit a group
        if group["reduction"] not in ("sum", "mean"):
            check_options(group)
        for i, param in enumerate(group["params"]):
            if param.grad is None or param.grad.is_sparse != is_sparse:
                continue
            if param not in self.state:  # a lazy parameter had no shape before
                self._check_fits(self._name(group, i), param, group)
                self._check_start(self._name(group, i), param, group)
            if is_sparse:
                self._check_sparse(self._name(group, i), param, group)
            state = self._state_of(param, group)
            if state[self.STATISTIC].shape != _statistic_shape(group["geometry"], param.shape):
                shape, geometry = tuple(state[self.STATISTIC].shape), group["geometry"]
                raise RuntimeError(
                    f"{self._name(group, i)} has shape {tuple(param.shape)} and geometry {geometry}, "
                    f"and a state of shape {shape}, made for others: make a new optimizer"
                )
            params.append(param)
            grads.append(param.grad)
            steps.append(state[STEP])
            statistics.append(state[self.STATISTIC])
            if self.AVERAGE is not None:
                averages.append(state[self.AVERAGE])

    def _check_sparse(self, name: str, param: Tensor, group: dict[str, Any]) -> None:
        grad, domain, differentiable = param.grad, group["domain"], self.defaults["differentiable"]
        assert grad is not None
        if grad.sparse_dim() != 1 or differentiable:
            reason = "differentiable=True" if differentiable else f"{grad.sparse_dim()} sparse dimensions"
            raise RuntimeError(f"{name} has a sparse gradient with {reason}: only rows can be sparse, without autograd")
        if grad.device.type == "cpu" and grad._nnz():
            low, high = grad._indices().aminmax()
            if low < 0 or high >= len(param):
                raise IndexError(f"{name} has {len(param)} rows, and its sparse gradient has rows {low} to {high}")
        if domain is not None and not domain.is_separable_by_rows(param.shape):
            _say_that_all_rows_are_projected(name, domain)

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

    # ----------------------------------------------------------------------------------------------------- checkpoints

    def state_dict(self) -> StateDict:
        """The state, as of every torch optimizer; geometries and domains are saved by name: files hold plain types."""
        # The first of the post-hooks: users' own see what is saved.
        handle = self.register_state_dict_post_hook(_name_values, prepend=True)
        try:
            return super().state_dict()
        finally:
            handle.remove()

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load a state. One that was saved for another shape or another geometry is refused, and changes nothing.

        The options come back with the state, but for those of how a step is run (``foreach``, ``fused``,
        ``capturable``, ``differentiable``). Statistics stay in float32 or wider, whatever the parameter's dtype.
        """
        # The last of the pre-hooks: users' own may rewrite the dict, and what they return is what is loaded.
        handle = self.register_load_state_dict_pre_hook(lambda _, given: self._prepare_to_load(given))
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()

    def _prepare_to_load(self, state_dict: StateDict) -> StateDict:
        groups, saved_groups = self.param_groups, state_dict["param_groups"]
        if [len(g["params"]) for g in groups] != [len(g["params"]) for g in saved_groups]:
            return state_dict  # torch's own check will say so
        state, param_groups = dict(state_dict["state"]), []
        for group, saved in zip(groups, saved_groups, strict=True):
            names, saved_names = group.get("param_names") or [], saved.get("param_names") or []
            if names != saved_names and sorted(names) == sorted(saved_names):
                raise ValueError(f"the saved parameters are {saved_names}, here they are {names}: nothing was loaded")
            own = {key: group[key] for key in self.defaults}
            merged = {**own, **refuse_foreign(saved, own), **{key: own[key] for key in ("geometry", "domain", *_WAYS)}}
            check_options(merged)
            param_groups.append(merged)
            for (name, param), index in zip(self._named(group), saved["params"], strict=True):
                self._check_loadable(name, param, group, saved, state.get(index))
                if index in state:
                    state[index] = {
                        key: _AsItIs(self._received(key, value, param, group)) for key, value in state[index].items()
                    }
        return {**state_dict, "state": state, "param_groups": param_groups}

    def _check_loadable(
        self,
        name: str,
        param: Tensor,
        group: dict[str, Any],
        saved_group: dict[str, Any],
        saved: dict[str, Any] | None,
    ) -> None:
        geometry = group["geometry"]
        needed = {self.STATISTIC: geometry.statistic_shape(param.shape)}
        if self.AVERAGE is not None:
            needed[self.AVERAGE] = tuple(param.shape)
        if saved and set(saved) != {STEP, *needed}:
            raise ValueError(
                f"{name}: the saved state has {', '.join(saved)}, and {type(self).__name__} has "
                f"{', '.join((STEP, *needed))}; nothing was loaded"
            )
        domain = None if group["domain"] is None else repr(group["domain"])
        if saved_group.get("domain", domain) not in (domain, group["domain"]):
            raise ValueError(
                f"{name}: the saved run had the domain {saved_group['domain']}, and here it is {domain}: give the same "
                "domain, or take 'domain' out of the saved group; nothing was loaded"
            )
        saved_geometry = str(saved_group.get("geometry", geometry))
        for key, shape in needed.items():
            saved_shape = tuple(getattr(saved[key], "shape", ())) if saved else shape
            if saved_geometry != str(geometry) or saved_shape != shape:
                source = (
                    f"geometry {saved_geometry}" if "geometry" in saved_group else "no geometry (another optimizer's)"
                )
                raise ValueError(
                    f"{name}: the saved {key!r} has {source} and shape {saved_shape}, "
                    f"and this optimizer needs geometry {geometry} and shape {shape}; nothing was loaded"
                )

    def _received(self, key: str, value: Any, param: Tensor, group: dict[str, Any]) -> Any:
        """A saved value as the state of ``param`` here."""
        dtype = wide_dtype(param.dtype)
        if key == STEP:
            return self._count(value, param, group)
        if key == self.STATISTIC:
            return _empty_like(param, tuple(value.shape), dtype.to_real()).copy_(value)
        if key == self.AVERAGE:
            return torch.empty_like(param, dtype=dtype, requires_grad=False).copy_(value)
        return value

    def __setstate__(self, state: dict[str, Any]) -> None:
        for param, values in state.get("state", {}).items():
            if isinstance(param, Tensor):  # users' hooks may have put something else there
                for key, value in values.items():
                    values[key] = value.value if isinstance(value, _AsItIs) else value
        super().__setstate__(state)
        for group in self.param_groups:
            for name, value in self.defaults.items():  # options that are younger than a pickled optimizer
                group.setdefault(name, value)


@dataclass(frozen=True)
class _AsItIs:
    """Carries a value past torch's ``load_state_dict``, which would cast a tensor to the parameter's dtype."""

    value: Any


def _name_values(_: Optimizer, state_dict: StateDict) -> None:
    for group in state_dict["param_groups"]:
        group["geometry"] = str(group["geometry"])
        group["domain"] = None if group["domain"] is None else repr(group["domain"])


@functools.cache
def _say_that_all_rows_are_projected(name: str, domain: Domain) -> None:
    logging.getLogger("matrix_adagrad").warning(
        "%s has sparse gradients, and %r ties its rows together: every step projects all of them", name, domain
    )


@functools.lru_cache(maxsize=1 << 14)
def _statistic_shape(geometry: Geometry, shape: torch.Size) -> tuple[int, ...]:
    return geometry.statistic_shape(shape)


def _empty_like(param: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor whose dimensions lie in memory in the order of the parameter's, so that both are walked together."""
    if len(shape) != param.dim():
        return torch.empty(shape, dtype=dtype, device=param.device)
    order = sorted(range(len(shape)), key=lambda d: param.stride(d), reverse=True)
    return torch.empty_permuted(shape, order, dtype=dtype, device=param.device)
