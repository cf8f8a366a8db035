"""The benchmark of a DLRM gives all contestants the same start and the same batches, and tunes them alike."""

import itertools

import pytest
import torch

from benchmarks.dlrm import __main__ as command
from benchmarks.dlrm import training
from benchmarks.dlrm.peers import OURS, PEERS, SHARDED, TORCH, TORCHREC, TUNED_AS, gap
from benchmarks.dlrm.training import Layers, Result, Run, Setting, speeds, train, tune
from benchmarks.measure import Times

SMALL = Setting(tables=4, rows=40, width=4, ids=3, dense=2, batch=32, steps=12, held_out=200, rates=(0.03, 0.1))
MINE = Run(OURS, 0.1, 0, SMALL, 1)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
@pytest.mark.parametrize("name", [OURS, TORCH])
def test_contestants_start_alike_see_the_same_batches_and_learn(name):
    trainers = [training._Trainer(PEERS[contestant], 0.1, 3, SMALL) for contestant in (OURS, name)]
    batches = list(itertools.islice(SMALL.clicks(3).batches(64), 30))
    scores = [trainer.scores(batches)[0] for trainer in trainers]
    torch.testing.assert_close(*scores)
    before = [weight.detach().clone() for weight in trainers[1].tables.weights]
    for batch in batches:
        trainers[1].step(batch)
    assert all((weight != old).any() for weight, old in zip(trainers[1].tables.weights, before, strict=True))
    after, clicked = trainers[1].scores(batches)
    loss = torch.nn.functional.binary_cross_entropy_with_logits
    assert loss(after, clicked) < loss(scores[1], clicked)


def test_a_run_is_its_seeds():
    results = [train(MINE), train(MINE)]
    assert results[0].auc == results[1].auc < results[0].ceiling
    assert results[0].samples_per_second > 0


def test_the_layers_see_every_pair_of_tables_once():
    layers = Layers(SMALL)
    assert sorted(map(tuple, layers.pairs.T.tolist())) == list(itertools.combinations(range(5), 2))
    assert layers(torch.randn(3, 2), torch.randn(3, 16)).shape == (3,)


@pytest.mark.parametrize(
    ("best", "tried"),
    [
        (0.05, [0.01, 0.03, 0.1]),
        (0.1, [0.03, 0.1, 0.3]),
        (1, [0.03, 0.1, 0.3, 1, 3]),
        (1e-9, [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1]),
    ],
)
def test_the_grid_grows_until_the_best_rate_is_inside(best, tried, monkeypatch, capsys):
    def fake(run):
        return Result(-abs(torch.tensor(run.lr / best).log().item()), 1.0, 1.0, None, None)

    monkeypatch.setattr(training, "train", fake)
    found = tune(Run(OURS, 0.0, 0, Setting(rates=(0.03, 0.1), most_rates=7), 1))
    assert sorted(found) == pytest.approx(tried)
    assert capsys.readouterr().out.count("tuning matrix-adagrad, rate") == len(tried)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
def test_speeds_are_measured_in_the_same_rounds():
    times = speeds(SMALL, {OURS: 0.1, TORCH: 0.1}, rounds=3, threads=1)
    assert {name: len(found.seconds) for name, found in times.items()} == {OURS: 3, TORCH: 3}


def test_a_package_that_is_not_there_is_a_gap(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert [gap(name) for name in PEERS] == [
        None,
        "torchrec and fbgemm_gpu not installed",
        "fbgemm_gpu not installed",
        None,
    ]


def test_the_table_has_ratios_and_paired_differences():
    ours = [Result(0.75 + seed / 100, 0.8, 1.0, 3 << 20, 2 << 20) for seed in range(3)]
    theirs = [Result(0.74 + seed / 100, 0.8, 1.0, None, None) for seed in range(3)]
    times = {OURS: Times((0.1, 0.1)), TORCH: Times((0.3, 0.3))}
    table = command._single_table({OURS: 0.1, TORCH: 0.03}, {OURS: ours, TORCH: theirs}, times, SMALL).splitlines()
    assert table[2] == "| matrix-adagrad | 0.1 | 320 | 1 | 0.7600 | – | 3 | 2 |"
    assert table[3].startswith("| torch | 0.03 | 107 | 3.00 (3.00–3.00) | 0.7500 | -0.0100 [")
    assert table[3].endswith("| – | – |")
    assert table[-1] == "The highest possible AUC is 0.8000."


SECONDS = {OURS: 0.1, TORCH: 0.3}


def test_training_runs_have_as_many_steps_as_fit():
    setting = Setting(steps=10_000, held_out=2048, batch=2048, most_rates=5)
    steps = command._affordable(1000.0, setting, SECONDS, drawing=0.1, seeds=3)
    runs = 5 * (0.2 + 0.4) + 3 * (0.2 + 0.4)  # two algorithms are tuned, and two contestants trained
    starts = command.START_SECONDS * (2 + 3 * 2)
    assert (steps + 1) * runs + starts <= 1000 < (steps + 2) * runs + starts
    with_torchrec = command._affordable(1000.0, setting, {**SECONDS, TORCHREC: 0.1}, drawing=0.1, seeds=3)
    assert with_torchrec < steps


@pytest.mark.parametrize(("left", "steps"), [(-5.0, command.FEWEST_STEPS), (1e9, 500)])
def test_training_runs_are_never_shorter_than_makes_sense_or_longer_than_asked_for(left, steps):
    assert command._affordable(left, Setting(steps=500), SECONDS, drawing=0.1, seeds=3) == steps


def test_contestants_with_one_algorithm_have_one_rate():
    assert {TUNED_AS[name] for name in {**PEERS, **SHARDED}} == {OURS, TORCH}
    assert TUNED_AS.keys() == {*PEERS, *SHARDED}


def test_a_page_without_a_place_for_the_tables_is_found_out_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "DOCS", tmp_path)
    monkeypatch.setattr(command, "alone", lambda *_: pytest.fail("this is work"))
    (tmp_path / "recommenders.md").write_text("a page", encoding="utf-8")
    with pytest.raises(SystemExit, match="the page has no block for dlrm"):
        command.main(["--write", "--out", str(tmp_path)])
