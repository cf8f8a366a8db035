"""Bags and tables that are none are refused, with the table's name."""

import re

import numpy as np
import pytest
import torch
from torch import nn

from matrix_adagrad import (
    EmbeddingBags,
    RowAdaGrad,
    Table,
    native,
    step_in_backward,
)
from tests.bags.tables import bags_of, copies, one_table
from tests.optim.training import assert_bitwise

pytestmark = pytest.mark.skipif(bool(native.missing()), reason=f"no native kernels: {native.missing()}")


WITHOUT_KERNELS = pytest.mark.parametrize("has_kernels", [True, False], ids=["native", "torch"])


def take_away_kernels(monkeypatch, has_kernels):
    if not has_kernels:
        monkeypatch.setattr(native, "missing", lambda: "taken away")


@WITHOUT_KERNELS
@pytest.mark.parametrize("padding", [None, 0])
@pytest.mark.parametrize("wrong", [-1, 20, 2**40, -(2**60)])
def test_a_row_that_no_table_has_is_refused_with_the_tables_name(wrong, padding, has_kernels, monkeypatch):
    take_away_kernels(monkeypatch, has_kernels)
    bags = bags_of({"user": (50, 8), "items": Table(20, 3, features=("seen", "bought"), padding_idx=padding)})
    optimizer = RowAdaGrad(bags.parameters())
    step_in_backward(optimizer)
    low, high = sorted([wrong, 7])
    message = f"the table 'items' has 20 rows, and its bags of 'bought' have rows {low} to {high}"
    with pytest.raises(IndexError, match=re.escape(message)):
        bags({"user": [[40]], "seen": [[1]], "bought": [[7, wrong]]})


@WITHOUT_KERNELS
@pytest.mark.parametrize("padding", [None, 0])
@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([0, 1, 2, 3, 3], "offsets must go from 0 to the 4 indices, got 0 to 3"),
        ([1, 1, 2, 3, 4], "offsets must go from 0 to the 4 indices, got 1 to 4"),
        ([-1, 1, 2, 3, 4], "offsets must go from 0"),
        ([0, 1, 2, 3, 5], "offsets must go from 0"),
        ([0, 2, 1, 3, 4], "offsets must never decrease"),
        ([0, 1, 3, 2, 4], "offsets must never decrease"),
        ([0, -1, 2, 3, 4], "offsets must never decrease"),
        ([0, 1, 9, 3, 4], "offsets must never decrease"),
        ([0, 2**62, 2, 3, 4], "offsets must never decrease"),
        ([0, 1, 2, 4], "offsets must have one number more than 2 features times the bags of each, got 4"),
        ([], "offsets must be a list of integers, got shape .0,. and dtype torch.float32"),
        ([[0, 1, 2, 3, 4]], "offsets must be a list of integers"),
        ([0.0, 1.0, 2.0, 3.0, 4.0], "offsets must be a list of integers"),
        ([True] * 5, "offsets must be a list of integers"),
    ],
    ids=str,
)
def test_offsets_that_are_none_are_refused(offsets, message, padding, has_kernels, monkeypatch):
    take_away_kernels(monkeypatch, has_kernels)
    bags = bags_of({"user": Table(10, 2, padding_idx=padding), "type": (10, 2)})
    with pytest.raises(ValueError, match=message):
        bags(torch.tensor([1, 2, 3, 4]), torch.tensor(offsets))


@pytest.mark.parametrize(
    ("user", "message"),
    [
        (([1, 2, 3], [0, 1, 2]), "offsets of 'user' must go from 0 to the 3 indices, got 0 to 2"),
        (([1, 2], [1, 1, 2]), "offsets of 'user' must go from 0 to the 2 indices, got 1 to 2"),
        (([1, 2], [0, 1, 3]), "offsets of 'user' must go from 0"),
        (([1, 2], []), "offsets of 'user' must go from 0"),
        (([1, 2], [0, 2]), r"all features need the same number of bags, got \[1, 2\]"),
        (([1, 2, 3], [0, 4, 3]), "offsets must never decrease"),
        ([1, 2], "must be a pair of indices and offsets, or a matrix of integers"),
        ([[1.0], [2.0]], "must be a pair of indices and offsets, or a matrix of integers"),
        (([1.0, 2.0], [0, 1, 2]), "indices of 'user' must be a list of integers"),
    ],
    ids=str,
)
def test_bags_by_name_that_are_none_are_refused(user, message):
    bags = bags_of({"user": (10, 2), "type": (10, 2)})
    with pytest.raises(ValueError, match=message):
        bags({"user": user, "type": [[1], [2]]})


def test_missing_and_unknown_features_are_named():
    bags = bags_of({"user": (10, 2), "type": (10, 2)})
    with pytest.raises(ValueError, match=r"\['type'\] are missing, \['kind'\] are unknown"):
        bags({"user": [[1]], "kind": [[1]]})
    with pytest.raises(ValueError, match="offsets are missing, and indices are a Tensor"):
        bags(torch.tensor([1, 2]))


def test_weights_that_do_not_fit_are_refused():
    index, offsets = torch.tensor([1, 2]), torch.tensor([0, 2])
    with pytest.raises(ValueError, match="one number for each of the 2 indices, got shape"):
        one_table()(index, offsets, torch.ones(3))
    with pytest.raises(ValueError, match="for tables with mode='sum', and some have mode='mean'"):
        one_table(mode="mean")(index, offsets, torch.ones(2))
    with pytest.raises(ValueError, match="offsets are missing"):
        one_table()({"user": [[1]]}, per_sample_weights=torch.ones(1))


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({}, "tables must name at least one table"),
        ({"a.b": (1, 1)}, "no dots"),
        ({"": (1, 1)}, "must have letters"),
        ({"a": (-1, 1)}, "rows ≥ 0"),
        ({"a": (1, 0)}, "width ≥ 1"),
        ({"a": Table(1, 1, mode="max")}, "the mode of the table 'a' must be"),
        ({"a": Table(3, 1, padding_idx=3)}, "padding_idx of the table 'a' must be one of its 3 rows, got 3"),
        ({"a": Table(3, 1, features=("b", "b"))}, "the feature 'b' reads two tables, or is listed twice"),
        ({"a": (3, 1), "b": Table(3, 1, features=("a",))}, "the feature 'a' reads two tables"),
        ({"a": Table(3, 1, features=())}, "features of the table 'a' must be a tuple of names"),
        ({"a": Table(3, 1, features="seen")}, "features of the table 'a' must be a tuple of names, got 'seen'"),
    ],
    ids=str,
)
def test_tables_that_are_none_are_refused(tables, message):
    with pytest.raises(ValueError, match=message):
        EmbeddingBags(tables)


def test_a_table_of_another_width_is_refused_and_one_with_more_rows_is_read():
    bags = bags_of({"user": (10, 4), "type": (10, 3)})
    bags([1, 2], [0, 1, 2])
    bags.tables["type"] = nn.Parameter(torch.ones(500, 3))
    assert bags([1, 400], [0, 1, 2])[0, 4:].eq(1).all()
    bags.tables["type"] = nn.Parameter(torch.ones(10, 70))
    with pytest.raises(ValueError, match="the table 'type' was made with width 3, and is 70 wide now"):
        bags([1, 2], [0, 1, 2])
    with pytest.raises(ValueError, match="the table 'user' was made with width 4, and is 5 wide now"):
        torch.func.functional_call(bags, {"tables.user": torch.ones(10, 5)}, ([1, 2], [0, 1, 2]))
    with pytest.raises(KeyError, match="there is no table 'kind', only 'user', 'type'"):
        bags.tables["kind"] = nn.Parameter(torch.ones(10, 3))


@pytest.mark.parametrize("in_backward", [False, True])
@pytest.mark.parametrize("what", ["indices", "offsets", "weights"])
def test_lists_that_torch_sees_change_before_the_backward_pass_are_refused(what, in_backward):
    bags = bags_of({"user": (10, 4), "type": (10, 4)})
    if in_backward:
        optimizer = RowAdaGrad(bags.parameters())
        step_in_backward(optimizer)
    lists = {"indices": torch.tensor([1, 2, 3]), "offsets": torch.tensor([0, 2, 3]), "weights": torch.ones(3)}
    out, before = bags(*lists.values()).sum(), copies(bags)
    lists[what].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()
    assert_bitwise(list(bags.tables.values()), list(before.values()))


def step_along(out, optimizer):
    out.backward()
    optimizer.step()


@pytest.mark.parametrize("in_backward", [False, True])
@pytest.mark.parametrize(
    ("what", "wrong"),
    [
        ("indices", [1, 2, 10]),
        ("indices", [1, 2, -1]),
        ("indices", [1, 2, 2**40]),
        ("offsets", [0, 3, 2]),
        ("offsets", [0, 2, 4]),
        ("offsets", [0, 2, 2**50]),
        ("offsets", [0, -5, 3]),
        ("offsets", [-1, 2, 3]),
        ("offsets", [-(2**50), 2, 3]),
    ],
    ids=str,
)
def test_lists_that_numpy_changes_before_the_backward_pass_move_nothing(what, wrong, in_backward):
    """Torch does not see these writes. Whatever becomes of the gradient, no other memory is read or written."""
    bags = bags_of({"user": (10, 4), "type": (10, 4)})
    optimizer = RowAdaGrad(bags.parameters())
    if in_backward:
        step_in_backward(optimizer)
    lists = {"indices": np.array([1, 2, 3]), "offsets": np.array([0, 2, 3])}
    for is_first in (True, False):  # as long as the tables are not known, and later
        own = {name: array.copy() for name, array in lists.items()}
        out, before = bags(*own.values()).sum(), copies(bags)
        optimizer.zero_grad()
        own[what][:] = wrong
        with pytest.raises((IndexError, ValueError, RuntimeError)):
            step_along(out, optimizer)
        assert_bitwise(list(bags.tables.values()), list(before.values()))
        if is_first:
            optimizer.zero_grad()
            bags(*lists.values()).sum().backward()
            optimizer.step()
