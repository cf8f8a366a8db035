"""``matrix-adagrad advise`` on the user's own function."""

import json

import pytest
from torch import nn

from matrix_adagrad.advisor import Plan
from matrix_adagrad.cli import main

TRAIN = """
import itertools
from dataclasses import replace

import torch
from torch import nn
from matrix_adagrad.advisor import Candidate, Task, lrs_around

x = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
count = itertools.count()

def task():
    return Task(
        lambda: nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 4)),
        lambda model, rows: (model(x[rows]) - x[rows, :4]).square().mean(),
        lambda seed: torch.randperm(64).split(16),
        name="<b>mine</b>",
        baseline=Candidate("SGD", lambda model, lr: torch.optim.SGD(model.parameters(), lr), lrs_around(0.1)),
    )

def parts():
    made = task()
    return made.make_model, made.loss, made.batches

def number():
    return 3

def broken():
    raise RuntimeError("in the user's code")

def astray():
    made = task()
    return made.make_model, lambda model, rows: made.loss(model, rows) * float("nan"), made.batches

def but(**other):
    return lambda: replace(task(), **other)

two_parts = lambda: parts()[:2]
no_batches = but(batches=[])
batches_that_are_none = but(batches=lambda seed: None)
batches_that_end = but(batches=lambda seed: iter(torch.arange(32).split(16)))
nothing_held_out = but(held_out=[])
pair_of_losses = but(loss=lambda model, rows: (model(x[rows]).sum(), 0))
losses_of_rows = but(loss=lambda model, rows: model(x[rows]).sum(1), held_out=[torch.arange(4)])
no_graph = but(loss=lambda model, rows: model(x[rows]).sum().detach())
model_itself = but(make_model=nn.Linear(8, 4))
no_parameters = but(make_model=nn.Tanh)
baseline_is_no_candidate = but(baseline=("SGD", torch.optim.SGD))
other_starts = but(loss=lambda model, rows: model(x[rows]).sum() + next(count))
batches_of_no_seed = but(batches=lambda: [torch.arange(16)])
model_of_an_argument = but(make_model=lambda width: nn.Linear(8, width))
loss_of_the_batch = but(loss=lambda rows: rows.sum())
models_that_differ = but(make_model=lambda: nn.Linear(8, 4) if next(count) % 2 else nn.Sequential(nn.Linear(8, 4)))
widths_that_differ = but(make_model=lambda: nn.Linear(8, 1 + next(count)))

def wants_an_argument(width):
    return task()

class Zeros(nn.Linear):
    def reset_parameters(self):
        nn.init.zeros_(self.weight)

noise_targets = torch.randn(64, 1, generator=torch.Generator().manual_seed(1))
noise = but(
    make_model=lambda: Zeros(8, 1, bias=False),
    loss=lambda model, rows: (model(x[rows]) - noise_targets[rows]).square().mean(),
    batches=lambda seed: torch.randperm(16).split(4),
    held_out=[torch.arange(16, 64)],
)

broken_loss = but(loss=lambda model, rows: {}["in the user's loss"])
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "my_training.py").write_text(TRAIN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("target", ["my_training:task", "my_training.py:parts"])
def test_advice_on_the_users_own_function(here, capsys, target):
    command = ["advise", target, "--steps", "16", "--seeds", "2", "--family", "adagrad"]
    assert main(command) == 0
    shown, progress = capsys.readouterr()
    assert "use “" in shown.lower()
    assert ("SGD, which you use now" in shown) is target.endswith("task")
    assert "steps" in progress
    plan = Plan.load(here / "advice" / "plan.json")
    plan.optimizer(nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 4)))
    assert sorted(file.name for file in (here / "advice").iterdir()) == ["advice.html", "advice.json", "plan.json"]
    assert "<b>mine</b>" not in (here / "advice" / "advice.html").read_text(encoding="utf-8")


def test_with_json_nothing_else_is_printed(here, capsys):
    command = ["advise", "my_training:task", "--steps", "16", "--seeds", "2", "--family", "momentum", "--json"]
    assert main([*command, "--out", str(here / "there")]) == 0
    assert json.loads(capsys.readouterr().out)["task"] == "<b>mine</b>"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("no_such_module:task", "no module 'no_such_module'"),
        ("nowhere.py:task", "no file nowhere.py"),
        ("my_training:absent", "has no function 'absent'; it has "),
        ("my_training:number", "number must return a Task or the tuple (make_model, loss, batches), got int"),
        ("my_training:two_parts", "the tuple (make_model, loss, batches), got the tuple (function, function)"),
        ("my_training:no_batches", "batches is empty: give at least one batch"),
        ("my_training:batches_that_are_none", "batches must be an iterable of batches, or a function of the seed"),
        ("my_training:batches_that_end", "batches ended before the last step"),
        ("my_training:nothing_held_out", "held_out is empty: give batches, or leave it out"),
        ("my_training:pair_of_losses", "loss must return a tensor with one number, got a tuple"),
        ("my_training:losses_of_rows", "loss must return a tensor with one number, got one of shape (4,)"),
        ("my_training:no_graph", "loss must return a tensor to call backward() on"),
        ("my_training:model_itself", "make_model must be a function that returns the model, got a model"),
        ("my_training:no_parameters", "make_model must return a module with parameters to train"),
        ("my_training:baseline_is_no_candidate", "candidates, and baseline, must be advisor.Candidate, got tuple"),
        ("my_training:other_starts", "two runs with seed 0 start with the losses"),
        (
            "my_training:wants_an_argument",
            "wants_an_argument must take no argument, but calling it this way fails: missing",
        ),
        ("my_training:batches_of_no_seed", "batches must take the seed, but calling it this way fails: too many"),
        (
            "my_training:model_of_an_argument",
            "make_model must take no argument, but calling it this way fails: missing",
        ),
        (
            "my_training:loss_of_the_batch",
            "loss must take the model and a batch, but calling it this way fails: too many",
        ),
        ("my_training:models_that_differ", "make_model must return the same architecture every time, but 0.bias was"),
        ("my_training:widths_that_differ", "make_model must return the same architecture every time, but bias was "),
    ],
)
def test_an_invalid_target_is_refused_in_one_line(here, capsys, target, message):
    assert main(["advise", target, "--steps", "16", "--seeds", "2", "--family", "adagrad"]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("matrix-adagrad advise: ")
    assert message in error
    assert not (here / "advice" / "plan.json").exists()


def test_if_nothing_was_learned_no_plan_is_written_and_the_exit_code_is_1(here, capsys):
    (here / "advice").mkdir()
    (here / "advice" / "plan.json").write_text("an earlier run's", encoding="utf-8")
    assert main(["advise", "my_training:noise", "--steps", "16", "--seeds", "2", "--family", "adagrad"]) == 1
    assert "Nothing was learned: no plan." in capsys.readouterr().out
    assert sorted(file.name for file in (here / "advice").iterdir()) == ["advice.html", "advice.json"]


@pytest.mark.usefixtures("here")
def test_a_race_without_a_plan_is_not_a_command_line_error(capsys):
    assert main(["advise", "my_training:astray", "--steps", "16", "--seeds", "2", "--family", "adagrad"]) == 1
    assert "every candidate diverged at every learning rate" in capsys.readouterr().err


@pytest.mark.parametrize("target", ["my_training", "my_training:", ":task"])
def test_a_target_without_a_module_or_a_function_is_a_command_line_error(capsys, target):
    with pytest.raises(SystemExit, match="2"):
        main(["advise", target])
    assert f"'{target}' is not MODULE:FUNCTION, for example" in capsys.readouterr().err


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("target", "error", "words"),
    [("broken", RuntimeError, "in the user's code"), ("broken_loss", KeyError, "in the user's loss")],
)
def test_an_error_in_the_users_code_keeps_its_traceback(target, error, words):
    with pytest.raises(error, match=words):
        main(["advise", f"my_training:{target}"])


def test_a_folder_that_cannot_be_written_is_refused_before_the_race(here, capsys):
    (here / "file").write_text("", encoding="utf-8")
    assert main(["advise", "my_training:task", "--out", str(here / "file")]) == 1
    assert "file" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [["--seeds", "1"], ["--steps", "4"], ["--demo", "none"], ["--family", "adam"], []])
def test_wrong_arguments_are_refused(wrong):
    with pytest.raises(SystemExit, match="2"):
        main(["advise", *(["my_training:task"] if wrong and wrong[0] != "--demo" else []), *wrong])
