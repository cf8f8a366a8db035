"""Games are convex, repeatable by the round's number, and know their best fixed decision."""

import pytest
import torch

from matrix_adagrad.domains import Box, ColumnBalls, FrobeniusBall, RowBalls, RowSimplex
from matrix_adagrad.online import (
    Adversarial,
    Completion,
    EntryStream,
    ExampleStream,
    Hinge,
    Linear,
    Logistic,
    Motivating,
)
from tests.domains.table import draw

GAMES = {
    "motivating, rows": Motivating(5, 4),
    "motivating, columns": Motivating(5, 4, "column"),
    "linear": Linear(5, 4, RowBalls(1.0)),
    "hinge": Hinge(ExampleStream.random(5, 4, 30), FrobeniusBall(2.0)),
    "logistic": Logistic(ExampleStream.random(5, 4, 30), Box(-1.0, 1.0)),
    "completion, box": Completion(EntryStream.random(5, 4, 30), 5, 4),
    "completion, ball": Completion(EntryStream.random(5, 4, 30), 5, 4, FrobeniusBall(0.7)),
    "completion, simplex": Completion(EntryStream.random(5, 4, 12), 5, 4, RowSimplex()),
}
every_game = pytest.mark.parametrize("name", GAMES)


def point(game, seed):
    return game.domain.project(draw(seed, game.shape))


@every_game
def test_gradients_are_subgradients(name):
    game = GAMES[name]
    for t in range(40):
        x, y = point(game, t), point(game, 100 + t)
        value, grad = game.loss(t, x)
        assert game.loss(t, y)[0] >= value + float((grad * (y - x)).sum()) - 1e-12


@every_game
@pytest.mark.parametrize("rounds", [1, 7, 45])
def test_no_decision_is_better_than_the_best(name, rounds):
    game = GAMES[name]
    gradients = sum(game.loss(t, point(game, t))[1] for t in range(rounds))

    def total(x):
        return sum(game.loss(t, x)[0] for t in range(rounds))

    best = game.best(rounds, gradients)
    assert game.domain.contains(best.x, 1e-10)
    assert total(best.x) == pytest.approx(best.value, rel=1e-10, abs=1e-10)
    for seed in range(60):
        near = game.domain.project(best.x + 10.0 ** (-seed % 4) * draw(seed, game.shape))
        assert total(near) >= best.value - best.gap - 1e-9


@every_game
def test_a_round_is_the_same_whenever_it_is_played(name):
    game = GAMES[name]
    forwards = [game.loss(t, point(game, 1)) for t in range(200)]
    for t in reversed(range(200)):
        value, grad = game.loss(t, point(game, 1))
        assert value == forwards[t][0]
        assert torch.equal(grad, forwards[t][1])


def test_the_motivating_examples_are_the_papers():
    game = Motivating(3, 2, radius=0.5)
    x = torch.tensor([[0.1, -0.2], [0.3, 0.0], [0.0, 0.2]], dtype=torch.float64)
    for t in range(1, 13):  # the paper counts from 1
        i, label = (t - 1) % 3, (-1) ** t
        value, grad = game.loss(t - 1, x)
        assert value == pytest.approx(max(0, 1 - label * float(x[i].sum())))
        expected = torch.zeros(3, 2, dtype=torch.float64)
        expected[i] = -label
        assert torch.equal(grad, expected)


def test_the_adversary_charges_for_what_he_sees_in_a_row():
    x = torch.tensor([[0.3, 0.4], [0.0, 0.0]], dtype=torch.float64)
    value, grad = Adversarial(2, 2).loss(4, x)
    assert value == pytest.approx(0.5)
    torch.testing.assert_close(grad, torch.tensor([[0.6, 0.8], [0.0, 0.0]], dtype=torch.float64))
    value, grad = Adversarial(2, 2).loss(5, x)
    assert value == 0
    torch.testing.assert_close(grad[1], torch.full((2,), 0.5**0.5, dtype=torch.float64))


def test_completion_on_balls_of_columns_weighs_entries_by_their_counts():
    stream = EntryStream(
        torch.tensor([0, 0, 0, 1]), torch.tensor([0, 0, 0, 0]), torch.tensor([3.0, 3.0, 3.0, 3.0]).double()
    )
    best = Completion(stream, 2, 1, ColumnBalls(1.0)).best(4, torch.zeros(2, 1, dtype=torch.float64))
    assert best.x[0] > best.x[1] > 0  # the entry that came three times gives way less


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Motivating(3, 4, "diagonal"), "active must be 'row' or 'column', got 'diagonal'"),
        (lambda: Motivating(3, 4, radius=0.5), "radius must be positive and less than 0.5, got 0.5"),
        (
            lambda: ExampleStream(torch.tensor([0]), torch.ones(2, 3), torch.ones(2), 1),
            r"the same length, at least 1, got \(1, 2, 2\)",
        ),
        (
            lambda: ExampleStream(torch.tensor([4]), torch.ones(1, 3), torch.ones(1), 4),
            "tasks must be from 0 to 3, got 4 to 4",
        ),
        (lambda: ExampleStream(torch.tensor([0]), torch.ones(1, 3), torch.zeros(1), 1), "labels must be 1 or -1"),
        (lambda: EntryStream(torch.tensor([]), torch.tensor([]), torch.tensor([])), r"at least 1, got \(0, 0, 0\)"),
        (lambda: Completion(EntryStream.random(5, 4, 9), 5, 2), "columns must be from 0 to 1, got"),
    ],
)
def test_bad_arguments_say_what_is_wrong(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_streams_and_traces_are_told_apart_by_their_contents():
    assert repr(ExampleStream.random(3, 2, 9, seed=1)) == repr(ExampleStream.random(3, 2, 9, seed=1))
    assert repr(ExampleStream.random(3, 2, 9, seed=1)) != repr(ExampleStream.random(3, 2, 9, seed=2))
    assert repr(EntryStream.random(3, 2, 9, seed=1)) != repr(EntryStream.random(3, 2, 9, seed=2))
