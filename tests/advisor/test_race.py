import itertools
import json
import math
import random

import numpy
import pytest
import torch
from torch import nn

from matrix_adagrad.advisor import Candidate, Task, costs, lrs_around, race
from matrix_adagrad.advisor.candidates import make_candidate, uniform_geometries
from matrix_adagrad.advisor.errors import NothingTrainedError
from matrix_adagrad.advisor.race import SIFTED, TRIES, Race
from matrix_adagrad.advisor.training import train
from tests.advisor.tasks import BY_COLUMN, EVEN

ADAM = Candidate("Adam", lambda model, lr: torch.optim.Adam(model.parameters(), lr), lrs_around(0.01))


def trained(task, make, seed, steps):
    model = task.start(seed)
    return train(task, model, make(model), seed, steps)


def entry(family="momentum"):
    return make_candidate(
        "entry", family, {"weight": uniform_geometries(nn.Linear(5, 6, bias=False), "entry")["weight"]}
    )


def outcome_of(candidate, task=EVEN):
    return Race(task, steps=16, seeds=2).run([candidate])[candidate.name].outcome


def scores(outcome):
    return [run.score for run in outcome.runs]


def test_entry_with_momentum_is_adam_so_there_is_no_difference():
    result = Race(EVEN, steps=16, seeds=3).run([entry()], baseline=ADAM)
    ours_, theirs = result["entry momentum"], result["Adam"]
    assert ours_.outcome.lr == theirs.outcome.lr
    torch.testing.assert_close(scores(ours_.outcome), scores(theirs.outcome), rtol=1e-5, atol=0)
    assert {ours_.verdict, theirs.verdict} == {"best", "no difference"}
    assert result.baseline == "Adam"
    assert result.chosen is ours_  # a plan can be made of it


def test_columns_beat_rows_if_gradients_differ_by_column():
    contest = Race(BY_COLUMN, steps=64, seeds=3)
    result = contest.run(contest.uniform_candidates(["adagrad"]))
    assert result["row adagrad"].verdict in ("worse", "dropped")
    assert result["whole adagrad"].verdict in ("worse", "dropped")
    assert result.chosen.name == "column adagrad"


def test_candidates_of_all_families_race_in_the_geometries_that_suit_them():
    contest = Race(EVEN, steps=16, seeds=2)
    result = contest.run(contest.uniform_candidates(["no-momentum", "steepest"]))
    assert {outcome.name for outcome in result.outcomes} == {
        *(f"{geometry} no-momentum" for geometry in ("entry", "row", "column", "factored")),
        *(f"{geometry} steepest" for geometry in ("row", "spectral")),
    }
    m, n, counter, number = 6, 5, 4, 4  # bytes of the step counter, and of a number
    assert result["factored no-momentum"].state_bytes == number * (m + n + 1) + counter
    assert result["row no-momentum"].state_bytes == number * m + counter
    assert result["spectral steepest"].state_bytes == number * m * n + counter
    assert all(math.isfinite(outcome.score) for outcome in result.outcomes)


def test_a_run_depends_only_on_its_task_candidate_rate_and_seed():
    alone = outcome_of(entry())
    Race(EVEN, steps=16, seeds=2).sift(ADAM)
    torch.rand(3)
    again = outcome_of(entry())
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


def counted(name, made):
    def make(model, lr):
        made.setdefault(name, []).append(lr)
        return torch.optim.SGD(model.parameters(), lr)

    return Candidate(name, make, lrs_around(0.01, 8))


def test_all_candidates_have_the_same_budget_and_progress_reaches_the_total():
    made, told = {}, []
    contest = Race(EVEN, steps=16, seeds=2, progress=lambda *what: told.append(what))
    result = contest.run([counted("a", made), counted("b", made)])
    for name, lrs in made.items():
        rungs = result[name].outcome.rungs
        assert list(rungs) == [2, 4, 8, 16]
        assert len(rungs[2]) == 8
        assert len(rungs[4]) == SIFTED
        # each rate of the later rungs on two seeds, two runs that count, and one to measure its cost
        assert len(lrs) == 8 + SIFTED + 2 * (len(rungs[8]) + len(rungs[16])) + 2 + 1
    assert told[-1][:2] == (contest.done, contest.done)
    assert all(done <= total for done, total, _ in told)


def test_the_best_rates_of_the_shortest_runs_run_on():
    first, second = Race(EVEN, steps=16, seeds=2).sift(ADAM).rungs.values()
    assert set(second) == set(sorted(first, key=first.get)[:SIFTED])


def test_rates_at_full_length_have_worse_neighbours_or_are_marked():
    outcome = outcome_of(ADAM)
    last = outcome.rungs[16]
    assert outcome.lr == min(last, key=last.get)
    lrs = sorted(last)
    assert all(math.isclose(b / a, 10 ** (1 / 6)) for a, b in itertools.pairwise(lrs))
    assert outcome.is_at_edge == (outcome.lr in (lrs[0], lrs[-1]))
    assert len(lrs) == TRIES or not outcome.is_at_edge


def test_the_neighbours_of_the_chosen_rate_run_on_the_same_seeds():
    result = Race(EVEN, steps=16, seeds=3).run([entry()])
    chosen = result.chosen.outcome
    beside = chosen.beside
    assert len(beside) == 2
    candidate = chosen.candidate
    for lr, runs in beside.items():
        assert len(runs) == 3
        model = EVEN.start(2)
        again = train(EVEN, model, candidate.make(model, lr), 2, 16)
        assert again.score == pytest.approx(runs[0].score)


def test_random_labels_teach_nothing():
    def batches(seed):
        random = torch.Generator().manual_seed(seed)
        while True:
            yield torch.randn(16, 5, generator=random), torch.randn(16, 6, generator=random)

    def make_model():
        model = nn.Linear(5, 6, bias=False)
        nn.init.zeros_(model.weight)
        return model

    task = Task(make_model, EVEN.loss, batches, held_out=list(itertools.islice(batches(99), 20)))
    result = Race(task, steps=32, seeds=3).run([entry(), entry("adagrad")])
    assert result.chosen is None
    assert result.best.outcome.score > 0.99 * result.start


def test_a_candidate_that_diverges_fails_and_does_not_win():
    wild = Candidate("wild", lambda model, lr: torch.optim.SGD(model.parameters(), 1e6 * lr), (1.0, 2.0))
    result = Race(EVEN, steps=16, seeds=2).run([entry(), wild])
    assert result["wild"].verdict == "failed"
    assert math.isinf(result["wild"].outcome.score)
    assert result.best.name == "entry momentum"
    assert json.loads(json.dumps(result.to_dict()))["chosen"] == "entry momentum"
    with pytest.raises(NothingTrainedError, match="every candidate diverged"):
        Race(EVEN, steps=16, seeds=2).run([wild])


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
        assert standing.cost.step_seconds > 0


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


def test_runs_that_start_differently_are_not_compared():
    hidden = itertools.count()
    task = Task(EVEN.make_model, lambda model, batch: EVEN.loss(model, batch) + next(hidden), EVEN.batches)
    with pytest.raises(ValueError, match="two runs with seed 0 start with the losses"):
        outcome_of(entry(), task)


def test_held_out_batches_may_come_from_an_iterator():
    task = Task(EVEN.make_model, EVEN.loss, EVEN.batches, held_out=itertools.islice(EVEN.batches(7), 2))
    assert outcome_of(entry(), task).score < math.inf


def test_a_loss_may_start_at_zero_and_may_need_gradients_inside():
    def penalised(model, batch):
        x = batch[0].clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return EVEN.loss(model, batch) + slope.square().mean()

    task = Task(EVEN.make_model, penalised, EVEN.batches, held_out=list(itertools.islice(EVEN.batches(7), 1)))
    assert outcome_of(entry(), task).score < math.inf
    flat = Task(lambda: Flat(), lambda model, batch: model(batch), EVEN.batches)
    assert outcome_of(flat_entry(), flat).score < math.inf


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
    monkeypatch.setattr(costs, "STATE_LIMIT", 0)
    contest = Race(EVEN, steps=16, seeds=2)
    result = contest.run([entry(), entry("adagrad")])
    assert result["entry momentum"].state_bytes == 2 * 120 + 4


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
        outcome_of(entry(), Task(EVEN.make_model, loss, EVEN.batches))
