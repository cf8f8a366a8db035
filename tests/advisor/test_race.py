import itertools
import json
import math
import random
import sys

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from matrix_adagrad.advisor import Candidate, Task, lrs_around, race
from matrix_adagrad.advisor.candidates import distinct, geometries_by_layer, make_candidate, uniform_geometries
from matrix_adagrad.advisor.errors import NothingTrainedError
from matrix_adagrad.advisor.race import RUNGS, Race, train
from matrix_adagrad.geometry import Entry, Whole
from tests.advisor.tasks import BY_COLUMN, EVEN

ADAM = Candidate("Adam", lambda model, lr: torch.optim.Adam(model.parameters(), lr), lrs_around(0.01))


def trained(task, make, seed, steps):
    model = task.start(seed)
    return train(task, model, make(model), seed, steps)


def entry(family="momentum"):
    return make_candidate(
        "entry", family, {"weight": uniform_geometries(nn.Linear(5, 6, bias=False), "entry")["weight"]}
    )


def scores(outcome):
    return [run.score for run in outcome.runs]


def test_entry_with_momentum_is_adam_so_there_is_no_difference():
    result = Race(EVEN, steps=16, seeds=3).run([entry()], baseline=ADAM)
    ours_, theirs = result["entry momentum"], result["Adam"]
    assert ours_.outcome.lr == theirs.outcome.lr
    torch.testing.assert_close(scores(ours_.outcome), scores(theirs.outcome), rtol=1e-5, atol=0)
    assert ours_.is_level
    assert theirs.is_level
    assert result.baseline == "Adam"
    assert result.chosen is ours_  # a plan can be made of it


def test_columns_beat_rows_if_gradients_differ_by_column():
    contest = Race(BY_COLUMN, steps=64, seeds=3)
    result = contest.run(contest.uniform_candidates(["adagrad"]))
    assert result["column adagrad"].is_level
    assert result["row adagrad"].verdict == "worse"
    assert result["whole adagrad"].verdict == "worse"
    assert result.chosen.name == "column adagrad"


def test_candidates_of_all_families_race_in_the_geometries_that_suit_them():
    contest = Race(EVEN, steps=16, seeds=2)
    result = contest.run(contest.uniform_candidates(["no-momentum", "steepest"]))
    assert {outcome.name for outcome in result.outcomes} == {
        *(f"{geometry} no-momentum" for geometry in ("entry", "row", "column", "whole", "factored")),
        *(f"{geometry} steepest" for geometry in ("entry", "row", "spectral")),
    }
    m, n, counter, number = 6, 5, 4, 4  # bytes of the step counter, and of a number
    assert result["factored no-momentum"].state_bytes == number * (m + n + 1) + counter
    assert result["row no-momentum"].state_bytes == number * m + counter
    assert result["spectral steepest"].state_bytes == number * m * n + counter
    assert all(math.isfinite(outcome.score) for outcome in result.outcomes)


def test_a_run_depends_only_on_its_task_candidate_rate_and_seed():
    contest = Race(EVEN, steps=16, seeds=2)
    alone = contest.train(entry())
    Race(EVEN, steps=16, seeds=2).train(ADAM)
    torch.rand(3)
    again = Race(EVEN, steps=16, seeds=2).train(entry())
    assert again.runs == alone.runs
    assert again.rungs == alone.rungs
    assert alone.runs[0] != alone.runs[1]


def test_all_candidates_have_the_same_initial_weights_and_batches():
    def start_and_batches(candidate):
        starts, batches = [], []

        def loss(model, batch):
            batches.append(batch[0].sum().item())
            return EVEN.loss(model, batch)

        def make(model):
            starts.append(model.weight.detach().clone())
            return candidate.make(model, 0.01)

        trained(Task(EVEN.make_model, loss, EVEN.batches), make, seed=3, steps=8)
        return starts, batches

    (first_start,), first_batches = start_and_batches(entry())
    (second_start,), second_batches = start_and_batches(ADAM)
    assert torch.equal(first_start, second_start)
    assert first_batches == second_batches
    assert len(set(first_batches)) == len(first_batches) > 0


def test_all_candidates_have_the_same_budget_and_progress_reaches_the_total():
    made, told = {}, []

    def counted(name):
        def make(model, lr):
            made.setdefault(name, []).append(lr)
            return torch.optim.SGD(model.parameters(), lr)

        return Candidate(name, make, lrs_around(0.01, 8))

    contest = Race(EVEN, steps=16, seeds=2, progress=lambda *what: told.append(what))
    contest.run([counted("a"), counted("b")])
    rates = 8 + 4 + 2 * (2 + 2)  # the last rung has two more rates, and two seeds
    assert [len(lrs) for lrs in made.values()] == [rates + 2 + 1] * 2  # two final runs, and one to measure its cost
    assert all(total == contest.total for _, total, _ in told)
    assert contest.done == contest.total


def test_halving_keeps_the_better_half_and_tries_half_a_grid_step_to_either_side():
    outcome = Race(EVEN, steps=16, seeds=2).train(Candidate("SGD", ADAM.make, lrs_around(0.01, 8)))
    first, second, last = outcome.rungs
    assert len(outcome.rungs) == RUNGS
    assert set(second) == set(sorted(first, key=first.get)[:4])
    kept = sorted(second, key=second.get)[:2]
    assert set(kept) <= set(last)
    beside = sorted(set(last) - set(kept))
    assert math.isclose(beside[1] / beside[0], 10 ** (1 / 3))
    assert outcome.lr == min(last, key=last.get)


def test_a_candidate_that_diverges_fails_and_does_not_win():
    wild = Candidate("wild", lambda model, lr: torch.optim.SGD(model.parameters(), 1e6 * lr), (1.0, 2.0))
    result = Race(EVEN, steps=16, seeds=2).run([entry(), wild])
    assert result["wild"].verdict == "failed"
    assert math.isinf(result["wild"].outcome.score)
    assert result.best.name == "entry momentum"
    assert json.loads(json.dumps(result.to_dict()))["chosen"] == "entry momentum"
    with pytest.raises(NothingTrainedError, match="every candidate diverged"):
        Race(EVEN, steps=16, seeds=2).run([wild])


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


def test_the_race_does_not_change_the_users_random_state():
    def drawn():
        return torch.rand(1).item(), numpy.random.rand(), random.random()  # noqa: NPY002

    def seed():
        torch.manual_seed(5), numpy.random.seed(5), random.seed(5)  # noqa: NPY002

    candidates = [entry()]
    seed()
    race(EVEN.make_model, EVEN.loss, EVEN.batches, candidates=candidates, steps=16, seeds=2)
    after = drawn()
    seed()
    assert after == drawn()


def test_the_state_has_the_size_that_the_geometry_gives():
    contest = Race(EVEN, steps=16, seeds=2)
    result = contest.run(contest.uniform_candidates())
    counter = 4  # the number of steps
    for standing in result.standings:
        name, family = standing.name.split()
        scales = {"row": 6, "column": 5, "entry": 30, "whole": 1}[name]
        assert standing.state_bytes == 4 * (scales + 30 * (family == "momentum")) + counter
        assert standing.step_seconds > 0


def test_equivalent_candidates_take_part_once():
    model = nn.ParameterDict({"a": nn.Parameter(torch.zeros(3))})
    names = [
        candidate.name
        for candidate in distinct(
            make_candidate(name, "adagrad", uniform_geometries(model, name)) for name in ("entry", "row", "whole")
        )
    ]
    assert names == ["entry adagrad", "whole adagrad"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"steps": 15}, "steps must be from 16 to .* got 15"), ({"seeds": 1}, "seeds must be from 2 to 15, got 1")],
)
def test_wrong_numbers_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Race(EVEN, **arguments)


def test_participants_must_be_candidates():
    with pytest.raises(TypeError, match="must be advisor.Candidate, got type"):
        Race(EVEN, steps=16).run([entry()], baseline=torch.optim.Adam)


def test_candidates_with_the_same_name_are_refused():
    with pytest.raises(ValueError, match="these are repeated: Adam"):
        Race(EVEN, steps=16).run([ADAM, ADAM])


@pytest.mark.parametrize("lrs", [(), (0.1,), (0.1, 0.01), (0.0, 0.1), (0.1, 0.1)])
def test_learning_rates_must_ascend(lrs):
    with pytest.raises(ValueError, match="lrs must be at least two learning rates"):
        Candidate("x", ADAM.make, lrs)


def test_an_unknown_family_is_named():
    with pytest.raises(ValueError, match="family must be one of 'adagrad', 'momentum', .*, got 'adam'"):
        make_candidate("row", "adam", {})


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


def test_runs_that_start_differently_are_not_compared():
    hidden = itertools.count()
    task = Task(EVEN.make_model, lambda model, batch: EVEN.loss(model, batch) + next(hidden), EVEN.batches)
    with pytest.raises(ValueError, match="two runs with seed 0 start with the losses"):
        Race(task, steps=16, seeds=2).train(entry())


def test_held_out_batches_may_come_from_an_iterator():
    task = Task(EVEN.make_model, EVEN.loss, EVEN.batches, held_out=itertools.islice(EVEN.batches(7), 2))
    assert Race(task, steps=16, seeds=2).train(entry()).score < math.inf


def test_a_model_returned_in_eval_mode_is_trained_in_training_mode():
    assert Task(lambda: nn.Linear(2, 2).eval(), max, []).start(0).training


def test_a_loss_may_start_at_zero_and_may_need_gradients_inside():
    def penalised(model, batch):
        x = batch[0].clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return EVEN.loss(model, batch) + slope.square().mean()

    task = Task(EVEN.make_model, penalised, EVEN.batches, held_out=list(itertools.islice(EVEN.batches(7), 1)))
    assert Race(task, steps=16, seeds=2).train(entry()).score < math.inf
    flat = Task(lambda: Flat(), lambda model, batch: model(batch), EVEN.batches)
    assert Race(flat, steps=16, seeds=2).train(flat_entry()).score < math.inf


class Flat(nn.Module):
    """Its loss is 0 at the start, and noise drives it away."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(6, 5))

    def forward(self, batch):
        return (self.weight * batch[0][:6]).sum().square() + (self.weight * batch[0][6:12]).sum()


def flat_entry():
    return make_candidate("entry", "momentum", uniform_geometries(Flat(), "entry"))


def test_states_in_lists_are_counted():
    class Listed(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            for group in self.param_groups:
                for param in group["params"]:
                    self.state[param]["halves"] = [torch.zeros(3), torch.zeros(2)]

    result = Race(EVEN, steps=16, seeds=2).run(
        [Candidate("listed", lambda m, lr: Listed(m.parameters(), lr), (0.01, 0.02))]
    )
    assert result["listed"].state_bytes == 20


def test_large_states_are_measured_one_after_the_other(monkeypatch):
    monkeypatch.setattr(sys.modules[Race.__module__], "STATE_LIMIT", 0)
    contest = Race(EVEN, steps=16, seeds=2)
    result = contest.run([entry(), entry("adagrad")])
    assert result["entry momentum"].state_bytes == 2 * 120 + 4


def test_refined_rates_lie_halfway_to_the_neighbours():
    uneven = Candidate("x", ADAM.make, (0.01, 0.1, 0.4))
    assert uneven.halfway_to_neighbours(0.1) == pytest.approx((0.1 / 10**0.5, 0.2))
    assert uneven.halfway_to_neighbours(0.4) == pytest.approx((0.2, 0.8))
    assert uneven.halfway_to_neighbours(0.01) == pytest.approx((0.01 / 10**0.5, 0.1 / 10**0.5))


def test_lazy_parameters_are_named():
    task = Task(lambda: nn.LazyLinear(3), EVEN.loss, EVEN.batches)
    with pytest.raises(ValueError, match="weight is lazy and has no shape yet: let make_model run the model once"):
        Race(task, steps=16).uniform_candidates()


def test_a_single_row_is_the_whole_and_takes_part_once():
    assert uniform_geometries(nn.Linear(8, 1), "row") == {"weight": Whole(), "bias": Entry()}
    assert uniform_geometries(nn.Linear(8, 1), "column") == {"weight": Entry(), "bias": Entry()}


def test_frozen_parameters_have_no_geometry():
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5))
    model[0].requires_grad_(False)
    assert set(geometries_by_layer(model)) == set(uniform_geometries(model, "row")) == {"1.weight", "1.bias"}


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda model, batch: EVEN.loss(model, batch).item(), "got a float"),
        (lambda model, batch: model(batch[0]), r"got one of shape \(16, 6\)"),
        (lambda model, batch: EVEN.loss(model, batch).detach(), "got one without a graph"),
    ],
)
def test_an_unusable_loss_is_named(loss, message):
    with pytest.raises(TypeError, match=message):
        Race(Task(EVEN.make_model, loss, EVEN.batches), steps=16, seeds=2).train(entry())


def test_a_model_instead_of_a_function_is_refused():
    with pytest.raises(TypeError, match="make_model must be a function that returns the model, got a model"):
        Task(nn.Linear(2, 2), EVEN.loss, EVEN.batches)
    with pytest.raises(TypeError, match=r"lrs must be several learning rates, got 0.1: write lrs_around\(0.1\)"):
        Candidate("x", ADAM.make, 0.1)
