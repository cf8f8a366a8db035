"""The trial of benchmarks/muon.py reads no text twice, tunes all alike, and gives all the same start and batches."""

import math
from collections import Counter

import pytest
import torch

from benchmarks import muon
from benchmarks.library_text import Text, batches, numbered, split
from benchmarks.muon import STARTS, TUNING_RUNS, Runs, Trial, TrialResult, default_rates, train, tuned

STEPS = 6


@pytest.fixture
def small(monkeypatch):
    """A trial of a few steps on a text in which every token says where it stands."""
    monkeypatch.setattr(muon, "text", lambda: Text(torch.arange(4000) % 50, torch.arange(700) % 50, 50))
    monkeypatch.setattr(muon, "STEPS", STEPS)
    monkeypatch.setattr(muon, "JUDGED", (2, STEPS))
    monkeypatch.setattr(muon, "WIDTH", 8)


def test_no_token_is_predicted_twice():
    taken = list(batches(torch.arange(1000), seed=0, steps=9, batch=5, context=20))
    assert [batch.shape for batch in taken] == [(5, 21)] * 9
    assert all(torch.equal(batch, batch[:, :1] + torch.arange(21)) for batch in taken)  # pieces of the text
    assert max(Counter(torch.cat(taken)[:, 1:].flatten().tolist()).values()) == 1


def test_a_seed_has_an_order_of_its_own():
    first, again, other = (
        torch.cat(list(batches(torch.arange(1000), seed, steps=9, batch=5, context=20))) for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_text_that_is_too_short_is_refused():
    with pytest.raises(SystemExit, match="has 45 windows of 20 words to train on, and 10 steps .* take 50"):
        next(batches(torch.arange(901 + 19), seed=0, steps=10, batch=5, context=20))


def test_whole_files_are_held_out():
    files = [f"file {number}" for number in range(95)]
    training, held_out = split(files)
    assert sorted(training + held_out) == sorted(files)
    assert len(held_out) == 10
    assert (training, held_out) == split(files)


def test_words_are_counted_in_the_training_files_alone():
    training, held_out, vocabulary = numbered(["one one\n    one two"], ["two two two"], frequent=3)
    assert training.tolist()[0] != training.tolist()[1]  # "one" and " one"
    assert vocabulary == len({*training.tolist(), *held_out.tolist()})
    assert len(training) == 4 + len(" two")
    assert len(held_out) == len("two two two")


@pytest.mark.usefixtures("small")
def test_all_candidates_have_the_same_start_and_the_same_batches(monkeypatch):
    loss, seen = muon.next_character_loss, []

    def recorded(model, texts):
        if torch.is_grad_enabled():
            seen.append((model.head.weight.detach().clone(), texts))
        return loss(model, texts)

    monkeypatch.setattr(muon, "next_character_loss", recorded)
    runs = {}
    for method, rates in STARTS.items():
        seen.clear()
        losses = train(Trial(method, *rates, 0, STEPS)).losses
        assert len(losses) == 2
        assert all(map(math.isfinite, losses))
        runs[method] = seen[0][0], torch.stack([texts for _, texts in seen])
    start, texts = runs["AdamW alone"]
    assert len(texts) == STEPS
    assert all(torch.equal(start, other) for other, _ in runs.values())
    assert all(torch.equal(texts, others) for _, others in runs.values())


class Fake(Runs):
    """Runs whose loss is the distance of their rates from the best ones, in doublings."""

    def __init__(self, muon_lr, lr):
        self.best, self.done = (muon_lr, lr), {}

    def __call__(self, run):
        away = [abs(math.log2(a / b)) for a, b in zip((run.muon_lr, run.lr), self.best, strict=True) if a]
        self.done[run] = TrialResult([9.0, sum(away) + 1e-3 * run.seed], {}, 1.0)
        return self.done[run]


@pytest.mark.parametrize("method", STARTS)
def test_each_candidate_has_as_many_tuning_runs_and_ends_at_the_best(method):
    muon_lr, lr = STARTS[method]
    runs = Fake(muon_lr / 2, 2 * lr)
    tried, enclosed = tuned(method, runs)
    assert len(set(tried)) == len(tried) == len(runs.done) == TUNING_RUNS
    assert (tried[0].muon_lr, tried[0].lr) == (muon_lr / 2, 2 * lr)
    assert enclosed
    assert not tuned(method, Fake(muon_lr, 1000 * lr))[1]


def test_rows_are_tuned_from_their_defaults():
    start = default_rates()["Muon + rows, at its defaults"]
    assert STARTS[start.method] == (start.muon_lr, start.lr)


@pytest.mark.usefixtures("small")
def test_only_missing_runs_are_run(tmp_path, monkeypatch):
    monkeypatch.setattr(muon, "RESULTS", tmp_path / "runs.json")
    trained = []
    monkeypatch.setattr(
        muon, "train", lambda run: trained.append(run) or TrialResult([2.0, math.inf], {"table": 8}, 1.0)
    )
    run, longer = (Trial("AdamW alone", 0.0, 0.004, 0, steps) for steps in (STEPS, 2 * STEPS))
    for _ in range(2):
        assert Runs(may_run=True)(run).losses == [2.0, math.inf]
    assert trained == [run]
    with pytest.raises(SystemExit, match="run without --only-tables"):
        Runs(may_run=False)(longer)
    monkeypatch.setattr(muon, "STEPS", 2 * STEPS)
    assert not Runs(may_run=False).done


@pytest.mark.usefixtures("small")
def test_the_tables_compare_with_both():
    losses = muon.losses_table(Fake(0.01, 0.06))  # half a doubling costs 0.5, and so on
    assert "\n| Muon + rows, momentum | 0.01 | 0.06 | 9.0000 | 0.0020 |" in losses
    assert "| Muon + rows, at its defaults | 0.01 | 0.03 | 9.0000 | 1.0020 |" in losses
    assert (
        losses.count("| – |") == 3
    )  # AdamW alone has no Muon's rate; neither it nor Muon + AdamW has itself to compare with
    assert "+1.00 [+1.00, +1.00]" in losses
