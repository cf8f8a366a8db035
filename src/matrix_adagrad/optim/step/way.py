"""Which way a step is run: the user's own choice, else the fastest that covers the tensors."""

from __future__ import annotations

import array
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from matrix_adagrad import native
from matrix_adagrad.optim.step.foreach import foreach
from matrix_adagrad.optim.step.fused import NotCoveredError, compiled, describe, run
from matrix_adagrad.optim.step.reference import reference
from matrix_adagrad.optim.step.rule import Batch, Parts, Rule, are_plain
from matrix_adagrad.optim.step.sparse import sparse


def ways_to_run(batch: Batch, rule: Rule, group: Mapping[str, Any]) -> Iterator[Callable[[], None]]:
    """The step, ready to be run, in pieces; an error if the way that the user asks for is not possible."""
    if group["fused"] or _may_be_fused(group):
        if not torch.compiler.is_compiling() and are_plain(batch.params):
            fields, covered, rest = _covered(batch, group)
            if covered:
                yield functools.partial(run, fields, batch.some(covered) if rest else batch, rule)
            if not rest:
                return
            batch = batch.some(rest)
        elif group["fused"]:
            yield functools.partial(compiled, batch, rule)
            return
    if batch.grads[0].is_sparse:
        yield functools.partial(sparse, batch, rule)
    else:
        yield functools.partial(_in_torch(batch, group), batch, rule)


def way_in_parts(batch: Batch, group: Mapping[str, Any]) -> Parts:
    """The same for a step with a pause between reading and moving; for this batch, whose tensors are plain, alone."""
    otherwise = _in_torch(batch, group)
    if not (group["fused"] or _may_be_fused(group)):
        return otherwise
    sums = [torch.empty_like(statistic) for statistic in batch.statistics]
    fields, covered, rest = _covered(batch, group, sums)
    if not covered:
        return otherwise
    native_some, some = batch.some(covered), batch.some(rest)

    def read(_: Batch, rule: Rule) -> list[Tensor]:
        run(fields, native_some, rule, native.READ)
        for i, squares in zip(rest, otherwise.read(some, rule), strict=True):
            sums[i] = squares
        return sums

    def move(_: Batch, rule: Rule) -> None:
        run(fields, native_some, rule, native.MOVE)
        if rest:
            otherwise.move(some, rule)

    return Parts(read, otherwise.accumulate, move)


def _covered(
    batch: Batch, group: Mapping[str, Any], sums: list[Tensor] | None = None
) -> tuple[array.array[int], list[int], list[int]]:
    """What the kernels need to know of the tensors that they cover, the numbers of these, and of the rest."""
    fields, covered, rest = array.array("q"), [], []
    for i in range(len(batch.params)):
        try:
            fields.frombytes(describe(batch, i, None if sums is None else sums[i]))
            covered.append(i)
        except NotCoveredError as reason:
            if group["fused"]:
                raise reason.refusal() from None
            rest.append(i)
    return fields, covered, rest


def _may_be_fused(group: Mapping[str, Any]) -> bool:
    return group["fused"] is None and group["foreach"] is None and not group["differentiable"]


def _in_torch(batch: Batch, group: Mapping[str, Any]) -> Parts:
    """The user's own choice, else foreach wherever its operators work: on plain tensors, without autograd."""
    if group["foreach"] is not None:
        return foreach if group["foreach"] else reference
    return foreach if not group["differentiable"] and are_plain([*batch.params, *batch.grads]) else reference
