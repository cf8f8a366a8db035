"""A stack of models is trained as each of them would be, and as a user would train it with nn.Embedding and
autograd."""

import itertools
import math

import pytest
import torch
from torch import nn

from matrix_adagrad import MatrixAdaGrad
from reproduction.movielens import factorisation
from reproduction.movielens.factorisation import FOLDS, STARTS, Config, Run, run
from tests.reproduction.movielens.fakes import ratings

LRS = (0.05, 0.2, 0.7)
VARIANTS = {
    "default": {},
    "full batch": {"batch": 0},
    "λ once per rating": {"per_rating": True},
    "centred": {"centred": True},
    "another start": {"start": "U(0, 1)/√k"},
}
GEOMETRIES = ("column", "entry", "row")


@pytest.fixture(autouse=True)
def _drawn(monkeypatch):
    drawn = ratings()
    monkeypatch.setattr(factorisation, "_ratings", lambda _: drawn)


def small(*runs, **options):
    return Config(runs, **{"batch": 64, "epochs": 4, "factors": 6, "measured": (1, 4), "trained": (2, 4), **options})


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_stack_equals_single_runs(variant):
    """Of all geometries, other folds, other seeds, and each with learning rates of its own."""
    runs = [
        Run(geometry, held_out, tuple(factor * lr for lr in LRS), seed)
        for geometry in GEOMETRIES
        for held_out, seed, factor in (((0, 1), 0, 1.0), ((1, 3), 0, 0.7), ((0, 1), 2, 1.3))
    ]
    stack = run(small(*runs, **VARIANTS[variant]))
    for r, each in enumerate(runs):
        for number, lr in enumerate(each.lrs):
            single = run(small(Run(each.geometry, each.held_out, (lr,), each.seed), **VARIANTS[variant]))
            for fold in (0, 1):
                assert stack.held_out[r][fold][number] == pytest.approx(single.held_out[0][fold][0], rel=1e-5)
            assert stack.train[r][number] == pytest.approx(single.train[0][0], rel=1e-5)
        assert (stack.constant[r], stack.state[r]) == (single.constant[0], single.state[0])


def as_a_user(config):
    """The same with nn.Embedding, autograd and the paper's loss, of which each rating takes its share."""
    (own,) = config.runs
    train, test = factorisation._split(ratings(), own.held_out, config.centred)
    random = torch.Generator().manual_seed(own.stream)
    tables = nn.ModuleList(nn.Embedding(size, config.factors, sparse=True) for size in (30, 20))
    for table in tables:
        table.weight.data = STARTS[config.start](*table.weight.shape, random)
    optimizer = MatrixAdaGrad(tables.parameters(), lr=own.lrs[0], geometry=own.geometry)
    counts = [torch.bincount(rows, minlength=30) for rows in train.rows]
    for _ in range(config.epochs):
        order = torch.randperm(len(train), generator=random)
        for batch in order.split(config.batch or len(order)):
            u, v = (table(rows[batch]) for table, rows in zip(tables, train.rows, strict=True))
            n_u, n_v = (
                torch.ones(1) if config.per_rating else count[rows[batch], None]
                for count, rows in zip(counts, train.rows, strict=True)
            )
            error = (u * v).sum(1) - train.values[batch]
            penalty = (u.square() / n_u).sum() + (v.square() / n_v).sum()
            loss = error.square().sum() + config.decay / 2 * penalty
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return [rmse(*(table.weight.detach() for table in tables), some) for some in (test, train)]


def rmse(u, v, known):
    users, items = known.rows
    return ((u[users] * v[items]).sum(1) - known.values).square().mean().sqrt().item()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_a_run_is_what_a_user_would_write(geometry, variant):
    config = small(Run(geometry, (2,), (0.3,)), **VARIANTS[variant])
    result = run(config)
    found = [result.held_out[0][0][0][-1], result.train[0][0][-1]]
    assert found == pytest.approx(as_a_user(config), rel=1e-5)


def test_an_epoch_of_shares_is_the_gradient_of_the_printed_penalty():
    """At a step so small that nothing moves, the gradients of all batches add up to that of the whole objective."""
    config = small(Run("entry", (0,), (1.0,)))
    (train, _), random = factorisation._split(ratings(), (0,), centred=False), torch.Generator().manual_seed(0)
    stack = factorisation._Stack(config, (30, 20), [train], [random])
    orders = [torch.randperm(len(train), generator=random)]
    summed = [torch.zeros(30, 6), torch.zeros(20, 6)]
    for batch in factorisation._Samples.stacked([train], orders).split(64):
        stack.set_gradients(batch)
        for total, own in zip(summed, stack.tables, strict=True):
            total += own.parameter.grad.to_dense()
    u, v = (own.parameter.detach().clone().requires_grad_() for own in stack.tables)
    users, items = train.rows
    error = (u[users] * v[items]).sum(1) - train.values
    objective = error.square().sum() + config.decay / 2 * (u.square().sum() + v.square().sum())
    objective.backward()
    seen = [torch.bincount(rows, minlength=len(x)) > 0 for rows, x in zip(train.rows, (u, v), strict=True)]
    for total, x, rows in zip(summed, (u, v), seen, strict=True):
        torch.testing.assert_close(total[rows], x.grad[rows], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("stored_by_columns", "stored_by_rows"), [("column", "row"), ("row", "column"), ("entry", "entry")]
)
def test_transposed_storage_exchanges_rows_and_columns(stored_by_columns, stored_by_rows):
    columns = run(small(*(Run(stored_by_columns, (fold,), (0.3,)) for fold in (0, 1)), transposed=True))
    rows = run(small(*(Run(stored_by_rows, (fold,), (0.3,)) for fold in (0, 1))))
    for fold in (0, 1):
        assert columns.held_out[fold][0][0] == pytest.approx(rows.held_out[fold][0][0], rel=1e-5)
    assert columns.state == rows.state


def pairs_of(known):
    return set(zip(*known.rows.tolist(), strict=True))


def test_no_rating_is_in_two_parts_and_the_folds_are_everything():
    for held_out in [(0,), *itertools.combinations(range(FOLDS), 2)]:
        parts = [pairs_of(part) for part in factorisation._split(ratings(), held_out, centred=False)]
        assert sum(map(len, parts)) == len(set.union(*parts)) == 400
        assert [len(part) for part in parts] == [400 - 80 * len(held_out), *[80] * len(held_out)]
    folds = [pairs_of(factorisation._split(ratings(), (fold,), centred=False)[1]) for fold in range(FOLDS)]
    assert len(set.union(*folds)) == 400


def test_what_is_held_out_changes_nothing_in_training(monkeypatch):
    config = small(Run("row", (0, 1), LRS), centred=True)
    honest, data = run(config), ratings()
    for part in factorisation._split(data, (0, 1), centred=False)[1:]:
        where = [
            i
            for i, pair in enumerate(zip(data.users.tolist(), data.items.tolist(), strict=True))
            if pair in pairs_of(part)
        ]
        data.ratings[where] = 6 - data.ratings[where]
    monkeypatch.setattr(factorisation, "_ratings", lambda _: data)
    altered = run(config)
    assert altered.train == honest.train
    assert altered.held_out != honest.held_out


def test_all_geometries_have_the_same_split_batches_and_start():
    still = run(small(*(Run(geometry, (0,), (1e-6,)) for geometry in GEOMETRIES)))  # nothing moves
    first = still.held_out[0][0][0]
    assert all(folds[0][0] == pytest.approx(first, rel=1e-5) for folds in still.held_out)
    for other in (Run("row", (1,), (1e-6,)), Run("row", (0,), (1e-6,), seed=1)):
        assert run(small(other)).held_out[0][0][0] != pytest.approx(first, rel=1e-5)


def test_the_state_has_one_number_a_row_a_column_or_an_entry():
    result = run(small(*(Run(geometry, (0,), LRS) for geometry in GEOMETRIES for _ in range(2)), epochs=4))
    assert result.state == (4 * 12, 4 * 12, 4 * 50 * 6, 4 * 50 * 6, 4 * 50, 4 * 50)


def test_a_run_that_goes_astray_has_an_infinite_rmse():
    assert run(small(Run("entry", (0,), (0.1, 1e30)))).held_out[0][0][1][-1] == math.inf


ROW = Run("row", (0,), (1.0,))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Run("whole", (0,), (1.0,)), "geometry must be 'row', 'entry' or 'column', got 'whole'"),
        (lambda: Run("row", (5,), (1.0,)), r"held_out must be some of the folds 0 to 4, got \(5,\)"),
        (lambda: Run("row", (1, 1), (1.0,)), r"held_out must be some of the folds 0 to 4, got \(1, 1\)"),
        (lambda: Run("row", (0,), ()), "lrs must hold at least one learning rate"),
        (lambda: Config((ROW,), start="zero"), "start must be one of .*, got 'zero'"),
        (lambda: Config(()), r"runs must hold out as many folds .* got \(\)"),
        (lambda: Config((ROW, Run("row", (0, 1), (1.0,)))), "runs must hold out as many folds"),
        (lambda: Config((ROW, Run("row", (1,), (1.0, 2.0)))), "as many learning rates each"),
        (lambda: Config((ROW, Run("column", (0,), (1.0,)))), "runs must be sorted by geometry"),
        (lambda: Config((Run("row", (0,), (1.0, 2.0)),), transposed=True), "must have one learning rate"),
        (lambda: Config((ROW,), measured=(2, 1)), r"measured must be ascending epochs from 1 to 30, got \(2, 1\)"),
        (lambda: Config((ROW,), trained=(31,)), r"trained must be ascending epochs from 1 to 30, got \(31,\)"),
    ],
)
def test_wrong_configs_are_refused(build, words):
    with pytest.raises(ValueError, match=words):
        build()
