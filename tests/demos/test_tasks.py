"""The built-in tasks train, are what their seed says, and never train on what judges them."""

import math
import sys

import pytest
import torch

from matrix_adagrad import MatrixMomentum
from matrix_adagrad.datasets import python_text as text
from matrix_adagrad.demos import tasks
from matrix_adagrad.demos.gpt import windows
from reproduction.networks import mlp
from tests.reproduction.movielens.fakes import ratings

TASKS = {
    "movielens": tasks.movielens,
    "movielens-transposed": lambda: tasks.movielens(transposed=True),
    "mlp": lambda: tasks.mlp(depth=3),
    "lm": tasks.lm,
}
LRS = {"mlp": 1e-3, "lm": 5e-3}


@pytest.fixture(autouse=True)
def _drawn(monkeypatch):
    monkeypatch.setattr(tasks, "load_movielens", lambda _: ratings())
    monkeypatch.setattr(tasks, "python_text", lambda: text.python_text()[-20_000:])


@pytest.fixture(params=TASKS)
def task(request):
    made = TASKS[request.param]()
    assert made.name == request.param
    return made


def numbers(batch):
    return batch.flatten() if isinstance(batch, torch.Tensor) else torch.cat([part.flatten().float() for part in batch])


def judged(task, model):
    """The mean loss on the held-out batches, or on as many of the stream."""
    batches = list(task.held_out or task.stream(seed=0, steps=10))
    model.eval()
    with torch.no_grad():
        loss = sum(task.loss(model, batch).item() for batch in batches) / len(batches)
    model.train()
    return loss


def test_the_loss_falls(task):
    model = task.start(seed=0)
    before = judged(task, model)
    optimizer = MatrixMomentum(model.parameters(), lr=LRS.get(task.name, 0.02), geometry="entry")
    for batch in task.stream(seed=0, steps=30):
        optimizer.zero_grad()
        task.loss(model, batch).backward()
        optimizer.step()
    assert judged(task, model) < 0.98 * before


def test_the_seed_determines_everything(task):
    first, same, other = (task.start(seed).state_dict() for seed in (0, 0, 1))
    assert all(first[key].equal(same[key]) for key in first)
    assert any(not first[key].equal(other[key]) for key in first)
    first, same, other = ([numbers(batch) for batch in task.stream(seed, steps=3)] for seed in (0, 0, 1))
    assert all(a.equal(b) for a, b in zip(first, same, strict=True))
    assert not any(a.equal(b) for a, b in zip(first, other, strict=True))
    assert not first[0].equal(first[1])


def test_streams_of_two_runs_do_not_affect_each_other(task):
    alone = [numbers(batch) for batch in task.stream(seed=0, steps=4)]
    mixed = [numbers(mine) for mine, _ in zip(task.stream(0, 4), task.stream(1, 4), strict=True)]
    assert all(a.equal(b) for a, b in zip(alone, mixed, strict=True))


def test_the_batches_of_a_seed_are_not_the_numbers_its_model_is_drawn_from():
    torch.manual_seed(0)
    assert not torch.randn(16).equal(torch.randn(16, generator=tasks.seeded_generator(0)))


def test_the_mlp_is_that_of_setting_a():
    shape = (tasks.INPUTS, tasks.WIDTH, tasks.OUTPUTS, tasks.SAMPLES, tasks.SAMPLES_A_BATCH)
    assert shape == (mlp.INPUTS, mlp.WIDTH, mlp.OUTPUTS, mlp.SAMPLES, mlp.SETTINGS["A"].batch)
    model = tasks.mlp().start(seed=0)
    layers = [module for module in model if hasattr(module, "weight")]
    assert [tuple(layer.weight.shape) for layer in layers] == [(20, 20)] * 14 + [(5, 20)]
    assert all(not layer.bias.any() for layer in layers)
    (x, y) = next(tasks.mlp().stream(seed=0, steps=1))
    assert x.shape == (64, 20)
    assert y.shape == (64, 5)
    deviation = torch.stack([layer.weight for layer in layers[:-1]]).std().item()
    assert deviation == pytest.approx(math.sqrt(2 / 40), rel=0.05)
    with pytest.raises(ValueError, match="depth must be at least 1, got 0"):
        tasks.mlp(depth=0)


def test_transposed_storage_holds_the_transposed_numbers_and_has_the_same_loss_and_gradients():
    rows, columns = tasks.movielens(), tasks.movielens(transposed=True)
    by_rows, by_columns = rows.start(seed=3), columns.start(seed=3)
    assert by_rows.users.weight.shape == (30, 20)
    assert by_columns.users.weight.is_contiguous()
    batch, same = (next(task.stream(seed=3, steps=1)) for task in (rows, columns))
    assert numbers(batch).equal(numbers(same))
    losses = [task.loss(model, batch) for task, model in ((rows, by_rows), (columns, by_columns))]
    assert losses[0].item() == losses[1].item()
    for loss in losses:
        loss.backward()
    for name in ("users", "items"):
        row, column = getattr(by_rows, name).weight, getattr(by_columns, name).weight
        assert row.T.equal(column)
        assert row.grad.T.equal(column.grad)


def test_the_penalty_applies_only_in_training():
    task = tasks.movielens()
    model, (users, items, values) = task.start(seed=0), task.held_out[0]
    u, v = model.users.weight[users], model.items.weight[items]
    error = ((u * v).sum(1) - values).square().mean().item()
    penalty = 0.01 * (u.square().sum(1) + v.square().sum(1)).mean().item()
    assert task.loss(model, task.held_out[0]).item() == pytest.approx(error + penalty, rel=1e-5)
    assert task.loss(model.eval(), task.held_out[0]).item() == pytest.approx(error, rel=1e-5)


def test_held_out_ratings_are_a_tenth_and_never_trained_on():
    task = tasks.movielens()
    held_out = set(zip(*(index.tolist() for index in task.held_out[0][:2]), strict=True))
    trained = set()
    for users, items, _ in task.stream(seed=0, steps=3):
        trained |= set(zip(users.tolist(), items.tolist(), strict=True))
    assert len(held_out) == 40
    assert len(trained) == 360
    assert not held_out & trained


def test_the_end_of_the_text_is_never_trained_on(monkeypatch):
    monkeypatch.setattr(tasks, "python_text", lambda: "".join(map(chr, range(0xE000, 0xE000 + 1000))))
    task = tasks.lm()  # every character occurs once, and is numbered by its place
    trained = torch.cat([batch.flatten() for batch in task.stream(seed=0, steps=300)]).unique()
    held_out = torch.cat([batch.flatten() for batch in task.held_out]).unique()
    assert trained.tolist() == list(range(900))
    assert held_out.tolist() == list(range(900, 1000))


def test_windows_are_slices_of_the_text():
    assert windows(torch.arange(10), torch.tensor([0, 6]), 3).tolist() == [[0, 1, 2, 3], [6, 7, 8, 9]]


def test_characters_are_numbered_in_their_order():
    assert text.characters("cabba").tolist() == [2, 0, 1, 1, 0]


def test_a_missing_source_is_left_out_of_the_text(monkeypatch, tmp_path, capsys):
    everything = text.python_text()
    assert "Beautiful is better than ugly." in everything
    assert everything.endswith(text.help_texts())
    monkeypatch.delitem(sys.modules, "this", raising=False)
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    monkeypatch.setattr(text.sysconfig, "get_path", lambda _: str(tmp_path))
    (tmp_path / "LICENSE").write_text("You may.", encoding="utf-8")
    assert text.python_text().startswith("You may.\nThe Zen of Python")
    assert not capsys.readouterr().out
    monkeypatch.setitem(sys.modules, "this", None)
    (tmp_path / "LICENSE").unlink()
    monkeypatch.setattr(text.sys, "base_prefix", str(tmp_path))
    with pytest.raises(OSError, match="none of the texts"):
        text.python_text()
