"""Rows that are behind, and how they are brought up to date: ``lazy="exact"``."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from matrix_adagrad.geometry import wide_dtype
from matrix_adagrad.optim.counters import COUNTERS, new_counter
from matrix_adagrad.optim.saved import STEP
from matrix_adagrad.optim.state import StatefulOptimizer
from matrix_adagrad.optim.step.lazy import DECAY, LAST_DECAY, Lag
from matrix_adagrad.optim.streams import Streams

__all__ = ["LazyOptimizer"]


class LazyOptimizer(StatefulOptimizer):
    """An optimizer that can leave rows alone until they are used, and catch up then."""

    _streams: Streams
    _places: dict[int, tuple[dict[str, Any], int]]  # of parameters: the group, and the position in it

    def catch_up(self, param: Tensor | None = None, rows: Tensor | None = None) -> None:
        r"""With ``lazy="exact"``: bring rows up to the last step, as before they are read.

        A row that had no gradient for some steps has missed their weight decay, and so have its running averages:

        .. math:: X_i \leftarrow X_i \prod_t (1 - \eta_t \lambda), \qquad
            V_i \leftarrow \beta_2^{\text{steps}} V_i, \qquad D_i \leftarrow \beta_1^{\text{steps}} D_i

        A step does this for the rows that it moves. `keep_rows_current` does it for the rows that a module reads. Call
        it yourself before all rows are read, such as before an evaluation or an export. Checkpoints need it not: they
        hold what each row has missed. With ``lazy="touched"`` there is nothing to do.

        Args:
            param: one of the parameters. None: all of them.
            rows: their numbers, in any order and shape, perhaps repeated. None: all of them.

        Example:
            >>> import torch
            >>> from matrix_adagrad import RowAdaGrad
            >>> table = torch.nn.Embedding.from_pretrained(torch.ones(3, 1), freeze=False, sparse=True)
            >>> optimizer = RowAdaGrad(
            ...     table.parameters(), lr=0.1, weight_decay=5.0, decoupled_weight_decay=True, lazy="exact"
            ... )
            >>> for _ in range(2):
            ...     optimizer.zero_grad()
            ...     (0 * table(torch.tensor([0]))).sum().backward()
            ...     optimizer.step()
            >>> table.weight.data.flatten()
            tensor([0.2500, 1.0000, 1.0000])
            >>> optimizer.catch_up(table.weight, torch.tensor([2]))
            >>> table.weight.data.flatten()
            tensor([0.2500, 1.0000, 0.2500])
        """
        if param is None and rows is not None:
            raise TypeError("rows are those of a parameter: give param too")
        groups = [self._group_of(param)] if param is not None else self.param_groups
        for group in groups:
            for own in group["params"] if param is None else [param]:
                if self.state.get(own):  # before the first step nothing is behind
                    self._catch_up(own, group, rows)

    def _catch_up(self, param: Tensor, group: dict[str, Any], rows: Tensor | None) -> None:
        config, lag = self.CONFIG.of_group(group), self._lag(param, group, self.state[param])
        if lag is None:
            return
        if rows is not None and rows.numel() and param.is_cpu:
            low, high = rows.aminmax()
            if low < 0 or high >= len(param):
                raise IndexError(f"rows must be from 0 to {len(param) - 1}, got {int(low)} to {int(high)}")
        if config.is_random:
            self._streams.assign([lag], config)
        lag.catch_up(config, rows)

    def _state_of(self, group: dict[str, Any], i: int) -> dict[str, Tensor]:
        state = super()._state_of(group, i)
        if group.get("lazy") == "exact" or not state.keys().isdisjoint(COUNTERS):
            self._set_counters(state, group["params"][i], group)
        return state

    def _set_counters(self, state: dict[str, Tensor], param: Tensor, group: dict[str, Any]) -> None:
        """Keep the counters that the group needs: it may have been edited, or the parameter's dtype changed."""
        keys = self._counter_keys(param, group)
        if any(key in state and key not in keys for key in COUNTERS):
            if (lag := self._lag(param, group, state)) is not None:
                lag.catch_up(self.CONFIG.of_group(group))  # while there are counters
            for key in COUNTERS:
                if key in state and key not in keys:
                    del state[key]
        for key in keys:
            if key not in state:  # from now on
                state[key] = new_counter(key, param, state[STEP])
            elif key == LAST_DECAY:
                state[key] = state[key].to(wide_dtype(param.dtype).to_real())
            if key != DECAY and len(state[key]) != len(param):
                raise RuntimeError(
                    f"a parameter of shape {tuple(param.shape)} has {key!r} of {len(state[key])} rows: "
                    "make a new optimizer"
                )

    def _lag(self, param: Tensor, group: dict[str, Any], state: dict[str, Tensor]) -> Lag | None:
        """What a parameter's rows may have missed. None if they miss nothing."""
        if state.keys().isdisjoint(COUNTERS):
            return None
        geometry = self._measured(group, param.shape)
        statistics = tuple([state[key] for key in self._statistic_keys(geometry)])
        average = state.get(self.AVERAGE) if self.AVERAGE else None
        last_step, last_decay, decay = map(state.get, COUNTERS)
        return Lag(param, average, statistics, geometry, state[STEP], last_step, last_decay, decay)

    def _group_of(self, param: Tensor) -> dict[str, Any]:
        group, i = self._places.get(id(param), ({"params": []}, 0))
        if i < len(group["params"]) and group["params"][i] is param:
            return group
        self._places = {id(own): (group, i) for group in self.param_groups for i, own in enumerate(group["params"])}
        if id(param) not in self._places:
            raise ValueError(f"param, of shape {tuple(param.shape)}, is not among the optimizer's parameters")
        return self._places[id(param)][0]
