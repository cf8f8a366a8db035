"""How a parameter's state is created, named, saved and loaded."""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import Optimizer, StateDict

from matrix_adagrad.geometry import Geometry, wide_dtype
from matrix_adagrad.optim.counters import COUNTERS, check_counters, counter_keys, new_counter, received_counter
from matrix_adagrad.optim.keywords import refuse_foreign
from matrix_adagrad.optim.saved import (
    FORMAT,
    FORMAT_KEY,
    SHAPE,
    STEP,
    check_array,
    check_count,
    check_format,
    check_shape,
    plain,
    words_for_lost,
    words_for_other_rows,
)
from matrix_adagrad.optim.step.config import RUN_OPTIONS, Config, check_options
from matrix_adagrad.optim.step.update import empty_like, is_sharded, local

__all__ = ["NUMBERS", "STEP", "StatefulOptimizer"]

NUMBERS = "param_numbers"  # in a part of a group, those of its parameters in the optimizer

_AS_CONSTRUCTED = ("geometry", "rescale", "domain", "momentum_dtype", "lazy")  # not restored from a saved state


class StatefulOptimizer(Optimizer):
    """An optimizer that keeps one number per scale for each parameter, and perhaps an average of its gradients."""

    STATISTIC: ClassVar[str]  # the state key of V_t; a geometry with several statistics adds their names
    AVERAGE: ClassVar[str] = ""  # the state key of the running average of gradients, if there is one
    CONFIG: ClassVar[type[Config]]

    def _name(self, group: dict[str, Any], i: int) -> str:
        """A parameter's name in error messages."""
        if group.get("param_names"):
            return f"parameter {group['param_names'][i]!r}"
        if NUMBERS in group:
            return f"parameter {group[NUMBERS][i]}"
        before = itertools.takewhile(lambda other: other is not group, self.param_groups)
        return f"parameter {sum(len(other['params']) for other in before) + i}"

    def _named(self, group: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
        return ((self._name(group, i), param) for i, param in enumerate(group["params"]))

    def init_state(self) -> None:
        """Create the state of every trainable parameter now, instead of at its first gradient.

        Checkpoints are then complete even before the first step, or if the model has unused parameters.
        """
        for group in self.param_groups:
            for i, param in enumerate(group["params"]):
                if param.requires_grad and not is_lazy(param):
                    self._state_of(group, i)

    def _check_new(self, name: str, param: Tensor, group: dict[str, Any]) -> None:
        """Raise an error that names the parameter if it cannot have a state."""

    @classmethod
    def _measured(cls, group: Mapping[str, Any], shape: torch.Size) -> Geometry:
        """The geometry whose statistics are kept for a parameter of this shape."""
        geometry: Geometry = group["geometry"].on(shape)
        return geometry

    @classmethod
    def _statistic_keys(cls, geometry: Geometry) -> tuple[str, ...]:
        names = (*geometry.statistics, *geometry.derived)
        return tuple([f"{cls.STATISTIC}_{name}" if name else cls.STATISTIC for name in names])

    def statistic_shapes(self, group: Mapping[str, Any], shape: Sequence[int]) -> dict[str, tuple[int, ...]]:
        """The shapes of the statistics that are kept for a parameter of this shape, by their keys."""
        geometry = self._measured(group, torch.Size(shape))
        return dict(zip(self._statistic_keys(geometry), _statistic_shapes(geometry, torch.Size(shape)), strict=True))

    @classmethod
    def _average_keys(cls, group: Mapping[str, Any]) -> tuple[str, ...]:
        """The key of the average of gradients, if one is kept."""
        return (cls.AVERAGE,) if cls.AVERAGE and cls.CONFIG.of_group(group).keeps_average else ()

    def _state_of(self, group: dict[str, Any], i: int) -> dict[str, Tensor]:
        """The state of a parameter of the group, made and checked."""
        param = group["params"][i]
        if not self.state.get(param):
            self._check_new(self._name(group, i), param, group)
        state: dict[str, Tensor] = self.state[param]
        geometry = self._measured(group, param.shape)
        keys, averages = self._statistic_keys(geometry), self._average_keys(group)
        dtypes = dict.fromkeys(keys, wide_dtype(param.dtype).to_real()) | dict.fromkeys(
            averages, _average_dtype(param, group)
        )
        if not state:
            made = {STEP: self._count(0, param, group)}
            for key in averages:
                made[key] = torch.zeros_like(param, dtype=dtypes[key], memory_format=torch.preserve_format)
            for key, statistic in zip(keys, _empty_statistics(param, geometry), strict=True):
                made[key] = statistic.fill_(group.get("initial_accumulator_value", 0.0))
            made |= {key: new_counter(key, param, 0) for key in self._counter_keys(param, group)}
            if not state:  # another thread may have been first, and may be looking: it sees all or nothing
                state.update(made)
        elif tuple([state[key].shape for key in keys if key in state]) != _statistic_shapes(geometry, param.shape):
            found = ", ".join(f"{key!r} of shape {tuple(v.shape)}" for key, v in state.items() if key != STEP)
            raise RuntimeError(
                f"{self._name(group, i)} has shape {tuple(param.shape)} and geometry {geometry}, "
                f"but its state has {found}, made for another: make a new optimizer"
            )
        elif self.AVERAGE and (self.AVERAGE in state) != bool(averages):  # an edited group has momentum now, or none
            if averages:
                average_dtype = dtypes[self.AVERAGE]
                state[self.AVERAGE] = torch.zeros_like(param, dtype=average_dtype, memory_format=torch.preserve_format)
            else:
                del state[self.AVERAGE]
        else:  # the parameter's dtype may have changed, as with model.double(), or the option
            for key, dtype in dtypes.items():
                if state[key].dtype is not dtype:
                    state[key] = state[key].to(dtype)
        return state

    def _counter_keys(self, param: Tensor, group: Mapping[str, Any]) -> tuple[str, ...]:
        """The keys of the counters of rows. Most groups have none."""
        return counter_keys(self.CONFIG.of_group(group), param) if group.get("lazy") == "exact" else ()

    @staticmethod
    def _count(steps: Any, param: Tensor, group: dict[str, Any]) -> Tensor:
        """The number of steps, stored the way torch stores it."""
        dtype = torch.float64 if torch.get_default_dtype() is torch.float64 else torch.float32
        device = param.device if group["capturable"] else "cpu"
        return torch.as_tensor(steps, dtype=dtype, device=device).reshape(()).clone()

    # ----------------------------------------------------------------------------------------------------- checkpoints

    def state_dict(self) -> StateDict:
        """The state in torch's format. Geometries and domains are saved by name, so that files hold plain types.

        After a step it is complete: it includes parameters that never had a gradient, as distributed checkpoints need.
        """
        if self.state:
            self.init_state()
        # Runs before all other post-hooks, so that users' hooks see what is saved.
        handle = self.register_state_dict_post_hook(lambda _, saved: self._complete(saved), prepend=True)
        try:
            return super().state_dict()
        finally:
            handle.remove()

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load a state. A state saved for another shape or geometry is refused, and nothing changes.

        Options are restored with the state, except those for how a step runs (``foreach``, ``fused``, ``capturable``,
        ``differentiable``) and ``momentum_dtype``, to which an average is converted. Statistics stay in float32 or
        wider, whatever the parameter's dtype.
        """
        # Runs after all other pre-hooks: users' hooks may rewrite the dict, and whatever they return is loaded.
        handle = self.register_load_state_dict_pre_hook(lambda _, given: self._prepare_to_load(given))
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()

    def _complete(self, state_dict: StateDict) -> None:
        state = state_dict["state"]
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            saved |= {key: plain(value) for key, value in saved.items() if key != "params"}
            saved |= {"geometry": str(group["geometry"]), "domain": _saved_domain(group), FORMAT_KEY: FORMAT}
            saved |= {key: str(saved[key]) for key in ("rescale", "momentum_dtype") if saved.get(key) is not None}
            for param, index in zip(group["params"], saved["params"], strict=True):
                if index in state:  # in a new dict: this one belongs to the optimizer
                    state[index] = {**state[index], **self.shape_to_save(param, group)}

    def _prepare_to_load(self, state_dict: StateDict) -> StateDict:
        groups, saved_groups = self.param_groups, state_dict["param_groups"]
        if [len(g["params"]) for g in groups] != [len(g["params"]) for g in saved_groups]:
            return state_dict  # torch's own check will report it
        state, param_groups, shapeless = dict(state_dict["state"]), [], []
        for group, saved in zip(groups, saved_groups, strict=True):
            check_format(saved)
            names, saved_names = group.get("param_names") or [], saved.get("param_names") or []
            if names != saved_names and sorted(names) == sorted(saved_names):
                raise ValueError(f"the saved parameters are {saved_names}, here they are {names}: nothing was loaded")
            options = {key: group[key] for key in self.defaults}
            stay = {key: group[key] for key in (*_AS_CONSTRUCTED, *RUN_OPTIONS) if key in group}
            param_groups.append({**options, **refuse_foreign(saved, options), **stay})
            param_groups[-1].pop(FORMAT_KEY, None)
            check_options(param_groups[-1])
            for (name, param), index in zip(self._named(group), saved["params"], strict=True):
                try:
                    self._check_loadable(param, group, saved, state.get(index))
                except ValueError as error:
                    raise ValueError(f"{name}: {error}; nothing was loaded") from None
                if state.get(index) and SHAPE not in state[index] and self.shape_to_save(param, param_groups[-1]):
                    is_ours, entries = "geometry" in saved, self._measured(group, param.shape).entries(param.shape)
                    shapeless += [name] * (is_ours or max(entries) > 1)  # others' full-size statistics show the shape
                if index in state:
                    unused = {SHAPE} if self._average_keys(param_groups[-1]) else {SHAPE, self.AVERAGE}
                    unused |= {*COUNTERS} - {*self._counter_keys(param, param_groups[-1])}
                    values = {key: value for key, value in state[index].items() if key not in unused}
                    state[index] = {key: _AsItIs(self._received(key, values[key], param, group)) for key in values}
        if shapeless:
            warnings.warn(
                f"the saved state does not record the shape of {shapeless[0]}{' and others' * (len(shapeless) > 1)}: "
                "an older version saved it, so a different shape cannot be detected",
                stacklevel=4,
            )
        return {**state_dict, "state": state, "param_groups": param_groups}

    def _check_loadable(
        self, param: Tensor, group: dict[str, Any], saved_group: dict[str, Any], saved: dict[str, Any] | None
    ) -> None:
        geometry = self._measured(group, param.shape)
        needed = dict(zip(self._statistic_keys(geometry), _statistic_shapes(geometry, param.shape), strict=True))
        needed |= dict.fromkeys(self._average_keys({**group, **saved_group}), tuple(param.shape))
        counters = {key: value for key, value in (saved or {}).items() if key in COUNTERS}
        saved = saved and {key: value for key, value in saved.items() if key not in COUNTERS}
        if saved and self.AVERAGE not in needed:
            saved = {key: value for key, value in saved.items() if key != self.AVERAGE}  # an older version's, unused
        if saved and {STEP, *needed, SHAPE} - {*saved, SHAPE} == {self.AVERAGE} and {*saved} <= {STEP, *needed, SHAPE}:
            raise ValueError(words_for_lost(self.AVERAGE, {**group, **saved_group}))
        if saved and {*saved, SHAPE} != {STEP, *needed, SHAPE}:
            found, wanted = (", ".join(key for key in keys if key != SHAPE) for keys in (saved, (STEP, *needed)))
            raise ValueError(f"the saved state has {found}, and {type(self).__name__} has {wanted}")
        for option in ("betas", "rescale"):  # two families may use the same keys
            if saved and option in saved_group and option not in group:
                own = type(self).__name__
                raise ValueError(f"the saved run had {option}={saved_group[option]!r}, which {own} lacks")
        rescale = str(group.get("rescale"))
        if str(saved_group.get("rescale", rescale)) != rescale:
            raise ValueError(f"the saved run had rescale={saved_group['rescale']}, and here it is {rescale}")
        domain = _saved_domain(group)
        if saved_group.get("domain", domain) not in (domain, group.get("domain")):
            raise ValueError(
                f"the saved run had the domain {saved_group['domain']}, and here it is {domain}: give the same domain, "
                "or take 'domain' out of the saved group"
            )
        asked = str(group["geometry"])
        saved_geometry = str(saved_group.get("geometry", asked))
        if saved_geometry != asked and not (saved and needed):
            raise ValueError(f"the saved run has geometry {saved_geometry}, and this optimizer has geometry {asked}")
        if not saved:
            return
        check_count(saved[STEP])
        merged = {**group, **saved_group, "lazy": group.get("lazy")}
        check_counters(counters, self._counter_keys(param, merged), param, int(saved[STEP]))
        check_shape(saved.get(SHAPE), tuple(param.shape))
        for key, shape in needed.items():
            value, is_average = saved[key], key == self.AVERAGE
            check_array(key, value, is_complex=is_average and param.is_complex())
            if saved_geometry != asked or tuple(value.shape) != shape:
                source = (
                    f"geometry {saved_geometry}" if "geometry" in saved_group else "no geometry (another optimizer's)"
                )
                raise ValueError(
                    f"the saved {key!r} has {source} and shape {tuple(value.shape)}, "
                    f"and this optimizer needs geometry {asked} and shape {shape}"
                    f"{words_for_other_rows(value.shape, shape) if saved_geometry == asked else ''}"
                )
            is_square = geometry.partitions and not is_average
            if is_square and not is_sharded(value) and (value < 0).any():
                raise ValueError(f"the saved {key!r} contains negative values; sums of squares cannot be negative")

    def shape_to_save(self, param: Tensor, group: Mapping[str, Any]) -> dict[str, Tensor]:
        """The parameter's shape, to save with its state: m row sums could come from an m×16 or an m×64 matrix."""
        geometry = self._measured(group, param.shape)
        is_by_entry = any(not partition.dims(param.shape) for partition in geometry.partitions)
        if is_by_entry or self._average_keys(group) or not geometry.statistics:
            return {}
        return {SHAPE: torch.tensor(param.shape, dtype=torch.int64, device="cpu")}

    def _received(self, key: str, value: Any, param: Tensor, group: dict[str, Any]) -> Any:
        """Convert a saved value to state for ``param`` here."""
        if self.state.get(param, {}).get(key) is value and _is_in_file(value):
            return value  # a checkpoint has filled it in place, and there may be no memory for a copy
        if key == STEP:
            return self._count(value, param, group)
        if key in COUNTERS:
            return received_counter(key, value, param)
        geometry = self._measured(group, param.shape)
        if key in (keys := self._statistic_keys(geometry)):
            return _filled(_empty_statistics(param, geometry)[keys.index(key)], value)
        if key == self.AVERAGE:
            return _filled(torch.empty_like(param, dtype=_average_dtype(param, group), requires_grad=False), value)
        return value

    def __setstate__(self, state: dict[str, Any]) -> None:
        for param, values in state.get("state", {}).items():
            if isinstance(param, Tensor):  # users' hooks may have put something else here
                for key, value in values.items():
                    values[key] = value.value if isinstance(value, _AsItIs) else value
        super().__setstate__(state)
        for group in self.param_groups:
            for name, value in self.defaults.items():  # options newer than the pickled optimizer
                group.setdefault(name, value)


@dataclass(frozen=True)
class _AsItIs:
    """Carries a value past torch's ``load_state_dict``, which would cast a tensor to the parameter's dtype."""

    value: Any


def _saved_domain(group: Mapping[str, Any]) -> str | None:
    return None if group.get("domain") is None else repr(group["domain"])


def _is_in_file(x: Any) -> bool:
    return type(x) is Tensor and x.is_cpu and x.untyped_storage().filename is not None


def _average_dtype(param: Tensor, group: Mapping[str, Any]) -> torch.dtype:
    asked: torch.dtype | None = group.get("momentum_dtype")
    return asked or wide_dtype(param.dtype)


@functools.lru_cache(maxsize=1 << 14)
def _statistic_shapes(geometry: Geometry, shape: torch.Size) -> tuple[tuple[int, ...], ...]:
    return (*geometry.statistic_shapes(shape), *geometry.derived_shapes(shape))


def _empty_statistics(param: Tensor, geometry: Geometry) -> list[Tensor]:
    dtype = wide_dtype(param.dtype).to_real()
    if is_sharded(param):
        from matrix_adagrad.optim.sharding import empty_statistics

        return empty_statistics(param, geometry, dtype)
    return [empty_like(param, shape, dtype) for shape in _statistic_shapes(geometry, param.shape)]


def _filled(state: Tensor, value: Tensor) -> Tensor:
    """Fill new state with a saved value. Either may be sharded."""
    if not (is_sharded(state) or is_sharded(value)):
        return state.copy_(value.detach())
    from matrix_adagrad.optim.sharding import shards_of

    with torch.no_grad():
        local(state).copy_(shards_of(value, state))
    return state
