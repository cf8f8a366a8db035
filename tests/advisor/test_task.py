"""A task's batches, its held-out batches and its schedule, and a run on them."""

import itertools
import random

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from matrix_adagrad.advisor import Candidate, Task, lrs_around
from matrix_adagrad.advisor.candidates import make_candidate, uniform_geometries
from matrix_adagrad.advisor.race import Race
from matrix_adagrad.advisor.training import start_score, train
from tests.advisor.tasks import EVEN

ADAM = Candidate("Adam", lambda model, lr: torch.optim.Adam(model.parameters(), lr), lrs_around(0.01))


def trained(task, make, seed, steps):
    model = task.start(seed)
    return train(task, model, make(model), seed, steps)


def entry(family="momentum"):
    return make_candidate(
        "entry", family, {"weight": uniform_geometries(nn.Linear(5, 6, bias=False), "entry")["weight"]}
    )


def test_the_start_is_the_untrained_models_loss_on_what_judges_a_run():
    held_out = list(itertools.islice(EVEN.batches(77), 2))
    judged = Task(EVEN.make_model, EVEN.loss, EVEN.batches, held_out)
    model = EVEN.start(3)
    by_hand = sum(EVEN.loss(model, batch).item() for batch in held_out) / 2
    assert start_score(judged, EVEN.start(3), 3, 16) == pytest.approx(by_hand)
    last = list(EVEN.stream(3, 16))[-4:]
    by_hand = sum(EVEN.loss(model, batch).item() for batch in last) / 4
    assert start_score(EVEN, EVEN.start(3), 3, 16) == pytest.approx(by_hand)
    result = Race(EVEN, steps=16, seeds=2).run([entry()])
    assert result.starts == tuple(start_score(EVEN, EVEN.start(seed), seed, 16) for seed in (2, 3))


def test_the_schedule_is_stepped_over_the_length_of_each_run():
    seen = []

    def schedule(optimizer, steps):
        seen.append(steps)
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 if step < steps // 2 else 0.0)

    task = Task(EVEN.make_model, EVEN.loss, EVEN.batches, schedule=schedule)
    models = [EVEN.start(0), EVEN.start(0)]
    train(task, models[0], ADAM.make(models[0], 0.01), 0, 8)
    train(EVEN, models[1], ADAM.make(models[1], 0.01), 0, 4)
    assert seen == [8]
    assert torch.equal(models[0].weight, models[1].weight)
    with pytest.raises(TypeError, match="schedule must take the optimizer and the number of steps"):
        Task(EVEN.make_model, EVEN.loss, EVEN.batches, schedule=lambda _: None)
    with pytest.raises(TypeError, match="schedule must be a function of the optimizer and .*, got str"):
        Task(EVEN.make_model, EVEN.loss, EVEN.batches, schedule="cosine")


def test_held_out_batches_are_evaluated_in_eval_mode():
    modes = []

    def loss(model, batch):
        modes.append(model.training)
        return EVEN.loss(model, batch)

    held_out = list(itertools.islice(EVEN.batches(77), 2))
    run = trained(Task(EVEN.make_model, loss, EVEN.batches, held_out), lambda m: ADAM.make(m, 0.01), 0, 8)
    assert modes == [True] * 8 + [False] * 2
    model = EVEN.start(0)
    optimizer = ADAM.make(model, 0.01)
    for batch in EVEN.stream(0, 8):
        optimizer.zero_grad()
        EVEN.loss(model, batch).backward()
        optimizer.step()
    assert run.score == pytest.approx(sum(EVEN.loss(model, batch).item() for batch in held_out) / 2, rel=1e-6)
    with pytest.raises(ValueError, match="held_out is empty"):
        trained(Task(EVEN.make_model, loss, EVEN.batches, []), lambda m: ADAM.make(m, 0.01), 0, 8)


def test_without_held_out_batches_the_last_quarter_of_the_steps_is_the_score():
    run = trained(EVEN, lambda m: ADAM.make(m, 0.01), 0, 8)
    assert run.score == pytest.approx(sum(run.losses[-2:]) / 2)


def test_a_loader_shuffles_the_same_way_for_every_candidate_and_restarts_when_it_ends():
    data = torch.arange(12.0).reshape(6, 2)
    task = Task(
        lambda: nn.Linear(2, 1), lambda m, b: m(b).square().mean(), DataLoader(data, batch_size=4, shuffle=True)
    )
    first, again, other = (list(task.stream(seed, 5)) for seed in (0, 0, 1))
    assert all(map(torch.equal, first, again))
    assert not all(map(torch.equal, first, other))
    assert [len(batch) for batch in first] == [4, 2, 4, 2, 4]


@pytest.mark.parametrize(
    ("batches", "message"), [([], "batches is empty"), (lambda _: iter([1, 2]), "ended before the last step")]
)
def test_running_out_of_batches_is_an_error(batches, message):
    with pytest.raises(ValueError, match=message):
        list(Task(nn.Identity, max, batches).stream(0, 5))


def test_make_model_must_return_a_model():
    with pytest.raises(TypeError, match="make_model must return an nn.Module, got int"):
        Task(lambda: 3, max, []).start(0)


def first_losses(batches, **changes):
    task = Task(changes.get("make_model", EVEN.make_model), changes.get("loss", EVEN.loss), batches)
    return [trained(task, lambda model: ADAM.make(model, 0.01), 0, 3).losses for _ in range(2)]


def test_batches_are_the_same_in_every_run_of_a_seed_whatever_shuffles_them():
    data = list(itertools.islice(EVEN.batches(0), 8))
    own = DataLoader(data, batch_size=None, shuffle=True, generator=torch.Generator().manual_seed(1))
    by_numpy = lambda _: (data[i] for i in itertools.cycle(numpy.random.permutation(8)))  # noqa: E731, NPY002
    by_python = lambda _: (random.choice(data) for _ in itertools.count())  # noqa: E731
    for batches in (own, by_numpy, by_python):
        first, again = first_losses(batches)
        assert first == again


@pytest.mark.parametrize("once", [itertools.cycle([1]), iter([1]), map(int, [1]), (i for i in [1])])
def test_batches_that_can_be_read_only_once_are_refused(once):
    with pytest.raises(TypeError, match="must be iterable more than once"):
        Task(nn.Identity, max, once)


def test_a_model_returned_in_eval_mode_is_trained_in_training_mode():
    assert Task(lambda: nn.Linear(2, 2).eval(), max, []).start(0).training


def test_a_model_instead_of_a_function_is_refused():
    with pytest.raises(TypeError, match="make_model must be a function that returns the model, got a model"):
        Task(nn.Linear(2, 2), EVEN.loss, EVEN.batches)
    with pytest.raises(TypeError, match=r"lrs must be several learning rates, got 0.1: write lrs_around\(0.1\)"):
        Candidate("x", ADAM.make, 0.1)
