"""The benchmark's tasks train, and are what their seed says."""

import os

import pytest
import torch

from benchmarks import advice_tasks as tasks
from matrix_adagrad import MatrixMomentum

# those of the package have tests of their own
NAMES = [name for name in tasks.TASKS if not name.startswith(("movielens", "mlp", "gpt"))]


@pytest.fixture(params=NAMES)
def task(request):
    if request.param.startswith("digits") and "INTEGRATIONS" not in os.environ:
        pytest.skip("it loads scikit-learn, and with it a second OpenMP: make test-integrations")
    made = tasks.TASKS[request.param]()
    assert made.name == request.param
    return made


def test_the_loss_falls(task):
    model = task.start(seed=0)
    judges = task.held_out or list(task.stream(seed=1, steps=5))

    def judged():
        with torch.no_grad():
            return sum(task.loss(model, batch).item() for batch in judges)

    before = judged()
    optimizer = MatrixMomentum(model.parameters(), lr=0.01, geometry="entry")
    for batch in task.stream(seed=0, steps=40):
        optimizer.zero_grad()
        task.loss(model, batch).backward()
        optimizer.step()
    assert judged() < 0.98 * before


def test_the_seed_determines_the_training_data(task):
    first, same, other = (list(task.stream(seed, steps=2)) for seed in (0, 0, 1))
    for mine, again, different in zip(first, same, other, strict=True):
        assert all(a.equal(b) for a, b in zip(mine, again, strict=True))
        assert not any(a.equal(b) for a, b in zip(mine, different, strict=True))
    assert not first[0][0].equal(first[1][0])


@pytest.mark.parametrize(
    ("name", "over_rows", "over_columns"),
    [("planted-row", True, False), ("planted-column", False, True), ("planted-none", False, False)],
)
def test_planted_gradients_differ_over_rows_or_over_columns(name, over_rows, over_columns):
    task = tasks.TASKS[name]()
    model, squares = task.start(seed=0), 0
    for batch in task.stream(seed=0, steps=20):
        (gradient,) = torch.autograd.grad(task.loss(model, batch), model.parameters())
        squares += gradient.square()
    rows, columns = (squares.mean(dim).sqrt() for dim in (1, 0))
    assert (rows.max() > 10 * rows.min()) == over_rows
    assert (columns.max() > 10 * columns.min()) == over_columns


def test_neighbours_are_at_most_a_window_apart(monkeypatch):
    monkeypatch.setattr(tasks, "WINDOW", 2)
    words, neighbours = tasks._neighbours(torch.arange(4))
    pairs = sorted(zip(words.tolist(), neighbours.tolist(), strict=True))
    assert pairs == [(i, j) for i in range(4) for j in range(4) if 0 < abs(i - j) <= 2]
