"""The state of a parameter, as it is made, named, saved and loaded."""

from __future__ import annotations

import importlib
import itertools
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import Optimizer, StateDict

from matrix_adagrad.geometry import Geometry, wide_dtype
from matrix_adagrad.optim.options import check_options, refuse_foreign
from matrix_adagrad.optim.saved import SHAPE, STEP, check_array, check_count, check_shape, plain

__all__ = ["STEP", "StatefulOptimizer", "here", "is_sharded", "shards"]

# How a step is run is this optimizer's own affair; the rest of a group comes back with a checkpoint.
_WAYS = ("foreach", "fused", "capturable", "differentiable")


class StatefulOptimizer(Optimizer):
    """An optimizer that keeps one number a scale for each parameter, and perhaps an average of its gradients."""

    STATISTIC: ClassVar[str]  # the state key of V_t, one number a scale
    AVERAGE: ClassVar[str | None] = None  # the state key of the running average of gradients, if there is one

    def _name(self, group: dict[str, Any], i: int) -> str:
        """The words that an error message uses for a parameter."""
        if group.get("param_names"):
            return f"parameter {group['param_names'][i]!r}"
        before = itertools.takewhile(lambda other: other is not group, self.param_groups)
        return f"parameter {sum(len(other['params']) for other in before) + i}"

    def _named(self, group: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
        return ((self._name(group, i), param) for i, param in enumerate(group["params"]))

    def init_state(self) -> None:
        """Make the state of every trainable parameter now, instead of at its first gradient.

        A checkpoint of an optimizer that has not stepped, or of a model with unused parameters, is then complete.
        """
        for group in self.param_groups:
            for name, param in self._named(group):
                if param.requires_grad and not is_lazy(param):
                    if param not in self.state:
                        self._check_new(name, param, group)
                    self._state_of(param, group)

    def _check_new(self, name: str, param: Tensor, group: dict[str, Any]) -> None:
        """Raise an error that names a parameter which cannot have a state."""

    def _state_of(self, param: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[param]
        if state:
            if state[self.STATISTIC].dtype is not param.dtype:  # which is narrow, or complex, or has changed
                for key in filter(None, (self.STATISTIC, self.AVERAGE)):
                    state[key] = _followed(state[key], wide_dtype(param.dtype))
        else:
            dtype = wide_dtype(param.dtype)
            state[STEP] = self._count(0, param, group)
            if self.AVERAGE is not None:
                state[self.AVERAGE] = torch.zeros_like(param, dtype=dtype, memory_format=torch.preserve_format)
            state[self.STATISTIC] = _empty_statistic(param, group["geometry"]).fill_(self._start(group))
        return state

    def _start(self, group: dict[str, Any]) -> float:  # noqa: ARG002
        """Where the statistic starts."""
        return 0.0

    @staticmethod
    def _count(steps: Any, param: Tensor, group: dict[str, Any]) -> Tensor:
        """The number of steps, where and as torch keeps it."""
        dtype = torch.float64 if torch.get_default_dtype() is torch.float64 else torch.float32
        return (
            torch.as_tensor(steps, dtype=dtype, device=param.device if group["capturable"] else "cpu")
            .reshape(())
            .clone()
        )

    # ----------------------------------------------------------------------------------------------------- checkpoints

    def state_dict(self) -> StateDict:
        """The state, as of every torch optimizer; geometries and domains are saved by name: files hold plain types.

        After a step it is complete: parameters that never had a gradient are in it too, as checkpoints of many machines
        want them.
        """
        if self.state:
            self.init_state()
        # The first of the post-hooks: users' own see what is saved.
        handle = self.register_state_dict_post_hook(_add_what_is_saved, prepend=True)
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
        state, param_groups, shapeless = dict(state_dict["state"]), [], []
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
                if state.get(index) and SHAPE not in state[index] and self.shape_to_save(param, group):
                    is_ours, members = "geometry" in saved, group["geometry"].members(param.shape)
                    shapeless += [name] * (is_ours or members > 1)  # of others a statistic of full size is clear
                if index in state:
                    state[index] = {
                        key: _AsItIs(self._received(key, value, param, group))
                        for key, value in state[index].items()
                        if key != SHAPE
                    }
        if shapeless:
            warnings.warn(
                f"the saved state does not tell the shape of {shapeless[0]}{' and others' * (len(shapeless) > 1)}: it "
                "was saved by an older version, and if the shape was another one, this cannot be seen",
                stacklevel=4,
            )
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
        if saved and {*saved, SHAPE} != {STEP, *needed, SHAPE}:
            found, wanted = (", ".join(key for key in keys if key != SHAPE) for keys in (saved, (STEP, *needed)))
            raise ValueError(
                f"{name}: the saved state has {found}, and {type(self).__name__} has {wanted}; nothing was loaded"
            )
        domain = None if group["domain"] is None else repr(group["domain"])
        if saved_group.get("domain", domain) not in (domain, group["domain"]):
            raise ValueError(
                f"{name}: the saved run had the domain {saved_group['domain']}, and here it is {domain}: give the same "
                "domain, or take 'domain' out of the saved group; nothing was loaded"
            )
        saved_geometry = str(saved_group.get("geometry", geometry))
        if not saved:
            if saved_geometry != str(geometry):
                raise ValueError(
                    f"{name}: the saved run has geometry {saved_geometry}, and this optimizer has geometry {geometry}; "
                    "nothing was loaded"
                )
            return
        check_count(name, saved[STEP])
        check_shape(name, saved.get(SHAPE), tuple(param.shape))
        for key, shape in needed.items():
            check_array(name, key, saved[key], is_complex=key == self.AVERAGE and param.is_complex())
            if key == self.STATISTIC and not is_sharded(saved[key]) and (saved[key] < 0).any():
                raise ValueError(
                    f"{name}: the saved {key!r} has numbers below 0, and it is squares; nothing was loaded"
                )
            saved_shape = tuple(saved[key].shape)
            if saved_geometry != str(geometry) or saved_shape != shape:
                source = (
                    f"geometry {saved_geometry}" if "geometry" in saved_group else "no geometry (another optimizer's)"
                )
                raise ValueError(
                    f"{name}: the saved {key!r} has {source} and shape {saved_shape}, "
                    f"and this optimizer needs geometry {geometry} and shape {shape}; nothing was loaded"
                )

    def shape_to_save(self, param: Tensor, group: Mapping[str, Any]) -> dict[str, Tensor]:
        """The parameter's shape, as part of its saved state: m sums of rows could be of m×16 as well as of m×64."""
        if self.AVERAGE is not None or not group["geometry"].dims(param.shape):
            return {}
        return {SHAPE: torch.tensor(param.shape, dtype=torch.int64, device="cpu")}

    def _received(self, key: str, value: Any, param: Tensor, group: dict[str, Any]) -> Any:
        """A saved value as the state of ``param`` here."""
        dtype = wide_dtype(param.dtype)
        if key == STEP:
            return self._count(value, param, group)
        if key == self.STATISTIC:
            return _filled(_empty_statistic(param, group["geometry"]), value)
        if key == self.AVERAGE:
            return _filled(torch.empty_like(param, dtype=dtype, requires_grad=False), value)
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


def _add_what_is_saved(optimizer: Optimizer, state_dict: StateDict) -> None:
    assert isinstance(optimizer, StatefulOptimizer)
    state = state_dict["state"]
    for group, saved in zip(optimizer.param_groups, state_dict["param_groups"], strict=True):
        saved |= {key: plain(value) for key, value in saved.items() if key != "params"}
        saved["geometry"] = str(group["geometry"])
        saved["domain"] = None if group["domain"] is None else repr(group["domain"])
        for param, index in zip(group["params"], saved["params"], strict=True):
            if index in state:  # in a dict of its own: this one is the optimizer's
                state[index] = {**state[index], **optimizer.shape_to_save(param, group)}


def _followed(state: Tensor, dtype: torch.dtype) -> Tensor:
    """A state in the dtype of the arithmetic: its parameter may have got another one, as by ``model.double()``."""
    return state.to(dtype if state.is_complex() else dtype.to_real())  # statistics of complex parameters are real


def is_sharded(x: Any) -> bool:
    """Whether a tensor is a DTensor, asked without importing them."""
    return type(x) not in (Tensor, Parameter) and hasattr(x, "device_mesh")


def shards() -> ModuleType:
    """The module of that name, which needs a second to be imported, for who has sharded parameters."""
    return importlib.import_module("matrix_adagrad.optim.shards")


def here(x: Tensor) -> Tensor:
    """The part of a tensor that lies on this machine: all of it, unless it is sharded."""
    part: Tensor = shards().here(x) if is_sharded(x) else x
    return part


def _empty_statistic(param: Tensor, geometry: Geometry) -> Tensor:
    dtype = wide_dtype(param.dtype).to_real()
    if is_sharded(param):
        statistic: Tensor = shards().empty_statistic(param, geometry, _empty_like, dtype)
        return statistic
    return _empty_like(param, geometry.statistic_shape(param.shape), dtype)


def _filled(state: Tensor, value: Tensor) -> Tensor:
    """New state with a saved value, which may be whole or lie in shards, whatever the state does."""
    if not (is_sharded(state) or is_sharded(value)):
        return state.copy_(value.detach())
    with torch.no_grad():
        shards().here(state).copy_(shards().taken_over(value, state))
    return state


def _empty_like(param: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor whose dimensions lie in memory in the order of the parameter's, so that both are walked together."""
    if len(shape) != param.dim():
        return torch.empty(shape, dtype=dtype, device=param.device)
    order = sorted(range(len(shape)), key=lambda d: param.stride(d), reverse=True)
    return torch.empty_permuted(shape, order, dtype=dtype, device=param.device)
