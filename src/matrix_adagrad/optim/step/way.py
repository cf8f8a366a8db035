"""Which way a step is run: the user's own choice, else the fastest that covers the tensors."""

from __future__ import annotations

import array
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from matrix_adagrad.optim.step.foreach import foreach
from matrix_adagrad.optim.step.fused import NotCoveredError, compiled, describe, run
from matrix_adagrad.optim.step.reference import reference
from matrix_adagrad.optim.step.rule import Batch, Rule
from matrix_adagrad.optim.step.sparse import sparse


def ways_to_run(batch: Batch, rule: Rule, group: Mapping[str, Any]) -> Iterator[Callable[[], None]]:
    """The step, ready to be run, in parts; an error if the way that the user asks for is not possible."""
    if group["fused"] or _may_be_fused(group):
        if not torch.compiler.is_compiling() and _are_plain(batch.params):
            fields, covered, batch = _covered(batch, rule, group)
            if covered.params:
                yield functools.partial(run, fields, covered, rule)
        elif group["fused"]:
            yield functools.partial(compiled, batch, rule)
            return
    if batch.params and batch.grads[0].is_sparse:
        yield functools.partial(sparse, batch, rule)
    elif batch.params:
        yield functools.partial(foreach if _runs_foreach(batch.params, group) else reference, batch, rule)


def _covered(batch: Batch, rule: Rule, group: Mapping[str, Any]) -> tuple[array.array[int], Batch, Batch]:
    """What the kernels need to know of the tensors that they cover, these tensors, and the rest."""
    fields, covered, rest = array.array("q"), [], []
    for i in range(len(batch.params)):
        try:
            fields.extend(describe(batch, rule, i))
            covered.append(i)
        except NotCoveredError as reason:
            if group["fused"]:
                raise reason.refusal() from None
            rest.append(i)
    if not rest:
        return fields, batch, Batch([], [], [], [], [])
    return fields, _some(batch, covered), _some(batch, rest)


def _some(batch: Batch, which: list[int]) -> Batch:
    return Batch(*[[tensors[i] for i in which] if tensors else [] for tensors in batch])


def _may_be_fused(group: Mapping[str, Any]) -> bool:
    return group["fused"] is None and group["foreach"] is None and not group["differentiable"]


def _runs_foreach(params: list[Tensor], group: Mapping[str, Any]) -> bool:
    """The user's own choice, else foreach wherever its operators work: on plain tensors, without autograd."""
    if group["foreach"] is not None:
        return bool(group["foreach"])
    return not group["differentiable"] and _are_plain(params)


def _are_plain(params: list[Tensor]) -> bool:
    return all(type(param) in (Tensor, Parameter) for param in params)
