"""The trial of benchmarks/whole_model tunes all candidates alike, and gives all the same start and the same batches."""

import math

import pytest
import torch

from benchmarks.library_text import Text
from benchmarks.whole_model import tables, trial
from benchmarks.whole_model.candidates import ADAMW, CANDIDATES, MUON_ADAMW, RECIPE, Rates, default_rates, parts
from benchmarks.whole_model.settings import SETTINGS, Gpt, Recommender
from benchmarks.whole_model.trial import Result, Run, Runs, neighbours, train
from matrix_adagrad.datasets.movielens import Ratings

FOREIGN = ("SOAP",)  # needs pytorch-optimizer


class SmallGpt(Gpt):
    steps, width, batch, context, windows = 8, 8, 3, 5, 4
    text = Text(torch.arange(4000) % 50, torch.arange(700) % 50, 50)


class SmallRecommender(Recommender):
    steps, width, batch = 8, 4, 5
    data = Ratings(
        torch.arange(60) % 7, torch.arange(60) % 11, torch.arange(60) % 5 + 1, torch.arange(60), "made up", None
    )


@pytest.fixture
def small(monkeypatch):
    """Trials of a few steps."""
    for setting in (SmallGpt(), SmallRecommender()):
        monkeypatch.setitem(SETTINGS, setting.name, setting)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", SETTINGS)
def test_all_candidates_have_the_same_start_and_the_same_batches(name, monkeypatch):
    setting, runs = SETTINGS[name], {}
    for candidate, (_, rates) in CANDIDATES.items():
        if candidate in FOREIGN:
            continue
        seen = []

        def recorded(model, batch, seen=seen):
            if torch.is_grad_enabled():
                start = torch.cat([param.detach().flatten() for param in model.parameters()])
                seen.append((start, batch))
            return type(setting).loss(setting, model, batch)

        monkeypatch.setattr(setting, "loss", recorded, raising=False)
        result = train(Run(name, candidate, rates, 0))
        assert len(result.losses) == 4
        assert all(map(math.isfinite, result.losses))
        assert result.state_bytes > 0
        runs[candidate] = seen[0][0], torch.stack([batch for _, batch in seen])
    start, batches = runs[ADAMW]
    assert len(batches) == setting.steps
    assert all(torch.equal(start, other) for other, _ in runs.values())
    assert all(torch.equal(batches, others) for _, others in runs.values())


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_held_out_is_never_trained_on(name):
    setting = SETTINGS[name]
    if name == "recommender":
        trained, held_out = (set(torch.cat(list(part)).tolist()) for part in (setting.batches(3), setting.held_out(3)))
        assert len(trained) == setting.steps * setting.batch
        assert not trained & held_out
        assert len(trained | held_out) == 60
    else:
        assert next(setting.held_out(3)).shape == (4, 6)  # of Text.held_out: see test_library_text.py


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("candidate", [name for name in CANDIDATES if name not in FOREIGN])
def test_one_rate_is_for_hidden_matrices_and_one_for_the_rest(candidate):
    model = SETTINGS["gpt"].make_model()
    optimizer = CANDIDATES[candidate].make(model, Rates(0.25, 0.5))
    hidden = {param for group in parts(model)[0] for _, param in group["params"]}
    rates = {param: group["lr"] for group in optimizer.param_groups for param in group["params"]}
    assert {*rates} == {*model.parameters()}
    assert all(rate == (0.25 if param in hidden else 0.5) for param, rate in rates.items())


class Fake(Runs):
    """Runs whose loss is the distance of their rates from the best ones, in doublings."""

    def __init__(self, best):
        self.best, self.done = best, set()

    def __call__(self, run):
        self.done.add(run)
        away = sum(abs(math.log2(a / b)) for a, b in zip(run.rates, self.best, strict=True))
        return Result([9.0, 9.0, 9.0, away + 1e-3 * run.seed], 100, 8)


@pytest.mark.parametrize("candidate", CANDIDATES)
def test_each_candidate_has_as_many_tuning_runs_and_ends_at_the_best(candidate):
    start = CANDIDATES[candidate].start
    best = Rates(start.hidden / 2, 2 * start.rest)
    runs = Fake(best)
    tried = runs.tuned("recommender", candidate)
    assert len(set(tried)) == len(tried) == len(runs.done) == SETTINGS["recommender"].tuning_runs
    assert tried[0].rates == pytest.approx(best, rel=1e-2)


def test_neighbours_change_one_rate():
    run = Run("gpt", ADAMW, Rates(0.01, 0.02), 0)
    assert {other.rates for other in neighbours(run, 2)} == {(0.01, 0.04), (0.01, 0.01), (0.02, 0.02), (0.005, 0.02)}


@pytest.mark.usefixtures("small")
def test_only_missing_runs_are_run(tmp_path, monkeypatch):
    monkeypatch.setattr(trial, "RESULTS", tmp_path)
    run, asked = Run("gpt", ADAMW, Rates(0.1, 0.1), 0), []

    class Computed:
        def result(self):
            return Result([2.0, 1.0, 1.0, math.inf], 8, SmallGpt.steps)

    class Here:
        def submit(self, function, *arguments):
            asked.append((function, arguments))
            return Computed()

    with pytest.raises(SystemExit, match="run without --only-tables"):
        Runs(None)(run)
    for runs in (Runs(Here()), Runs(Here()), Runs(None)):
        assert runs(run).losses == [2.0, 1.0, 1.0, math.inf]
    assert asked == [(train, (run,))]
    monkeypatch.setattr(SmallGpt, "steps", 16)  # another trial
    with pytest.raises(SystemExit, match="run without --only-tables"):
        Runs(None)(run)


@pytest.mark.usefixtures("small")
def test_the_tables_compare_with_both(monkeypatch):
    monkeypatch.setattr(SmallGpt, "tuning_runs", 10)
    made = tables.losses_table("gpt", [*CANDIDATES], Fake(Rates(0.00075, 0.024)))
    assert f"\n| {ADAMW} | 0.00075, 0.024 | 9.0000 | 9.0000 | 9.0000 | 0.0020 | – |" in made
    default = sum(abs(math.log2(a / b)) for a, b in zip(default_rates(), (0.00075, 0.024), strict=True))
    assert f"| {RECIPE}, at its defaults | 0.004, 0.012 | 9.0000 | 9.0000 | 9.0000 | {default + 0.002:.4f} |" in made


def test_the_recipe_keeps_less_than_half_of_adamws_state_for_llama_and_next_to_nothing_beyond_muons():
    rows = {row.split(" | ")[0].strip("| "): row.split(" | ") for row in tables.llama_table().splitlines()[2:]}
    assert float(rows[RECIPE][-1].strip("% |")) <= 45
    beyond_muon = {name: float(rows[name][-2]) - float(rows[name][2]) for name in (RECIPE, MUON_ADAMW)}  # GB
    assert beyond_muon[RECIPE] <= 0.6 * beyond_muon[MUON_ADAMW]
    assert float(rows[RECIPE][1]) < 0.01 < 8 < float(rows["Muon + AdamW"][1])
