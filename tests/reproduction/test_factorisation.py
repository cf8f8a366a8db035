"""A stack of models is trained as each of them would be, and as a user would train it with nn.Embedding and "
"autograd."""

import math

import pytest
import torch
from torch import nn

from matrix_adagrad import MatrixAdaGrad
from reproduction import factorisation
from reproduction.factorisation import STARTS, Config, run
from tests.reproduction import fakes

LRS = (0.05, 0.2, 0.7)
VARIANTS = {
    "default": {},
    "full batch": {"batch": 0},
    "unbiased": {"unbiased": True},
    "centred": {"centred": True},
    "another start": {"start": "U(0, 1)/√k"},
    "not validated": {"validated": False},
}


@pytest.fixture(autouse=True)
def _drawn(monkeypatch):
    drawn = fakes.ratings()
    monkeypatch.setattr(factorisation, "_ratings", lambda _: drawn)


def small(geometry="row", lrs=LRS, **options):
    return Config(geometry, lrs, **{"batch": 64, "epochs": 4, "factors": 6, **options})


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("geometry", ["row", "entry", "column"])
def test_a_stack_equals_single_runs(geometry, variant):
    stack = run(small(geometry, **VARIANTS[variant]))
    for number, lr in enumerate(LRS):
        single = run(small(geometry, (lr,), **VARIANTS[variant]))
        assert stack.test[number] == pytest.approx(single.test[0], rel=1e-5)
        assert stack.validation[number] == pytest.approx(single.validation[0], rel=1e-5)
        assert stack.train[number] == pytest.approx(single.train[0], rel=1e-5)
    assert stack.state == single.state


def as_a_user(config):
    """The same with nn.Embedding, autograd and a loss as in the paper."""
    data = fakes.ratings()
    train, _, test = factorisation._split(config, data)
    random = torch.Generator().manual_seed(1000 * config.fold + config.seed)
    tables = nn.ModuleList(nn.Embedding(size, config.factors, sparse=True) for size in (30, 20))
    for table in tables:
        table.weight.data = STARTS[config.start](*table.weight.shape, random)
    optimizer = MatrixAdaGrad(tables.parameters(), lr=config.lrs[0], geometry=config.geometry)
    counts = [torch.bincount(index, minlength=30) for index in (train.users, train.items)]
    for _ in range(config.epochs):
        order = torch.randperm(len(train.values), generator=random)
        for batch in order.split(config.batch or len(order)):
            u, v = tables[0](train.users[batch]), tables[1](train.items[batch])
            share_u, share_v = 1.0, 1.0
            if config.unbiased:
                share_u, share_v = 1 / counts[0][train.users[batch], None], 1 / counts[1][train.items[batch], None]
            error = (u * v).sum(1) - train.values[batch]
            penalty = (share_u * u.square()).sum() + (share_v * v.square()).sum()
            loss = error.square().sum() + config.decay / 2 * penalty
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        error = (tables[0](test.users) * tables[1](test.items)).sum(1) - test.values
    return error.square().mean().sqrt().item()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("geometry", ["row", "entry", "column"])
def test_a_run_is_what_a_user_would_write(geometry, variant):
    config = small(geometry, (0.3,), **VARIANTS[variant])
    assert run(config).test[0][-1] == pytest.approx(as_a_user(config), rel=1e-5)


@pytest.mark.parametrize(
    ("stored_by_columns", "stored_by_rows"), [("column", "row"), ("row", "column"), ("entry", "entry")]
)
def test_transposed_storage_exchanges_rows_and_columns(stored_by_columns, stored_by_rows):
    columns, rows = run(small(stored_by_columns, (0.3,), transposed=True)), run(small(stored_by_rows, (0.3,)))
    assert columns.test[0] == pytest.approx(rows.test[0], rel=1e-5)
    assert columns.state == rows.state


def test_no_rating_is_in_two_parts_and_the_folds_are_everything():
    data = fakes.ratings()
    tests = []
    for fold in range(factorisation.FOLDS):
        parts = factorisation._split(small(fold=fold), data)
        pairs = [set(zip(part.users.tolist(), part.items.tolist(), strict=True)) for part in parts]
        assert sum(map(len, pairs)) == len(set.union(*pairs)) == 400
        assert [len(some) for some in pairs] == [288, 32, 80]
        tests.append(pairs[2])
    assert len(set.union(*tests)) == 400


def test_all_geometries_have_the_same_split_batches_and_start():
    row, column = (run(small(geometry, (1e-6,))) for geometry in ("row", "column"))  # nothing moves
    assert row.test[0] == pytest.approx(column.test[0], rel=1e-5)
    assert run(small("row", (1e-6,), fold=1)).test[0] != pytest.approx(row.test[0], rel=1e-3)


def test_the_state_has_one_number_a_row_a_column_or_an_entry():
    states = {geometry: run(small(geometry, epochs=1)).state for geometry in ("row", "column", "entry")}
    assert states == {"row": 4 * 50, "column": 4 * 12, "entry": 4 * 50 * 6}


def test_a_run_that_goes_astray_has_an_infinite_rmse():
    assert run(small("entry", (0.1, 1e30), epochs=2)).test[1][-1] == math.inf


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"geometry": "whole"}, "geometry must be 'row', 'column' or 'entry', got 'whole'"),
        ({"start": "zero"}, "start must be one of .*, got 'zero'"),
        ({"fold": 5}, "fold must be from 0 to 4, got 5"),
        ({"lrs": ()}, r"lrs must hold at least one learning rate.* got \(\)"),
        ({"transposed": True, "lrs": (1, 2)}, "just one if transposed"),
    ],
)
def test_wrong_configs_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        Config(**options)
