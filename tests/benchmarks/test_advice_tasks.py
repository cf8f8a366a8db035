"""The benchmark's tasks train, and are what their seed says."""

import math
import os

import pytest
import torch

from benchmarks import advice_tasks as tasks
from benchmarks.advice import DEVELOPMENT, TEST
from benchmarks.advice_tables import judged, text
from matrix_adagrad import MatrixMomentum

# those of the package have tests of their own
NAMES = [name for name in TEST | DEVELOPMENT if not name.startswith(("movielens", "mlp", "gpt"))]
NOTHING_TO_LEARN = ("random-labels", "noise-ratings")


@pytest.fixture(params=NAMES)
def task(request):
    if request.param.startswith("digits") and "INTEGRATIONS" not in os.environ:
        pytest.skip("it loads scikit-learn, and with it a second OpenMP: make test-integrations")
    made = (TEST | DEVELOPMENT)[request.param][0]()
    assert made.name == request.param
    return made


def test_the_loss_falls(task):
    model = task.start(seed=0)
    judges = task.held_out or list(task.stream(seed=1, steps=5))

    def total():
        with torch.no_grad():
            return sum(task.loss(model, batch).item() for batch in judges)

    before = total()
    optimizer = MatrixMomentum(model.parameters(), lr=0.01, geometry="entry")
    for batch in task.stream(seed=0, steps=40):
        optimizer.zero_grad()
        task.loss(model, batch).backward()
        optimizer.step()
    if task.name in NOTHING_TO_LEARN:
        assert total() > 0.99 * before
    else:
        assert total() < before


def test_the_seed_determines_the_training_data(task):
    first, same, other = (list(task.stream(seed, steps=2)) for seed in (0, 0, 1))
    for mine, again, different in zip(first, same, other, strict=True):
        assert all(a.equal(b) for a, b in zip(mine, again, strict=True))
        assert not all(a.equal(b) for a, b in zip(mine, different, strict=True))
    assert not first[0][0].equal(first[1][0])


@pytest.mark.parametrize(
    ("name", "over_rows", "over_columns"),
    [("planted-row", True, False), ("planted-column", False, True), ("planted-none", False, False)],
)
def test_planted_gradients_differ_over_rows_or_over_columns(name, over_rows, over_columns):
    task = tasks.TASKS[name][0]()
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


def test_at_least_15_tasks_test_the_advisor_and_none_of_them_made_its_rules():
    assert len(TEST) >= 15
    assert not set(TEST) & set(DEVELOPMENT)


def result(plan, *, best=(1.0, 1.1, 1.2), start=2.0, chosen="row adagrad", settled=True):
    """The stored result of a task whose plan ended with these losses, or had none."""
    advice = {"chosen": chosen if plan else None, "lr": 0.1, "settled": settled, "scores": plan}
    return {
        "task": "made up",
        "steps": 80,
        "starts": [start] * 3,
        "best": {"candidate": "row adagrad", "lr": 0.1, "scores": list(best)},
        "advice": advice,
        "short": advice,
        "advised_seconds": 10.0,
        "torch": "2",
    }


@pytest.mark.parametrize(
    ("task", "verdict", "cost"),
    [
        (result([1.0, 1.1, 1.2]), "right", 0.0),
        (result([1.01, 1.11, 1.21], chosen="entry adagrad"), "level", 0.01 / 1.1),
        (result([1.1, 1.2, 1.3], chosen="entry adagrad"), "miss", 0.1 / 1.1),
        (result([1.1, 1.2, 1.3]), "miss", 0.1 / 1.1),  # the right candidate with a wrong rate
        (result([1.1, 1.2, 1.3], settled=False), "undecided", 0.1 / 1.1),
        (result(None, best=[2.1, 2.0, 2.2]), "right", 0.0),  # nothing can be learned, and it said so
        (result([2.1, 2.0, 2.2], best=[2.1, 2.0, 2.2]), "miss", 0.05),
        (result(None), "miss", 0.9 / 1.1),
        (result([0.0] * 3, best=[0.0] * 3), "right", 0.0),
        (result([0.1] * 3, best=[0.0] * 3), "miss", math.inf),
    ],
)
def test_an_advice_is_judged_by_what_its_plan_costs(task, verdict, cost):
    found = judged(task, task["advice"])
    assert found.verdict == verdict
    assert found.cost == pytest.approx(cost, abs=1e-9)


def test_the_bar_counts_what_was_settled():
    right, undecided, miss = result([1.0, 1.1, 1.2]), result([1.5] * 3, settled=False), result([1.1, 1.2, 1.3])
    assert "That is 100% of what it settled. The bar is 90%, and no miss above 5%: met." in text([right, undecided], [])
    said = text([right] * 10 + [miss], [])
    assert "the largest miss costs +9.1 %" in said
    assert "missed" in said
